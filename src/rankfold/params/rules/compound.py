"""A grammar that depends on a vector: every distribution of the N-PCFG reads a symbol's embedding and the vector.

Parts that depend on symbols alone are computed once for all sentences. `SentenceEncoder` guesses a sentence's vector.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.numerics.precision import products_in
from rankfold.operators import BinaryDense, Branch
from rankfold.params.networks import Drawing
from rankfold.params.rules.root_leaves import Roots, split_root
from rankfold.params.rules.softmax import by_kind


class Halves(NamedTuple):
    """The parts that depend on the symbols alone, before a vector is known."""

    root: Tensor  # "d"
    rules: Tensor  # "n (n+p)^2"   logits
    words: Tensor  # "p d"


class SentenceWords(NamedTuple):
    """log p(v | p, sentence) = state . word_v + bias_v - log_norm, each sentence with states of its own."""

    state: Tensor  # "b p d"
    word: Tensor  # "v d"
    bias: Tensor  # "v"
    log_norm: Tensor  # "b p"

    def log_obs(self, words: Tensor) -> Tensor:  # "b t" -> "b t p"
        """As `InnerEmission.log_obs`."""
        with products_in("float32", words.device):
            log_obs = embedding(words, self.word) @ self.state.mT
        return log_obs + embedding(words, self.bias[:, None]) - self.log_norm[:, None]

    def log_rows(self, sentence: int) -> Tensor:  # "p v"
        """The distributions of one sentence, written out."""
        return self.state[sentence] @ self.word.mT + self.bias - self.log_norm[sentence][:, None]


class CompoundGrammar(nn.Module):
    """Root, rules and words of the N-PCFG with [e; h] for every embedding e, h the vector of a sentence.

    Cost: b n (n + p)^2 for the rules, which differ by sentence, and b p v d for the words. Source: Kim et al. 2019.
    """

    def __init__(
        self,
        num_spans: int,
        num_leaves: int,
        num_words: int,
        dim: int,
        num_layers: int,
        latent: int,
        *,
        single_words: bool,
        drawing: Drawing,
    ) -> None:
        super().__init__()
        num_pairs = (num_spans + num_leaves) ** 2
        self.num_spans, self.num_leaves, self.dim = num_spans, num_leaves, dim
        self.start = drawing.embedding(1, dim)
        self.root_mlp = drawing.residual(dim + latent, dim, num_layers)
        self.root_out = drawing.linear(dim, num_spans + (num_leaves if single_words else 0))
        self.parent = drawing.embedding(num_spans, dim)
        self.pair = drawing.linear(dim + latent, num_pairs)
        self.symbol = drawing.embedding(num_leaves, dim)
        self.word_mlp = drawing.residual(dim + latent, dim, num_layers)
        self.word_out = drawing.linear(dim, num_words)

    def halves(self) -> Halves:
        """The parts that all sentences share."""
        return Halves(
            self._of_symbols(self.root_mlp[0], self.start)[0],
            self._of_symbols(self.pair, self.parent),
            self._of_symbols(self.word_mlp[0], self.symbol),
        )

    def forward(self, latent: Tensor, halves: Halves) -> tuple[Roots, Branch, SentenceWords]:  # "b h"
        num = len(latent)
        root = halves.root + self._of_vectors(self.root_mlp[0], latent)
        log_root = torch.log_softmax(self.root_out(self.root_mlp[1:](root)), -1)
        logits = halves.rules + self._of_vectors(self.pair, latent)[:, None]
        rules = Branch(*map(BinaryDense.unchecked, by_kind(torch.softmax(logits, -1), self.num_leaves)))
        hidden = self.word_mlp[1:](halves.words + self._of_vectors(self.word_mlp[0], latent)[:, None])
        log_norm = linear_logsumexp(hidden.flatten(0, 1), self.word_out.weight, self.word_out.bias)
        words = SentenceWords(hidden, self.word_out.weight, self.word_out.bias, log_norm.view(num, -1))
        return split_root(log_root, self.num_spans), rules, words

    def _of_symbols(self, layer: nn.Module, x: Tensor) -> Tensor:  # "n d" -> "n q"
        """A layer's share of [e; h] that e decides, and its bias."""
        assert isinstance(layer, nn.Linear)
        return torch.addmm(layer.bias, x, layer.weight[:, : self.dim].mT)

    def _of_vectors(self, layer: nn.Module, latent: Tensor) -> Tensor:  # "b h" -> "b q"
        assert isinstance(layer, nn.Linear)
        return latent @ layer.weight[:, self.dim :].mT


class LatentGaussian(NamedTuple):
    """Independent normal numbers for each sentence."""

    mean: Tensor  # "b h"
    log_variance: Tensor  # "b h"

    def draw(self, noise: Tensor) -> Tensor:  # "b h"
        """mean + deviation noise, differentiable in both."""
        return self.mean + torch.exp(self.log_variance / 2) * noise

    def divergence(self) -> Tensor:  # "b"   float64
        """KL(self || standard normal), in nats."""
        mean, log_variance = self.mean.double(), self.log_variance.double()
        return (mean.square() + torch.exp(log_variance) - 1 - log_variance).sum(1) / 2


class SentenceEncoder(nn.Module):
    """Words to a LatentGaussian: an LSTM from each end, the largest value of each of their outputs, a linear layer.

    Words beyond a length are never read, and no value is looked at. Source: Kim, Dyer, Rush 2019, the C-PCFG.
    """

    def __init__(self, num_words: int, dim: int, hidden: int, latent: int, drawing: Drawing) -> None:
        super().__init__()
        self.word = drawing.embedding(num_words, dim)
        self.forwards, self.backwards = (_lstm(dim, hidden, drawing) for _ in range(2))
        self.out = drawing.linear(2 * hidden, 2 * latent)

    def forward(self, batch: Batch) -> LatentGaussian:
        place = torch.arange(batch.values.shape[1], device=batch.values.device)
        inside = place < batch.lengths[:, None]
        # The last word first: every sentence then begins at 0 in both directions, and padding comes after it.
        turned = torch.where(inside, batch.lengths[:, None] - 1 - place, place)
        found = []
        for words, layer in ((batch.values, self.forwards), (batch.values.gather(1, turned), self.backwards)):
            out, _ = layer(embedding(words, self.word))
            found.append(out.masked_fill(~inside.unsqueeze(-1), float("-inf")).amax(1))
        mean, log_variance = self.out(torch.cat(found, 1)).chunk(2, 1)
        return LatentGaussian(mean, log_variance)


def _lstm(num_in: int, num_out: int, drawing: Drawing) -> nn.LSTM:
    """One layer in one direction; gates are drawn as one matrix each for inputs and outputs."""
    layer = nn.LSTM(num_in, num_out, batch_first=True, device="meta")  # no numbers drawn: they come from our generator
    layer.weight_ih_l0, layer.weight_hh_l0 = drawing.matrix(4 * num_out, num_in), drawing.matrix(4 * num_out, num_out)
    layer.bias_ih_l0, layer.bias_hh_l0 = drawing.bias(4 * num_out, num_out), drawing.bias(4 * num_out, num_out)
    return layer
