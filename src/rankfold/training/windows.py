"""Batches of recordings: like lengths together, and long recordings in windows with the state carried along.

Whole recordings, or ("streams") groups of `num_streams` recordings of like lengths side by side, each cut into as many
windows of at most `window` frames as the longest of them needs. All rows of a group then begin and end together,
whatever their lengths, so that the state of one batch is that of the next. Read next: `data/frame_batch.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from rankfold.data.batch import Batch, equal_batches, frame_batch, length_batches, symbol_batch, unsorted_batches
from rankfold.data.frames import Frames
from rankfold.training.config import DataConfig


class FrameBatches:
    """The batches of one epoch, each made when it is asked for: to resume, start at the index that comes next.

    `plan[i]` holds the recordings of batch i, which of their windows it is, and of how many.
    """

    def __init__(self, frames: Frames, plan: list[tuple[list[int], int, int]], *, rounding: int, symbols: bool) -> None:
        self.plan = plan
        self._frames, self._rounding, self._symbols = frames, rounding, symbols

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> Batch:
        rows, window, num = self.plan[i]
        part = _stretch(self._frames, rows, window, num)
        if self._symbols:
            known = [np.where(np.isnan(x[:, 0]), -1, x[:, 0]).astype(np.int64) for x in part.features]
            batch = symbol_batch(known, part.labels, rounding=self._rounding)
        else:
            batch = frame_batch(part, dtype=torch.float32, rounding=self._rounding)
        return batch._replace(first=window == 0, last=window == num - 1)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def frame_batches(
    frames: Frames, config: DataConfig, *, generator: torch.Generator | None = None, symbols: bool = False
) -> FrameBatches:
    """The batches of a set, shuffled if there is a generator. `symbols`: frames are ids in one column."""
    rows = [range(length) for length in frames.lengths]
    streams = config.batching == "streams"
    sentences, tokens = config.sentences or None, config.tokens or None
    if streams:  # groups of like lengths: their number of rows is what counts
        groups = length_batches(rows, sum(frames.lengths), generator=generator, max_sentences=config.num_streams).groups
    elif config.batching == "unsorted":
        groups = unsorted_batches(rows, config.tokens, generator=generator).groups
    elif config.batching == "equal":
        groups = equal_batches(rows, sentences or 1, max_tokens=tokens, generator=generator).groups
    else:
        limit = tokens or config.batch_tokens(max(frames.lengths) + config.rounding)
        groups = length_batches(
            rows, limit, generator=generator, rounding=config.rounding, max_sentences=sentences
        ).groups
    plan = []
    for group in groups:
        for alike, num in _alike(frames.lengths, group, config.window) if streams else [(group, 1)]:
            plan += [(alike, window, num) for window in range(num)]
    return FrameBatches(frames, plan, rounding=1 if streams else config.rounding, symbols=symbols)


def _alike(lengths: list[int], group: list[int], window: int) -> Iterator[tuple[list[int], int]]:
    """A group in parts whose recordings can be cut into equally many windows, and how many; none without a frame."""
    left = sorted(group, key=lengths.__getitem__, reverse=True)
    while left:
        num = -(-lengths[left[0]] // window)
        yield [i for i in left if lengths[i] >= num], num
        left = [i for i in left if lengths[i] < num]


def _stretch(frames: Frames, rows: list[int], window: int, num: int) -> Frames:
    """One of `num` stretches of each of some recordings, of nearly equal lengths each, at least one frame."""
    pieces = [_cut(frames.lengths[i], window, num) for i in rows]
    labels = frames.labels
    return replace(
        frames,
        features=[frames.features[i][piece] for i, piece in zip(rows, pieces, strict=True)],
        names=[frames.names[i] for i in rows],
        labels=None if labels is None else [labels[i][piece] for i, piece in zip(rows, pieces, strict=True)],
        splits=None,
    )


def _cut(length: int, window: int, num: int) -> slice:
    return slice(length * window // num, length * (window + 1) // num)
