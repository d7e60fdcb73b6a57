"""Recordings decoded by a model of frames: an answer for each, the best states, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.batch import Batch
from rankfold.data.frames import Frames
from rankfold.errors import DomainError
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.models.strings import answer_each
from rankfold.training.config import DataConfig
from rankfold.training.recordings import frame_batches

ENTRIES = 2**24  # of a table "b t z" that is decoded at once


def answer_recordings(model: FrameModel, frames: Frames, question: Callable[[Batch], Iterable[Any]]) -> list[Any]:
    """The answer to each recording; batches are of like lengths, as many as are cheap to decode at once."""
    tokens = max(1, ENTRIES // model.config.num_states)
    cut = frame_batches(frames, DataConfig(tokens=tokens), symbols=model.observation.symbols)
    without_labels = (batch._replace(labels=None) for batch in cut)
    return answer_each(model, [places for places, _, _ in cut.plan], without_labels, question)


def best_states(model: FrameModel, frames: Frames) -> list[NDArray[np.int64]]:
    """The states "t" of the most probable path or segmentation of every recording; raises on an impossible one."""
    rows = answer_recordings(model, frames, lambda batch: list(model.states(batch).cpu()))
    found = [row[:length].numpy() for row, length in zip(rows, frames.lengths, strict=True)]
    for states, name in zip(found, frames.names, strict=True):
        if states[0] < 0:
            raise DomainError(impossible(name, len(states), model.config))
    return found


def impossible(name: str, length: int, config: FrameConfig) -> str:
    """Why a recording may have no probability at all."""
    why = (
        f"Segments last at most {config.max_duration} frames; model.censored=true lets the end cut the last one"
        if config.has_segments
        else "Training left probabilities at 0; train.smoothing above 0 leaves none"
    )
    return f"recording {name!r} ({length:,} frames) has probability 0 under the model: it has no segments.\n  {why}."
