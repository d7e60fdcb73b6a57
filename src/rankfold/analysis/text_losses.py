"""Where a text costs a model of words its nats: by the length of sentences, and by how frequent words were in training.

The groups are a partition: their nats and tokens add up to those of the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from rankfold.data.batch import Batch, length_batches
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.online import filter
from rankfold.errors import DomainError
from rankfold.models.base import Model
from rankfold.models.strings import answer_each, score

LENGTHS = (10, 20, 30, 40)  # the last words of a sentence in each group but the last
TOKENS = 4096  # of a batch


class Group(NamedTuple):
    """Tokens that belong together, and what they cost; `<eos>` is a token."""

    name: str
    tokens: int
    nats: float  # the sum of -log p; infinite where one is impossible

    @property
    def perplexity(self) -> float:
        """exp(nats / tokens); infinite where that leaves a float's range."""
        mean = self.nats / self.tokens
        return math.exp(mean) if mean < 709 else math.inf


def losses_by_length(
    model: Model[Any, Any], sentences: Sequence[Sequence[str]], *, lengths: Sequence[int] = LENGTHS
) -> list[Group]:
    """The sentences by their number of words, up to each of `lengths` and above; groups without any are left out.

    Tokens are those of the model's perplexity: words, and one end for each sentence.
    """
    if not lengths or list(lengths) != sorted(set(lengths)) or lengths[0] < 1:
        raise DomainError(f"the lengths are {list(lengths)}, but rising whole numbers, at least 1, were expected.")
    scored = score(model, sentences)
    names = [f"{low + 1}-{high}" for low, high in zip([0, *lengths], lengths, strict=False)] + [f"over {lengths[-1]}"]
    totals = dict.fromkeys(names, (0, 0.0))
    for words, found in zip(sentences, scored, strict=True):
        assert found.log_prob is not None
        name = names[sum(len(words) > length for length in lengths)]
        tokens, nats = totals[name]
        totals[name] = tokens + len(words) + 1, nats - found.log_prob
    return [Group(name, *total) for name, total in totals.items() if total[0]]


def token_log_probs(model: Model[Any, Any], sentences: Sequence[Sequence[int]]) -> list[list[float]]:
    """log p(word | the words before it in its sentence) of every token; -inf from an impossible word on."""
    with torch.no_grad():
        parts = model.parts()

    def answer(batch: Batch) -> list[list[float]]:
        with torch.no_grad():
            total = filter(model.potentials(batch, parts=parts)).log_z
        before = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], 1)
        each = torch.where(total > -math.inf, total - before, -math.inf).tolist()
        return [row[:length] for row, length in zip(each, batch.lengths.tolist(), strict=True)]

    size = max(1, 2**24 // _width(model))
    batches = length_batches(sentences, min(TOKENS, size))
    found: list[list[float]] = answer_each(model, batches.groups, batches, answer)
    return found


def losses_by_frequency(
    model: Model[Any, Any], vocabulary: Vocabulary, sentences: Sequence[Sequence[int]]
) -> list[Group]:
    """The tokens by the count of their word in the training text, in decades; `<eos>` and `<unk>` by themselves."""
    totals: dict[tuple[int, str], tuple[int, float]] = {}
    group = _frequency_group(vocabulary)
    for words, row in zip(sentences, token_log_probs(model, sentences), strict=True):
        for word, log_prob in zip(words, row, strict=True):
            tokens, nats = totals.get(group(word), (0, 0.0))
            totals[group(word)] = tokens + 1, nats - log_prob
    return [Group(key[1], *totals[key]) for key in sorted(totals)]


def _frequency_group(vocabulary: Vocabulary) -> Callable[[int], tuple[int, str]]:
    """The place and name of a word's group."""

    def find(word: int) -> tuple[int, str]:
        if word in (Vocabulary.eos_id, Vocabulary.unk_id):
            return (101, "<eos>") if word == Vocabulary.eos_id else (100, "<unk>")
        count = vocabulary.counts[word]
        decade = len(str(count)) - 1 if count else -1
        return decade, f"{10**decade:,}-{10 ** (decade + 1) - 1:,}" if count else "never"

    return find


def _width(model: Model[Any, Any]) -> int:
    """The numbers that a position holds."""
    config: Any = model.config
    size: int = (config.num_states // config.num_clusters) ** 2 if config.has_clusters else config.num_states
    return max(1, size)
