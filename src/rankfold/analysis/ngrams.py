"""Counts as language models, the baselines of a perplexity.

A unigram knows how often each word occurs, a Kneser-Ney bigram also the word just before. A model with states that
learns anything is under the first; a good one is under the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, DomainError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unigram:
    """Every word drawn alone: p(w) is its share of the training tokens, the end of a sentence a word like the others.

    Maximum likelihood, p(w) = c(w) / c, if every word of the vocabulary was seen. If one was not, one is added to
    every count, p(w) = (c(w) + 1) / (c + num_words), so that no text has probability 0.
    """

    probability: Floats  # "v"

    @classmethod
    def fit(cls, sentences: Iterable[Sequence[int]], num_words: int) -> Unigram:
        """The unigram of these sentences, word ids 0 to num_words - 1, each sentence ending in `<eos>`."""
        _, words = _stream(sentences, num_words)
        counts = np.bincount(words, minlength=num_words).astype(np.float64)
        if not counts.all():
            counts += 1
        return cls(counts / counts.sum())

    def log_likelihood(self, sentences: Iterable[Sequence[int]]) -> float:
        """The log-probability of all sentences together, sum over tokens of log p(w)."""
        _, words = _stream(sentences, len(self.probability))
        return _total_log(self.probability[words])

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """exp(-log-likelihood / tokens), `<eos>` counted."""
        _, words = _stream(sentences, len(self.probability))
        return math.exp(-_total_log(self.probability[words]) / len(words))


@dataclass(frozen=True, eq=False)
class KneserNeyBigram:
    """Interpolated Kneser-Ney with one discount: each word given the one before it.

        p(w | h) = max(c(h w) - D, 0) / c(h)  +  D n(h .) / c(h) * q(w)
        q(w)     = max(n(. w) - E, 0) / n(..) +  E m / n(..) / num_words

    c counts pairs, n(h .) the different words after h, n(. w) the different contexts before w, n(..) all different
    pairs and m the words seen at all. So q, the continuation distribution, is itself discounted and interpolated with
    the uniform one: every word of the vocabulary has p > 0 after every context. A context never seen has p = q.

    D = n1 / (n1 + 2 n2) for n1 and n2 pairs seen once and twice; E the same for words with one and two contexts.
    Where n1 or n2 is 0 that says nothing (0 or 1) and the discount is 1/2. The start of a sentence is a context,
    number num_words, and is never predicted.
    Source: Kneser, Ney 1995; Chen, Goodman 1999, sec. 3.
    """

    pairs: Ints  # "n"             h * num_words + w of every pair seen, sorted
    pair_counts: Floats  # "n"     c(h w)
    context_counts: Floats  # "k"  c(h), the start of a sentence last
    followers: Floats  # "k"       n(h .)
    continuation: Floats  # "v"    q(w)
    discount: float

    @classmethod
    def fit(cls, sentences: Iterable[Sequence[int]], num_words: int) -> KneserNeyBigram:
        """The bigram of these sentences, word ids 0 to num_words - 1, each sentence ending in `<eos>`.

        Cost: one sort of the tokens; memory O(tokens + num_words).
        """
        contexts, words = _stream(sentences, num_words)
        pairs, counts = np.unique(contexts * num_words + words, return_counts=True)
        before = np.bincount(pairs % num_words, minlength=num_words)
        lower = _discount(before)
        seen = np.count_nonzero(before)
        return cls(
            pairs=pairs,
            pair_counts=counts.astype(np.float64),
            context_counts=np.bincount(contexts, minlength=num_words + 1).astype(np.float64),
            followers=np.bincount(pairs // num_words, minlength=num_words + 1).astype(np.float64),
            continuation=(np.maximum(before - lower, 0) + lower * seen / num_words) / len(pairs),
            discount=_discount(counts),
        )

    @property
    def num_words(self) -> int:
        """The size of the vocabulary; as a context, the start of a sentence."""
        return len(self.continuation)

    def probability(self, contexts: Ints, words: Ints) -> Floats:  # "...", "..." -> "..."
        """p(word | context) entry by entry; the context num_words is the start of a sentence."""
        keys = contexts * self.num_words + words
        place = np.minimum(np.searchsorted(self.pairs, keys), len(self.pairs) - 1)
        counts = np.where(self.pairs[place] == keys, self.pair_counts[place], 0.0)
        total = np.maximum(self.context_counts[contexts], 1.0)
        # What the discounts of a context leave over; all of it where the context was never seen.
        left = np.where(self.context_counts[contexts] > 0, self.discount * self.followers[contexts] / total, 1.0)
        result: Floats = np.maximum(counts - self.discount, 0) / total + left * self.continuation[words]
        return result

    def log_likelihood(self, sentences: Iterable[Sequence[int]]) -> float:
        """The log-probability of all sentences together, each on its own from the start of a sentence."""
        return _total_log(self.probability(*_stream(sentences, self.num_words)))

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """exp(-log-likelihood / tokens), `<eos>` counted."""
        contexts, words = _stream(sentences, self.num_words)
        return math.exp(-_total_log(self.probability(contexts, words)) / len(words))


def _total_log(probability: Floats) -> float:
    return float(np.log(probability).sum())


def _discount(counts: NDArray[np.integer]) -> float:
    """n1 / (n1 + 2 n2) for the number of ones and twos, and 1/2 where either is missing."""
    ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
    return ones / (ones + 2 * twos) if ones and twos else 0.5


def _stream(sentences: Iterable[Sequence[int]], num_words: int) -> tuple[Ints, Ints]:
    """All tokens in a row, and before each the word it follows or num_words where a sentence starts."""
    if num_words < 1:
        raise DomainError(f"num_words is {num_words}, but a vocabulary has at least 1 word.")
    sentences = list(sentences)
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    if not len(lengths) or not lengths.all():
        which = f"sentence {int(lengths.argmin()) + 1} is empty" if len(lengths) else "no sentences came"
        raise DataError(f"{which}; at least one was expected, and each ends in <eos>.")
    words = np.fromiter(chain.from_iterable(sentences), np.int64, int(lengths.sum()))
    wrong = (words < 0) | (words >= num_words)
    if wrong.any():
        place = int(wrong.argmax())
        number = int(np.searchsorted(lengths.cumsum(), place, side="right")) + 1
        raise DomainError(
            f"sentence {number} holds the id {words[place]}, but words have ids 0 to {num_words - 1}.\n"
            "  Encode it with the vocabulary that num_words is the length of."
        )
    contexts = np.empty_like(words)
    contexts[1:] = words[:-1]
    contexts[np.concatenate(([0], lengths.cumsum()[:-1]))] = num_words
    return contexts, words
