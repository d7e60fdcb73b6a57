"""Counts as language models, the baselines of a perplexity.

A unigram knows how often each word occurs, Kneser-Ney of order n also the n - 1 words just before. A model with states
that learns anything is under the first; a good one is under Kneser-Ney of order 2, and of order 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, DomainError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Discounts = Literal["one", "three"]
ORDERS = (2, 3, 4, 5)  # of the baselines


def baselines(
    train: Sequence[Sequence[int]],
    test: Sequence[Sequence[int]],
    num_words: int,
    *,
    orders: Sequence[int] = ORDERS,
    ends: bool = True,
    carried: bool = False,
) -> dict[str, float]:
    """The log-likelihood of the test sentences under each baseline: a unigram, modified Kneser-Ney of each order.

    Sentences without an end of their own, not `ends`, are given one that is predicted: those of a grammar say where
    they end. `carried`: contexts reach across the ends of sentences.
    """
    if not ends:
        train, test = ([[*row, num_words] for row in rows] for rows in (train, test))
        num_words += 1
    if carried:
        train, test = ([list(chain.from_iterable(rows))] for rows in (train, test))
    unigram = {"unigram": Unigram.fit(train, num_words).log_likelihood(test)}
    models = {f"Kneser-Ney, order {order}": KneserNey.fit(train, num_words, order) for order in orders}
    return unigram | {name: model.log_likelihood(test) for name, model in models.items()}


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
        counts = np.bincount(_words(sentences, num_words), minlength=num_words).astype(np.float64)
        if not counts.all():
            counts += 1
        return cls(counts / counts.sum())

    def log_likelihood(self, sentences: Iterable[Sequence[int]]) -> float:
        """The log-probability of all sentences together, sum over tokens of log p(w)."""
        return float(np.log(self.probability[_words(sentences, len(self.probability))]).sum())

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """exp(-log-likelihood / tokens), `<eos>` counted."""
        return math.exp(-float(np.log(self.probability[_words(sentences, len(self.probability))]).mean()))


class Level(NamedTuple):
    """The n-grams of one length, each a context and a word; contexts are numbered as the n-grams one shorter."""

    keys: Ints  # "n"          context * num_words + word, sorted: the place of a key is the number of its n-gram
    counts: Ints  # "n"        c(h w)
    totals: Floats  # "k"      c(h), 0 where no word follows
    discounted: Floats  # "k"  D(h)
    discounts: Floats  # "4"   D of a count of 0, 1, 2, and of 3 or more


@dataclass(frozen=True, eq=False)
class KneserNey:
    """Interpolated Kneser-Ney of any order: each word given the order - 1 symbols before it.

        p(w | h) = (c(h w) - D(c(h w)) + D(h) p(w | h')) / c(h)      c(h) = sum_w c(h w),  D(h) = sum_w D(c(h w))

    h' is h without its first symbol; below the empty context stands the uniform distribution, so every word of the
    vocabulary has p > 0 after every context. A context never seen has p(w | h) = p(w | h').
    c(g) is how often g stands in the text, if g has `order` symbols or begins with the start of a sentence; otherwise
    the number of different symbols before g. The start is a symbol of contexts, and is never predicted.

    discounts "three", modified Kneser-Ney: D(1), D(2), D(3 or more) = Y, 2 - 3 Y n3 / n2, 3 - 4 Y n4 / n3, with
    Y = n1 / (n1 + 2 n2) and n_i the n-grams of a length with c = i. "one": D = Y. A length whose three discounts are
    undefined or not in 0 < D(i) <= i has one; where n1 or n2 is 0, Y says nothing (0 or 1) and is 1/2.
    Source: Kneser, Ney 1995; Chen, Goodman 1999, sec. 3.
    """

    num_words: int  # as a symbol, the start of a sentence
    levels: tuple[Level, ...]  # n-grams of 1, 2, ..., order symbols, as far as there are any

    @classmethod
    def fit(
        cls, sentences: Iterable[Sequence[int]], num_words: int, order: int = 5, *, discounts: Discounts = "three"
    ) -> KneserNey:
        """The model of these sentences, word ids 0 to num_words - 1, each sentence ending in `<eos>`.

        Cost: one sort of the tokens for each length; memory O(order tokens + num_words).
        """
        if order < 1:
            raise DomainError(f"order is {order}, but must be at least 1, which is that of words without a context.")
        symbols, position = _stream(sentences, num_words)
        words = (position > 0).nonzero()[0]
        grams = symbols  # the number of the n-gram that ends at each symbol; of one symbol, itself
        keys: Ints = np.arange(num_words)
        tables = [(keys, np.bincount(symbols[words], minlength=num_words))]
        for length in range(2, order + 1):
            here = words[position[words] >= length - 1]
            if not len(here):  # no sentence is so long
                break
            joined = grams[here - 1] * num_words + symbols[here]
            keys, first, place, counts = np.unique(joined, return_index=True, return_inverse=True, return_counts=True)
            shorter, times = tables[-1]
            before = np.bincount(grams[here[first]], minlength=len(shorter))  # different symbols; of a start none
            tables[-1] = shorter, np.where(before > 0, before, times)
            tables.append((keys, counts))
            grams = np.full_like(symbols, -1)
            grams[here] = place
        contexts = [1, num_words + 1, *(len(keys) for keys, _ in tables[1:])]
        return cls(
            num_words,
            tuple(
                _level(keys, counts, num_words, num, discounts)
                for (keys, counts), num in zip(tables, contexts, strict=False)
            ),
        )

    def probability(self, sentences: Iterable[Sequence[int]]) -> Floats:  # "n"
        """p(word | the words before it) of every token, one sentence after the other."""
        symbols, position = _stream(sentences, self.num_words)
        p = np.full(len(symbols), 1 / self.num_words)
        grams = np.zeros_like(symbols)  # of no symbols there is one
        for length, level in enumerate(self.levels, 1):
            before = np.concatenate(([-1], grams[:-1]))
            here = ((position >= max(1, length - 1)) & (before >= 0)).nonzero()[0]
            context = before[here]
            keys = context * self.num_words + symbols[here]
            place = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
            seen = level.keys[place] == keys
            counts = np.where(seen, level.counts[place], 0)
            totals = level.totals[context]
            follows = totals > 0
            own = counts - level.discounts[np.minimum(counts, 3)] + level.discounted[context] * p[here]
            p[here[follows]] = own[follows] / totals[follows]
            grams = np.full_like(symbols, -1)
            grams[here[seen]] = place[seen]
            if length == 1:
                grams = symbols
        return p[position > 0]

    def log_likelihood(self, sentences: Iterable[Sequence[int]]) -> float:
        """The log-probability of all sentences together, each on its own from the start of a sentence."""
        return float(np.log(self.probability(sentences)).sum())

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """exp(-log-likelihood / tokens), `<eos>` counted."""
        return math.exp(-float(np.log(self.probability(sentences)).mean()))


def _level(keys: Ints, counts: Ints, num_words: int, num_contexts: int, discounts: Discounts) -> Level:
    table = _discounts(counts, discounts)
    totals, discounted = np.zeros(num_contexts), np.zeros(num_contexts)
    np.add.at(totals, keys // num_words, counts)
    np.add.at(discounted, keys // num_words, table[np.minimum(counts, 3)])
    return Level(keys, counts, totals, discounted, table)


def _discounts(counts: Ints, how: Discounts) -> Floats:  # "n" -> "4"
    """D of a count of 0, 1, 2, and of 3 or more."""
    n1, n2, n3, n4 = (int((counts == i).sum()) for i in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if how == "three" and n1 and n2 and n3:
        second, third = 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        if second > 0 and third > 0:
            return np.array([0, y, second, third])
    return np.array([0, y, y, y])


def _words(sentences: Iterable[Sequence[int]], num_words: int) -> Ints:  # "n"
    symbols, position = _stream(sentences, num_words)
    return symbols[position > 0]


def _stream(sentences: Iterable[Sequence[int]], num_words: int) -> tuple[Ints, Ints]:  # "n", "n"
    """All symbols in a row, before each sentence num_words, the start; and the place of each, that of the start 0."""
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
    starts = lengths.cumsum() - lengths  # in `words`
    symbols = np.insert(words, starts, num_words)
    starts += np.arange(len(starts))  # in `symbols`
    return symbols, np.arange(len(symbols)) - np.repeat(starts, lengths + 1)
