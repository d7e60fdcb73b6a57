"""Batches of frames: sequences of feature vectors or of symbols, padded to a common width.

Read next: `data/frames.py`, which checks what comes in; `models/frame_model.py`, which takes a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankfold.data.frames import UNKNOWN, Frames
from rankfold.errors import DataError, DomainError


class FrameBatch(NamedTuple):
    """Sequences of frames; positions beyond a length are never read."""

    frames: Tensor  # "b t f" floats, NaN = missing; or "b t" int64 symbols, -1 = missing
    lengths: Tensor  # "b" int64, at least 1
    labels: Tensor | None = None  # "b t" int64, -1 = not known
    first: bool = True  # whether the state starts fresh; false where a stream goes on from the batch before
    last: bool = True  # whether the sequences end here; false where a stream goes on in the batch after

    @property
    def num_frames(self) -> int:
        """The frames without padding; waits for the device if the batch is on one."""
        return int(self.lengths.sum())

    def to(self, device: torch.device | str) -> FrameBatch:
        """The same batch on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        return self._replace(frames=self.frames.to(device), lengths=self.lengths.to(device), labels=labels)


def frame_batch(
    frames: Frames, which: Sequence[int] | None = None, *, dtype: torch.dtype | None = None, rounding: int = 1
) -> FrameBatch:
    """The sequences with these indices (all by default) as one batch, features in `dtype` (their own by default).

    The width is that of the longest, rounded up to a multiple of `rounding`, so that few shapes occur.
    """
    index = range(len(frames)) if which is None else which
    if not len(index):
        raise DomainError("a batch of no sequences; at least one was expected.")
    features = [frames.features[i] for i in index]
    batch = _padded([torch.from_numpy(np.ascontiguousarray(x)) for x in features], 0.0, rounding)
    labels = None
    if frames.labels is not None:
        labels = _padded([torch.from_numpy(frames.labels[i]) for i in index], UNKNOWN, rounding)
    lengths = torch.tensor([len(x) for x in features])
    return FrameBatch(batch if dtype is None else batch.to(dtype), lengths, labels)


def symbol_batch(
    sequences: Sequence[Any], labels: Sequence[Any] | None = None, *, rounding: int = 1
) -> FrameBatch:  # lists or arrays of whole numbers; -1 = missing
    """Sequences of symbols as one batch."""
    rows = [_whole(x, f"sequences[{i}]") for i, x in enumerate(sequences)]
    if not rows:
        raise DomainError("a batch of no sequences; at least one was expected.")
    known = None
    if labels is not None:
        marks = [_whole(y, f"labels[{i}]") for i, y in enumerate(labels)]
        if [len(y) for y in marks] != [len(x) for x in rows]:
            raise DataError("labels are not as long as their sequences; one a symbol was expected.")
        known = _padded(marks, UNKNOWN, rounding)
    return FrameBatch(_padded(rows, UNKNOWN, rounding), torch.tensor([len(x) for x in rows]), known)


def _whole(x: Any, name: str) -> Tensor:  # "t" int64
    row = torch.as_tensor(x)
    if row.ndim != 1 or not row.numel() or row.dtype.is_floating_point or row.dtype == torch.bool:
        raise DataError(
            f"{name} has shape {tuple(row.shape)}, {row.dtype}, but whole numbers were expected, one a position."
        )
    return row.long()


def _padded(rows: Sequence[Tensor], filler: float, rounding: int) -> Tensor:  # "t ..." -> "b t ..."
    if rounding < 1:
        raise DomainError(f"rounding is {rounding}, but must be at least 1.")
    width = -(-max(map(len, rows)) // rounding) * rounding
    out = rows[0].new_full((len(rows), width, *rows[0].shape[1:]), filler)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
