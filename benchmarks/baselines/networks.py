"""Neural language models without a latent variable: a feed-forward network of the last words, and an LSTM.

Both are `forward(words before, state) -> logits, state`: what a window leaves behind is the state of the next one.
Embeddings and output weights are one table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankfold.data.batch import Batch, epoch_generator, length_batches, streams

IGNORED = -100  # target of a position beyond a length
STREAMS = 32  # texts read side by side where the state is carried


class Words(nn.Module):
    """One table of vectors: of the words read, and of the words predicted. One more vector is the start's."""

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        self.start = num_words
        self.table = nn.Parameter(torch.empty(num_words + 1, dim).uniform_(-0.1, 0.1))  # "v dim", and the start
        self.bias = nn.Parameter(torch.zeros(num_words))  # "v"

    def vectors(self, words: Tensor) -> Tensor:  # "b t" -> "b t dim"
        """Of the words read."""
        return nn.functional.embedding(words, self.table)

    def logits(self, hidden: Tensor) -> Tensor:  # "b t dim" -> "b t v"
        """Of the next word."""
        return nn.functional.linear(hidden, self.table[:-1], self.bias)


class FeedForward(nn.Module):
    """Each word given the order - 1 words before it: two hidden layers of their vectors side by side."""

    def __init__(self, num_words: int, dim: int, *, order: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.order, self.words = order, Words(num_words, dim)
        self.first = nn.Conv1d(dim, dim, order - 1)
        self.second = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, before: Tensor, state: Any = None) -> tuple[Tensor, Any]:  # "b t" -> "b t v", "b k"
        """`before[:, t]` is the word before the one at t; the state is the order - 2 words before those."""
        if state is None:
            state = before.new_full((len(before), self.order - 2), self.words.start)
        context = torch.cat([state, before], 1)
        vectors = self.dropout(self.words.vectors(context)).transpose(1, 2)  # "b dim t"
        hidden = self.dropout(torch.relu(self.first(vectors).transpose(1, 2)))
        hidden = self.dropout(torch.relu(self.second(hidden)))
        return self.words.logits(hidden), context[:, before.shape[1] :]


class Recurrent(nn.Module):
    """Each word given all words before it, by a long short-term memory of several layers."""

    def __init__(self, num_words: int, dim: int, *, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = Words(num_words, dim)
        self.layers = nn.LSTM(dim, dim, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)

    def forward(self, before: Tensor, state: Any = None) -> tuple[Tensor, Any]:  # "b t" -> "b t v", (h, c)
        """`before[:, t]` is the word before the one at t; the state is that of the layers."""
        hidden, state = self.layers(self.dropout(self.words.vectors(before)), state)
        return self.words.logits(self.dropout(hidden)), state


Network = FeedForward | Recurrent


class Carried(NamedTuple):
    """What a window of streams leaves to the next: the last words, and the network's state."""

    words: Tensor  # "b"
    state: Any

    def rows(self, num: int) -> Carried:
        """Of the first streams: the last window may have fewer."""
        if isinstance(self.state, tuple):
            return Carried(self.words[:num], tuple(x[:, :num].contiguous() for x in self.state))
        return Carried(self.words[:num], self.state[:num])

    def detach(self) -> Carried:
        """Without a gradient: it stops at the border of a window."""
        state = tuple(x.detach() for x in self.state) if isinstance(self.state, tuple) else self.state
        return Carried(self.words, state)


def windows(
    rows: Iterable[Sequence[int]], tokens: int, *, carried: bool, shuffle: tuple[int, int] | None = None
) -> Iterable[Batch]:
    """Sentences in batches of like length; or, `carried`, one text, to train on cut into streams.

    `shuffle`: seed and epoch of the order; None: in the order of the text, as one stream, to judge by.
    """
    generator = None if shuffle is None else epoch_generator(*shuffle)
    if not carried:
        return length_batches(rows, tokens, generator=generator)
    num = 1 if shuffle is None else STREAMS
    return streams(rows, num, max(1, tokens // num))  # sentences stay in their order: the text goes on across them


def token_losses(
    network: Network, batches: Iterable[Batch], device: torch.device
) -> Iterator[tuple[Tensor, int]]:  # (), n
    """The sum over tokens of -log p(word | the words before) of each batch, and how many tokens there are."""
    carried: Carried | None = None
    for batch in batches:
        words, lengths = batch.values, batch.lengths
        inside = torch.arange(words.shape[1]) < lengths[:, None]
        targets = torch.where(inside, words, IGNORED).to(device, non_blocking=True)
        words = words.to(device, non_blocking=True)
        carried = None if batch.first or carried is None else carried.rows(len(words)).detach()
        start = words.new_full((len(words),), network.words.start) if carried is None else carried.words
        logits, state = network(torch.cat([start[:, None], words[:, :-1]], 1), carried and carried.state)
        carried = Carried(words[:, -1], state)
        loss = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        yield loss, batch.num_tokens


@torch.no_grad()
def perplexity(network: Network, rows: Iterable[Sequence[int]], *, carried: bool, device: torch.device) -> float:
    """exp(-log-likelihood / tokens), `<eos>` counted: float32, without dropout."""
    network.eval()
    loss = torch.zeros((), dtype=torch.float64, device=device)
    count = 0
    for part, num in token_losses(network, windows(rows, 4096, carried=carried), device):
        loss += part
        count += num
    return math.exp(float(loss) / count)
