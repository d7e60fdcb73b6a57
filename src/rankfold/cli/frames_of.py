"""The model of frames a command is told of, and recordings as it knows them: read, on its scale, decoded in batches.

Read next: `data/frame_space.py`, `training/recordings.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.cli.model_of import CONFIG, find_device, model_folder
from rankfold.data.batch import Batch
from rankfold.data.frame_files import Header
from rankfold.data.frame_space import FILE, FrameSpace
from rankfold.data.frames import Frames, Missing
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.frame_config import FrameConfig, FrameFamily
from rankfold.models.frame_model import FrameModel
from rankfold.training.config import DataConfig
from rankfold.training.recordings import expect_observed, frame_batches, read_splits

ENTRIES = 2**24  # of a table "b t z" that is decoded at once


class Asked(NamedTuple):
    """A model of frames, and the recordings it is asked about."""

    model: FrameModel
    space: FrameSpace
    given: Frames  # as they were read
    frames: Frames  # on the scale of the model


def is_frames(path: Path) -> bool:
    """Whether the model of a run or folder is one of frames."""
    try:
        family = json.loads((model_folder(path) / CONFIG).read_bytes())["model"]["family"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # whoever loads it says what is wrong
    return family in get_args(FrameFamily)


def load_frames_model(path: Path, device: str = "auto") -> tuple[FrameModel, FrameSpace]:
    """The model of a run or folder, and what its features mean."""
    folder = model_folder(path)
    if not is_frames(path):
        raise UnsupportedError(
            f"{folder} holds a model of words, but this is asked of models of frames.\n"
            "  Train one with a recipe of the family hsmm, lhsmm, frame_hmm or frame_lhmm: rankfold train --list."
        )
    model = FrameModel.from_pretrained(folder, device=find_device(device))
    if model.space is None:
        config = model.config
        symbols = config.observation.symbols
        if not (folder / FILE).exists():  # made in Python: features as they are
            return model, FrameSpace(1 if symbols else config.num_features)
    assert model.space is not None
    return model, model.space


def ask(
    path: Path,
    data: Path,
    *,
    split: str | None = None,
    missing: Missing = "error",
    header: Header = "auto",
    device: str = "auto",
) -> Asked:
    """The model, and the recordings of a file or folder: those of `split`, or all where there are no splits."""
    if str(data) == "-":
        raise DataError("recordings are read from a file or a folder, not from standard input: give its name.")
    model, space = load_frames_model(path, device)
    found = read_splits(data, missing=missing, header=header)
    if split is not None and list(found) == ["train"] and split != "train":
        given = found["train"]  # without splits of its own
        if given.splits is not None:
            raise DataError(f"{data}: no split {split!r}; there is train alone.\n  Say --split train.")
    elif split is not None:
        if split not in found:
            raise DataError(f"{data}: no split {split!r}; there are {', '.join(found)}.\n  Say which with --split.")
        given = found[split]
    elif len(found) > 1:
        raise DataError(f"{data}: has the splits {', '.join(found)}.\n  Say which with --split.")
    else:
        given = next(iter(found.values()))
    expect_observed(given, model.config)
    return Asked(model, space, given, space.apply(given))


def batches(model: FrameModel, frames: Frames) -> Iterator[tuple[list[int], Batch]]:
    """Whole recordings of like lengths, as many at once as are cheap to decode, with their places."""
    tokens = max(1, ENTRIES // model.config.num_states)
    found = frame_batches(frames, DataConfig(tokens=tokens), symbols=model.observation.symbols)
    for (places, _, _), batch in zip(found.plan, found, strict=True):
        yield places, batch._replace(labels=None).to(model.device)


def each(model: FrameModel, frames: Frames, question: Callable[[Batch], Sequence[Any]]) -> list[Any]:
    """What a question says of every recording, in their order; the question is asked of batches."""
    answers: list[Any] = [None] * len(frames)
    with torch.no_grad():
        for places, batch in batches(model, frames):
            for place, answer in zip(places, question(batch), strict=True):
                answers[place] = answer
    return answers


def states_of(model: FrameModel, frames: Frames) -> list[NDArray[np.int64]]:
    """The states "t" of the most probable path or segmentation of every recording; raises on an impossible one."""
    rows = each(model, frames, lambda batch: list(model.states(batch).cpu()))
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
