"""Batches of sequences: words, symbols or features, padded to a common width, and the ways to cut a corpus into them.

Four ways to cut: buckets of like length, of equal length, shuffled sentences as they come, or streams with a carried
state. An epoch's order is a function of (seed, epoch); a budget counts padded tokens; nothing is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.data.frames import UNKNOWN, Frames
from rankfold.errors import DataError, DomainError

# The id written beyond a length. It is an ordinary word too: only `lengths` says what is padding.
PADDING = 0
POOL = 100


class Batch(NamedTuple):
    """Sequences of a common width; positions beyond a length are never read."""

    values: Tensor  # "b t" int64, ids of words, or of symbols with -1 = missing; or "b t f" features, NaN = missing
    lengths: Tensor  # "b" int64, at least 1
    labels: Tensor | None = None  # "b t" int64, -1 = not known
    first: bool = True  # whether the state starts fresh; false where a stream goes on from the batch before
    last: bool = True  # whether the sequences end here; false where a stream goes on in the batch after
    inputs: Tensor | None = None  # "b t k" covariates that drive the start or the transitions
    noise: Tensor | None = None  # "b h" what a training step draws for each sequence, where it is drawn ahead

    @property
    def shape(self) -> tuple[int, int]:
        """The number of sequences, and of positions with the padding."""
        num, width = self.values.shape[:2]
        return num, width

    @property
    def num_tokens(self) -> int:
        """The positions without padding; waits for the device if the batch is on one."""
        return int(self.lengths.sum())

    def rows(self, which: slice) -> Batch:
        """Some of the sequences; their width stays."""
        labels = None if self.labels is None else self.labels[which]
        inputs = None if self.inputs is None else self.inputs[which]
        found = self._replace(values=self.values[which], lengths=self.lengths[which], labels=labels, inputs=inputs)
        return found if self.noise is None else found._replace(noise=self.noise[which])

    def padded_to(self, shape: tuple[int, int], filler: float, shortest: int = 1) -> Batch:
        """The batch padded with `filler` to more sequences, each of length `shortest`, and more positions."""
        num, width = shape[0] - self.shape[0], shape[1] - self.shape[1]
        edges = [0, 0] * (self.values.ndim - 2) + [0, width, 0, num]
        labels = None if self.labels is None else pad(self.labels, [0, width, 0, num], value=UNKNOWN)
        lengths = pad(self.lengths, [0, num], value=shortest)
        inputs = None if self.inputs is None else pad(self.inputs, [0, 0, 0, width, 0, num])
        values = pad(self.values, edges, value=filler)
        noise = None if self.noise is None else pad(self.noise, [0, 0, 0, num])
        return self._replace(values=values, lengths=lengths, labels=labels, inputs=inputs, noise=noise)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        inputs = None if self.inputs is None else self.inputs.to(device)
        values, lengths = self.values.to(device), self.lengths.to(device)
        noise = None if self.noise is None else self.noise.to(device)
        return self._replace(values=values, lengths=lengths, labels=labels, inputs=inputs, noise=noise)


class Batches:
    """The batches of one epoch, each padded when it is asked for: to resume, start at the index that comes next.

    `groups[i]` holds the positions, in the corpus, of the sentences of batch i.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], groups: list[list[int]], *, rounding: int = 1) -> None:
        self.groups = groups
        self._sentences, self._rounding = sentences, rounding

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, i: int) -> Batch:
        rows = [self._sentences[j] for j in self.groups[i]]
        lengths = [len(row) for row in rows]
        width = _rounded(max(lengths), self._rounding)
        words = [[*row, *[PADDING] * (width - len(row))] for row in rows]
        return Batch(torch.tensor(words, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator for one epoch: neither epochs nor neighbouring seeds share an order, and any epoch can come first."""
    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def length_batches(
    sentences: Iterable[Sequence[int]],
    max_tokens: int,
    *,
    generator: torch.Generator | None = None,
    rounding: int = 1,
    max_sentences: int | None = None,
    cost: Callable[[int], int] | None = None,
) -> Batches:
    """Batches of like lengths: sentences times width is at most `max_tokens`, but a batch holds at least one.

    With a generator, sentences of equal width are shuffled, then the batches; without, short ones come first, in file
    order. Widths are rounded up to a multiple of `rounding`, so that few shapes occur (compiled code likes that). A
    batch holds at most `max_sentences`. `cost` is what a sentence of a width takes of `max_tokens`, if not its width.
    """
    limits = {"max_tokens": max_tokens, "rounding": rounding}
    rows = _checked(sentences, **limits, **({} if max_sentences is None else {"max_sentences": max_sentences}))
    widths = [_rounded(len(row), rounding) for row in rows]
    order = sorted(_order(len(rows), generator), key=widths.__getitem__)
    groups = _cut(order, _costs(widths, cost), max_tokens, max_sentences)
    return Batches(rows, [groups[i] for i in _order(len(groups), generator)], rounding=rounding)


def equal_batches(
    sentences: Iterable[Sequence[int]],
    max_sentences: int,
    *,
    max_tokens: int | None = None,
    generator: torch.Generator | None = None,
) -> Batches:
    """Batches of equal length, the last of each length smaller, in shuffled order; by length without a generator.

    No padding, but small batches where few sentences have the same length: 36,114 sentences of the Wall Street Journal
    of at most 40 words make 2,274 batches of 16, of which 38 are not full. Source: the code of Kim, Dyer, Rush 2019.
    """
    limits = {"max_sentences": max_sentences, "max_tokens": 1 if max_tokens is None else max_tokens}
    rows = _checked(sentences, **limits)
    widths = [len(row) for row in rows]
    order = sorted(_order(len(rows), generator), key=widths.__getitem__)
    groups = []
    for width, same in itertools.groupby(order, key=widths.__getitem__):
        size = max_sentences if max_tokens is None else min(max_sentences, max(1, max_tokens // width))
        alike = list(same)
        groups += [alike[i : i + size] for i in range(0, len(alike), size)]
    return Batches(rows, [groups[i] for i in _order(len(groups), generator)])


def unsorted_batches(
    sentences: Iterable[Sequence[int]], max_tokens: int, *, generator: torch.Generator | None = None
) -> Batches:
    """Batches of consecutive sentences after a shuffle, of at most `max_tokens` padded; file order without generator.

    More padding and smaller batches than `length_batches`, hence more updates: on Penn Treebank with 256 tokens 6,520
    batches of 6.45 sentences, against 3,820. This is how the published low-rank and rank-space HMMs were trained.
    Like there, a shuffled epoch is first cut into pools of 100 times the budget, each with a smaller last batch.
    Source: Chiu, Deng, Rush 2021 and Yang, Liu, Tu 2022, by their code; their text says buckets of like lengths.
    """
    rows = _checked(sentences, max_tokens=max_tokens)
    widths = [len(row) for row in rows]
    order = _order(len(rows), generator)
    pools = [order] if generator is None else _cut(order, widths, POOL * max_tokens)
    return Batches(rows, [group for pool in pools for group in _cut(pool, widths, max_tokens)])


def streams(
    sentences: Iterable[Sequence[int]],
    num_streams: int,
    num_positions: int,
    *,
    generator: torch.Generator | None = None,
) -> list[Batch]:
    """The whole corpus as `num_streams` rows, read side by side in windows of `num_positions` tokens, in order.

    All sentences, shuffled if there is a generator, are joined and cut into streams whose sizes differ by one token at
    most, the longer first. Row i of every batch is stream i and goes on where the batch before ended (`first` is
    false); a text always goes on (`last` is false). Every token occurs once: the last window is narrower, the shorter
    streams may end one position earlier in it, or, if that position is all there is, be left out of it: then the batch
    has fewer rows, and a carried state is cut to its first `len(batch.values)` rows.
    """
    rows = _checked(sentences, num_streams=num_streams, num_positions=num_positions)
    text = list(itertools.chain.from_iterable(rows[i] for i in _order(len(rows), generator)))
    size, longer = divmod(len(text), num_streams)
    if not size:
        raise DomainError(
            f"num_streams is {num_streams}, but the corpus has {len(text)} tokens: at least one for each stream."
        )
    sizes = torch.full((num_streams,), size)
    sizes[:longer] += 1
    table = torch.full((num_streams, int(sizes[0])), PADDING)  # "b t"
    inside = torch.arange(table.shape[1]) < sizes[:, None]
    table[inside] = torch.tensor(text, dtype=torch.int64)
    batches = []
    for start in range(0, table.shape[1], num_positions):
        lengths = (sizes - start).clamp(max=num_positions)
        lengths = lengths[lengths > 0]
        window = table[: len(lengths), start : start + num_positions].contiguous()
        batches.append(Batch(window, lengths, first=start == 0, last=False))
    return batches


def frame_batch(
    frames: Frames, which: Sequence[int] | None = None, *, dtype: torch.dtype | None = None, rounding: int = 1
) -> Batch:
    """The sequences with these indices (all by default) as one batch, features in `dtype` (their own by default).

    The width is that of the longest, rounded up to a multiple of `rounding`, so that few shapes occur.
    """
    index = range(len(frames)) if which is None else which
    if not len(index):
        raise DomainError("a batch of no sequences; at least one was expected.")
    features = [frames.features[i] for i in index]
    batch = _padded_rows([torch.from_numpy(np.ascontiguousarray(x)) for x in features], 0.0, rounding)
    labels = None
    if frames.labels is not None:
        labels = _padded_rows([torch.from_numpy(frames.labels[i]) for i in index], UNKNOWN, rounding)
    lengths = torch.tensor([len(x) for x in features])
    return Batch(batch if dtype is None else batch.to(dtype), lengths, labels)


def symbol_batch(
    sequences: Sequence[Any], labels: Sequence[Any] | None = None, *, rounding: int = 1
) -> Batch:  # lists or arrays of whole numbers; -1 = missing
    """Sequences of symbols as one batch."""
    rows = [_whole(x, f"sequences[{i}]") for i, x in enumerate(sequences)]
    if not rows:
        raise DomainError("a batch of no sequences; at least one was expected.")
    known = None
    if labels is not None:
        marks = [_whole(y, f"labels[{i}]") for i, y in enumerate(labels)]
        if [len(y) for y in marks] != [len(x) for x in rows]:
            raise DataError("labels are not as long as their sequences; one a symbol was expected.")
        known = _padded_rows(marks, UNKNOWN, rounding)
    return Batch(_padded_rows(rows, UNKNOWN, rounding), torch.tensor([len(x) for x in rows]), known)


def _checked(sentences: Iterable[Sequence[int]], **sizes: int) -> list[Sequence[int]]:
    """The sentences as a list, validated."""
    for name, size in sizes.items():
        if size < 1:
            raise DomainError(f"{name} is {size}, but must be at least 1.")
    rows = list(sentences)
    if not rows:
        raise DomainError("no sentences: a batch holds at least one.")
    for i, row in enumerate(rows):
        if not len(row):
            raise DomainError(
                f"sentences[{i}] has no tokens; a sentence has at least one word, or with <eos> at least that."
            )
    return rows


def _order(num: int, generator: torch.Generator | None) -> list[int]:
    order: list[int] = (torch.arange(num) if generator is None else torch.randperm(num, generator=generator)).tolist()
    return order


def _rounded(length: int, rounding: int) -> int:
    return -(-length // rounding) * rounding


def _costs(widths: Sequence[int], cost: Callable[[int], int] | None) -> Sequence[int]:
    """What each sentence takes of a budget."""
    if cost is None:
        return widths
    prices = {width: cost(width) for width in set(widths)}
    return [prices[width] for width in widths]


def _cut(
    order: Sequence[int], widths: Sequence[int], max_tokens: int, max_sentences: int | None = None
) -> list[list[int]]:
    """Consecutive groups, each as large as the budget of padded tokens allows, at least one sentence."""
    groups: list[list[int]] = []
    widest = 0
    for i in order:
        widest = max(widest, widths[i])
        fits = groups and (max_sentences is None or len(groups[-1]) < max_sentences)
        if fits and widest * (len(groups[-1]) + 1) <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
            widest = widths[i]
    return groups


def _whole(x: Any, name: str) -> Tensor:  # "t" int64
    row = torch.as_tensor(x)
    if row.ndim != 1 or not row.numel() or row.dtype.is_floating_point or row.dtype == torch.bool:
        raise DataError(
            f"{name} has shape {tuple(row.shape)}, {row.dtype}, but whole numbers were expected, one a position."
        )
    return row.long()


def _padded_rows(rows: Sequence[Tensor], filler: float, rounding: int) -> Tensor:  # "t ..." -> "b t ..."
    if rounding < 1:
        raise DomainError(f"rounding is {rounding}, but must be at least 1.")
    width = _rounded(max(map(len, rows)), rounding)
    out = rows[0].new_full((len(rows), width, *rows[0].shape[1:]), filler)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
