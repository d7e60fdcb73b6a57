"""Recordings decoded by a model of frames: an answer for each, the best states, and why there may be none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.data.frames import Frames
from rankfold.decoding.segment_table import ScoredSegment
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


def num_parts(model: FrameModel) -> int:
    """How many states stand for one label (`data.parts`); the questions below join them to one."""
    return 1 if model.space is None else model.space.parts


def best_states(model: FrameModel, frames: Frames) -> list[NDArray[np.int64]]:
    """The states "t" of the most probable path or segmentation of every recording; raises on an impossible one."""
    rows = answer_recordings(model, frames, lambda batch: list(model.states(batch).cpu()))
    found = [row[:length].numpy() for row, length in zip(rows, frames.lengths, strict=True)]
    for states, name in zip(found, frames.names, strict=True):
        if states[0] < 0:
            raise DomainError(impossible(name, len(states), model.config))
    return [states // num_parts(model) for states in found]


def state_posteriors(model: FrameModel, batch: Batch) -> Tensor:  # "b t z"
    """The probability of every state at every frame, given its whole recording."""
    found = model.posterior(batch).cpu()
    return found.reshape(*found.shape[:2], -1, num_parts(model)).sum(3)


def segment_tables(model: FrameModel, batch: Batch) -> list[list[ScoredSegment]]:
    """The table of each recording's segments, as `segment_table` has it; the parts of a segment are joined.

    A segment of parts is a stretch of one label, and its posterior that of exactly this stretch.
    Cost: with parts a forward pass more for each segment of the recording with the most of them.
    """
    num = num_parts(model)
    tables = model.segments(batch)
    if num == 1:
        return tables
    runs = [[list(group) for _, group in itertools.groupby(rows, key=lambda row: row.state // num)] for rows in tables]
    shares = state_posteriors(model, batch)
    with torch.no_grad():
        total = model.log_z(model.potentials(batch))
    own = torch.arange(model.config.num_states, device=model.device) // num
    found: list[list[ScoredSegment]] = [[] for _ in runs]
    for turn in range(max(map(len, runs))):
        allowed = torch.ones((*batch.shape, model.config.num_states), dtype=torch.bool, device=model.device)
        rows = [(i, run[turn]) for i, run in enumerate(runs) if turn < len(run)]
        for i, parts in rows:
            start, end, same = parts[0].start, parts[-1].end, own == parts[0].state // num
            allowed[i, start:end] = same
            allowed[i, max(start - 1, 0) : start] = ~same
            allowed[i, end : end + 1] = ~same
        with torch.no_grad():
            share = (model.log_z(model.potentials(batch, allowed=allowed)) - total).exp().tolist()
        for i, parts in rows:
            start, end, state = parts[0].start, parts[-1].end, parts[0].state // num
            found[i].append(ScoredSegment(start, end, state, share[i], float(shares[i, start:end, state].mean())))
    return found


def impossible(name: str, length: int, config: FrameConfig) -> str:
    """Why a recording may have no probability at all."""
    why = (
        f"Segments last at most {config.max_duration} frames; model.censored=true lets the end cut the last one"
        if config.has_segments
        else "Training left probabilities at 0; train.smoothing above 0 leaves none"
    )
    return f"recording {name!r} ({length:,} frames) has probability 0 under the model: it has no segments.\n  {why}."
