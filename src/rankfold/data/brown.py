"""Brown clustering: words that keep the same company share a cluster.

Greedy merges that keep most of the mutual information of adjacent clusters, exactly as the naive search would choose
them, in O(k^2) per word for k clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.clusters import Clusters, expect_sizes
from rankfold.errors import DomainError, ShapeError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Losses that differ by less than this times n log n, for n pairs, are ties. For 128 clusters of the Penn Treebank
# (n = 887,520) that is 1.2e-6; the cached sums drift by up to 4e-10, and the two best differ by at least 2.5e-4.
TIE = 1e-13
STRETCH = 2**21  # words whose pairs are counted at a time


class Pairs(NamedTuple):
    """How often each item is followed by each other, only where it is."""

    left: Ints  # "n"
    right: Ints  # "n"
    times: Floats  # "n"


def brown(
    sentences: Sequence[Sequence[int]],
    num_words: int,
    num_clusters: int,
    *,
    joined: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Clusters:
    """Clusters found by greedy merges, each the one that loses least of the mutual information of adjacent clusters.

    Words come in order of falling frequency, ties by number. Each opens a cluster of its own; whenever there are
    num_clusters + 1, the two are merged that lose least of

        sum_{c, e}  p(c e) log( p(c e) / (p(c .) p(. e)) )        over the clusters opened so far

    where all probabilities are relative to the pairs of the whole corpus, also those of words still to come. Losses
    that differ by rounding only are ties: the pair whose most frequent words are the most frequent wins, the better
    of the two words first. Clusters are numbered in the order of their most frequent words.

    A pair is two neighbours within a sentence. `joined=True` also counts the last word of a sentence and the first
    of the next, as brown-cluster does with lines. An end symbol counts if the sentences contain it as a word. Words
    that never occur come last and lose nothing anywhere, so the tie puts them with the most frequent word, unless
    there are fewer other words than clusters or another merge is as free.

    `progress(done, num_words)` is called after each word. Cost: O(v k^2) time for k clusters, O(k^2 + pairs) memory.
    Source: Brown et al. 1992, sec. 3; the window of k + 1 clusters with cached losses is Liang 2005.
    """
    expect_sizes(num_words, num_clusters)
    frequency, pairs = _pairs(sentences, num_words, joined=joined)
    order = np.argsort(-frequency, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(num_words)
    window = Window(Pairs(rank[pairs.left], rank[pairs.right], pairs.times), num_words, num_clusters + 1)
    for item in range(num_words):
        window.add(item)
        if item >= num_clusters:
            window.merge(*window.best())
        if progress is not None:
            progress(item + 1, num_words)
    leads, assignment = np.unique(window.lead[window.slot], return_inverse=True)
    return Clusters(torch.from_numpy(assignment[rank]), len(leads))


def merge_paths(sentences: Sequence[Sequence[int]], clusters: Clusters, *, joined: bool = False) -> list[str]:
    """The bit string of each cluster: its path in the binary tree that further greedy merges down to one make.

    A common prefix is a common coarser cluster. Of two merged clusters the one with the lower number gets the 0.
    Cost: O(k^3) for k clusters.
    """
    assignment = _assignment(clusters.assignment)
    _, pairs = _pairs(sentences, len(assignment), joined=joined)
    size = clusters.num_clusters
    if assignment.max() >= size:
        raise DomainError(f"assignment uses cluster {assignment.max()}, but num_clusters is {size}.")
    window = Window(_of_clusters(pairs, assignment, size), size, size)
    for item in range(size):
        window.add(item)
    paths = [""] * size
    for _ in range(size - 1):
        pair = window.best()
        for bit, slot in zip("01", pair, strict=True):
            for item in np.flatnonzero(window.slot == slot).tolist():
                paths[item] = bit + paths[item]
        window.merge(*pair)
    return paths


def mutual_information(
    sentences: Sequence[Sequence[int]],
    assignment: Tensor,  # "v"
    *,
    joined: bool = False,
) -> float:
    """Average mutual information of the clusters of adjacent words, in nats.

        sum_{c, e}  n(c e) / n  log( n(c e) n / (n(c .) n(. e)) )

    n(c e) counts the pairs of neighbours (see `brown` for `joined`) whose first word is in c and whose second in e;
    n(c .) and n(. e) are its sums over e and over c, n the number of pairs. Not per sentence, and not in bits.
    """
    table = _assignment(assignment)
    _, pairs = _pairs(sentences, len(table), joined=joined)
    size = int(table.max()) + 1
    left, right, times = _of_clusters(pairs, table, size)
    first, second = np.bincount(left, times, size), np.bincount(right, times, size)
    ratio = times / first[left] * (times.sum() / second[right])
    return float((times * np.log(ratio)).sum() / times.sum())


class Window:
    """A few clusters, the counts of their pairs, and what each merge of two of them would lose.

    In counts N, with h(x) = x log x, merging i and j loses (times the number of pairs, all of it >= 0)

        R_i log((l_i + l_j) / l_i) + R_j log((l_i + l_j) / l_j)  -  sum_m  [ h(N_im + N_jm) - h(N_im) - h(N_jm) ]

    and the same for columns, where l are sums of rows over the whole corpus, R those over the window, and where m = i
    and m = j need a correction because rows and columns merge at once. The sum over all m is kept in `overlap`: a word
    or a merge changes it by terms of one m for all pairs, and by all m for the pairs of one cluster.
    """

    def __init__(self, pairs: Pairs, num_items: int, size: int) -> None:
        # A pair enters the window with the later of its items; sorted by it, those of one item are a slice.
        later = np.maximum(pairs.left, pairs.right)
        order = np.argsort(later, kind="stable")
        self.pairs = Pairs(pairs.left[order], pairs.right[order], pairs.times[order])
        self.starts = np.searchsorted(later[order], np.arange(num_items + 1))
        self.item_margins = np.stack([np.bincount(x, pairs.times, num_items) for x in (pairs.left, pairs.right)])
        self.tolerance = TIE * _times_log(pairs.times.sum() + 1.0)
        self.slot = np.full(num_items, -1)  # of each item
        self.lead = np.full(size, -1)  # first item of each slot, -1 where idle
        self.counts = np.zeros((size, size))  # "k k"
        self.overlap = np.zeros((size, size))  # "k k"
        self.margins = np.zeros((2, size))  # of rows and of columns

    def add(self, item: int) -> None:
        """Open a cluster for an item, with its pairs among the items already here."""
        new = int(np.argmin(self.lead))
        self.slot[item], self.lead[new] = new, item
        self.margins[:, new] = self.item_margins[:, item]
        mine = slice(self.starts[item], self.starts[item + 1])
        places = self.slot[self.pairs.left[mine]], self.slot[self.pairs.right[mine]]
        np.add.at(self.counts, places, self.pairs.times[mine])
        self._shift(new, 1.0)
        self._renew(new)

    def merge(self, kept: int, gone: int) -> None:
        """Put the cluster in slot `gone` into the one in slot `kept`."""
        self._shift(kept, -1.0)
        self._shift(gone, -1.0)
        for table in (self.counts, self.counts.T, self.margins.T):
            table[kept] += table[gone]
            table[gone] = 0.0
        self._shift(kept, 1.0)
        self._renew(kept)
        self.slot[self.slot == gone] = kept
        self.lead[gone] = -1

    def best(self) -> tuple[int, int]:
        """The slots of the pair whose merge loses least, the one with the earlier lead first."""
        losses = self.losses()
        near = np.argwhere(losses <= losses.min() + self.tolerance)
        leads = np.sort(self.lead[near], axis=1)
        first = np.lexsort((leads[:, 1], leads[:, 0]))[0]
        one, two = near[first].tolist()
        return (one, two) if self.lead[one] < self.lead[two] else (two, one)

    def losses(self) -> Floats:  # "k k"
        """The loss of each merge times the number of pairs; inf for a slot with itself and for idle slots."""
        counts, own = self.counts, self.counts.diagonal()[:, None]
        half = _times_log(own + counts) + _times_log(own + counts.T) - _times_log(counts) - _times_log(own)
        for margin, here in zip(self.margins, (counts.sum(1), counts.sum(0)), strict=True):
            # A margin of 0 meets a sum of 0, so what stands for its logarithm does not matter.
            both = np.maximum(margin[:, None] + margin, 1.0)
            half += here[:, None] * np.log(both / np.maximum(margin[:, None], 1.0))
        losses: Floats = half + half.T - _times_log(own + counts + (own + counts).T) - self.overlap
        idle = self.lead < 0
        losses[idle] = losses[:, idle] = np.inf
        np.fill_diagonal(losses, np.inf)
        return losses

    def _shift(self, slot: int, sign: float) -> None:
        """Add to the overlap of every pair the terms in which m is this slot, or take them out."""
        for line in (self.counts[slot], self.counts[:, slot]):
            some = np.flatnonzero(line)  # the terms are 0 where one of the counts is
            self.overlap[np.ix_(some, some)] += sign * _excess(line[some], line[some, None])

    def _renew(self, slot: int) -> None:
        """Compute the overlap of this slot with every other."""
        total = np.zeros(len(self.lead))
        for table in (self.counts, self.counts.T):
            some = np.flatnonzero(table[slot])
            total += _excess(table[:, some], table[slot, some]).sum(1)
        self.overlap[slot] = self.overlap[:, slot] = total


def _times_log(x: Floats) -> Floats:
    """x log x for whole numbers: exactly 0 at 0 and at 1."""
    product: Floats = x * np.log(np.maximum(x, 1.0))
    return product


def _excess(x: Floats, y: Floats) -> Floats:
    """h(x + y) - h(x) - h(y) for h(x) = x log x."""
    return _times_log(x + y) - _times_log(x) - _times_log(y)


def _stretches(sentences: Sequence[Sequence[int]], num_words: int) -> Iterator[list[Ints]]:
    """The sentences that have words, as arrays, so many that about STRETCH words are in memory at a time."""
    arrays: list[Ints] = []
    size = 0
    for number, sentence in enumerate(sentences):
        words = np.asarray(sentence)
        if not words.size:
            continue
        if words.ndim != 1 or words.dtype.kind not in "iu":
            raise DomainError(
                f"sentences[{number}] must be a row of word numbers, but is {sentence!r:.80}.\n"
                "  Give a list of sentences, and each word its place in the vocabulary."
            )
        if words.min() < 0 or words.max() >= num_words:
            place = int(np.flatnonzero((words < 0) | (words >= num_words))[0])
            raise DomainError(
                f"sentences[{number}][{place}] is word {words[place]}, "
                f"but words are numbered 0 to num_words - 1 = {num_words - 1}."
            )
        arrays.append(words.astype(np.int64))
        size += len(words)
        if size >= STRETCH:
            yield arrays
            arrays, size = [], 0
    if arrays:
        yield arrays


def _pairs(sentences: Sequence[Sequence[int]], num_words: int, *, joined: bool) -> tuple[Ints, Pairs]:
    """The counts of words and of neighbours; raise where there are none."""
    frequency = np.zeros(num_words, dtype=np.int64)
    code, times = np.zeros(0, np.int64), np.zeros(0)
    before = np.zeros(0, np.int64)  # the last word of the stretch before
    for arrays in _stretches(sentences, num_words):
        words = np.concatenate(arrays)
        frequency += np.bincount(words, minlength=num_words)
        inside = np.ones(len(words), dtype=np.bool_)
        if not joined:
            inside[np.cumsum([len(row) for row in arrays]) - 1] = False
        fresh = words[:-1][inside[:-1]] * num_words + words[1:][inside[:-1]]
        if joined:
            fresh = np.append(fresh, before * num_words + words[: len(before)])
            before = words[-1:]
        fresh, num = np.unique(fresh, return_counts=True)
        code, place = np.unique(np.concatenate([code, fresh]), return_inverse=True)
        times = np.bincount(place, np.concatenate([times, num]), len(code)).astype(np.float64)
    if not len(code):
        raise DomainError(
            "sentences has no two neighbouring words, and clusters are found in the company words keep.\n"
            "  Words of one-word sentences meet with joined=True."
        )
    return frequency, Pairs(code // num_words, code % num_words, times)


def _of_clusters(pairs: Pairs, table: Ints, size: int) -> Pairs:
    """Pairs of words as pairs of their clusters."""
    code, place = np.unique(table[pairs.left] * size + table[pairs.right], return_inverse=True)
    return Pairs(code // size, code % size, np.bincount(place, pairs.times, len(code)).astype(np.float64))


def _assignment(assignment: Tensor) -> Ints:  # "v"
    """The clusters of words as an array; raise unless they are whole numbers from 0."""
    if not isinstance(assignment, Tensor):
        raise ShapeError(f'assignment must be a torch.Tensor "v", but is a {type(assignment).__name__}.')
    if assignment.ndim != 1 or not len(assignment) or assignment.dtype != torch.int64:
        raise ShapeError(
            f'assignment is {assignment.dtype} of shape {tuple(assignment.shape)}, but int64 "v" was expected, v >= 1.'
        )
    table: Ints = assignment.cpu().numpy()
    if table.min() < 0:
        raise DomainError(f"assignment[{int(table.argmin())}] is {table.min()}, but clusters are numbered from 0.")
    return table
