"""`rankfold sample` of a model of frames: recordings drawn from it, with their states.

Read next: `models/frame_model.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.analysis.segmentation import segments_of
from rankfold.cli.frames_of import load_frames_model
from rankfold.errors import DataError, DomainError, expect_absent


def sample_recordings(
    path: Path, num: int = 5, *, length: int = 100, seed: int = 1, device: str = "auto"
) -> dict[str, Any]:
    """Features "t f" in the units of the training set (where that has one scale) and states "t" of each recording."""
    if num < 1 or length < 1:
        raise DomainError(f"--num is {num} and --max-length {length}, but both must be at least 1.")
    model, space = load_frames_model(path, device)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    drawn = model.sample(length, num, generator=generator)
    features = [space.undo(x.cpu().numpy()) for x, _ in drawn]
    return {
        "seed": seed,
        "label_names": None if not space.labelled else space.label_names,
        "as_prepared": space.standardise == "recording" or space.smooth > 1,
        "recordings": [{"features": x, "states": z.cpu().numpy()} for x, (_, z) in zip(features, drawn, strict=True)],
    }


def expect_npz(path: Path) -> None:
    """Raise unless recordings can be written there: as a .npz, where nothing is yet."""
    if path.suffix != ".npz":
        raise DataError(f"--out is {path}, but recordings are written as .npz.")
    expect_absent(path)


def save_recordings(drawn: dict[str, Any], path: Path) -> Path:
    """Write them as a .npz that `rankfold train` and `segment` read, states for labels; no file is written over."""
    expect_npz(path)
    rows = drawn["recordings"]
    features = [x["features"] if x["features"].ndim == 2 else x["features"][:, None] for x in rows]
    np.savez(
        path,
        features=np.concatenate(features),
        labels=np.concatenate([row["states"] for row in rows]),
        lengths=np.array([len(x) for x in features]),
    )
    return path


def plain(drawn: dict[str, Any]) -> dict[str, Any]:
    """The same as lists."""
    rows = [{name: x.tolist() for name, x in row.items()} for row in drawn["recordings"]]
    return {**drawn, "recordings": rows}


def recordings_text(drawn: dict[str, Any]) -> str:
    """A line a recording: its states and how many frames each lasts."""
    names = drawn["label_names"]

    def name(state: int) -> str:
        return names[state] if names is not None and state < len(names) else str(state)

    return "\n".join(
        " ".join(f"{name(s.label)}:{s.end - s.start}" for s in segments_of(row["states"]))
        for row in drawn["recordings"]
    )
