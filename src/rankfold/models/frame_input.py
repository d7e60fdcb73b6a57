"""What goes into a model of frames, and the checks at its door. Read next: `models/frame_model.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.data.batch import Batch, frame_batch, symbol_batch
from rankfold.data.frames import Frames, frames_of
from rankfold.errors import DomainError, ShapeError, UnsupportedError, may_look
from rankfold.models.frame_config import FrameConfig


def any_batch(frames: Any, labels: Any, config: FrameConfig, dtype: torch.dtype) -> Batch:
    """One array or a list of them, `Frames`, or lists of symbols, as a checked batch in the model's dtype."""
    if config.observation.symbols:
        one = isinstance(frames, np.ndarray | Tensor) and frames.ndim == 1
        batch = symbol_batch([frames] if one else frames, [labels] if one and labels is not None else labels)
    elif isinstance(frames, Frames):
        if labels is not None:
            raise UnsupportedError("Frames hold their own labels: frames_of(features, labels=...).")
        batch = frame_batch(frames, dtype=dtype)
    else:
        batch = frame_batch(frames_of(frames, labels=labels), dtype=dtype)
    expect_frames(batch, config)
    return batch


def padded_missing(batch: Batch) -> Tensor:  # "b t f" or "b t"
    """The frames, missing beyond their length: nothing that stands there reaches a product."""
    inside = torch.arange(batch.values.shape[1], device=batch.lengths.device) < batch.lengths[:, None]
    if batch.values.ndim == 2:
        return batch.values.masked_fill(~inside, -1)
    return batch.values.masked_fill(~inside.unsqueeze(-1), float("nan"))


def expect_frames(batch: Batch, config: FrameConfig) -> None:
    """Raise unless the frames are such as the model has seen: their width, their values, their lengths."""
    frames, width, kind = batch.values, config.num_features, config.observation
    wanted = '"b t" whole numbers' if kind.symbols else f'"b t f" floats with f = {width}'
    fits = (
        frames.ndim == 2 and not frames.dtype.is_floating_point
        if kind.symbols
        else frames.ndim == 3 and frames.shape[2] == width and frames.dtype.is_floating_point
    )
    if not fits or 0 in frames.shape:
        raise ShapeError(
            f"frames have shape {tuple(frames.shape)}, {frames.dtype}, but {wanted} were expected, at least one."
        )
    if not may_look(frames):
        return
    shown = padded_missing(batch)
    if kind.symbols:
        low, high = int(shown.min()), int(shown.max())
        if low < -1 or high >= width:
            raise DomainError(
                f"a symbol is {low if low < -1 else high}, but this model knows 0 to {width - 1}; -1 is a missing one."
            )
        return
    bad = kind.invalid(shown)
    if bool(bad.any()):
        i, t, f = bad.nonzero()[0].tolist()
        raise DomainError(
            f"sequence {i}, frame {t}, feature {f} is {float(shown[i, t, f]):g}, but "
            f"features are {kind.values}, or NaN where missing."
        )
