"""Recordings small enough for a test: three states that stand apart, in a file or in memory; and a tiny recipe."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.models.config import FrameConfig
from rankfold.training.config import Config, DataConfig, TrainConfig

CENTRES = np.array([[0.0, 0.0, 1.0], [4.0, 0.0, 0.0], [0.0, 4.0, -1.0]])
NAMES = ("sit", "walk", "turn")
NUM_TRAIN, NUM_VALID, NUM_TEST = 8, 3, 2


def recording(seed: int) -> tuple[Any, Any]:
    """Frames and labels of 20 to 40 frames: segments of 3 to 8 frames, no label twice in a row."""
    rng = np.random.default_rng(seed)
    labels: list[int] = []
    length, label = 20 + seed % 21, int(rng.integers(3))
    while len(labels) < length:
        labels += [label] * int(rng.integers(3, 9))
        label = (label + int(rng.integers(1, 3))) % 3
    y = np.array(labels[:length])
    return CENTRES[y] * 10 + 50 + rng.standard_normal((length, 3)) * 8, y


def write_recordings(path: Path, *, labels: bool = True, splits: bool = True) -> Path:
    """A .npz with 13 recordings."""
    rows = [recording(seed) for seed in range(NUM_TRAIN + NUM_VALID + NUM_TEST)]
    content: dict[str, Any] = {
        "features": np.concatenate([x for x, _ in rows]).astype(np.float32),
        "lengths": np.array([len(x) for x, _ in rows]),
        "seq_id": np.array([f"r{i}" for i in range(len(rows))]),
        "fps": 10.0,
    }
    if labels:
        content |= {"labels": np.concatenate([y for _, y in rows]), "label_names": np.array(NAMES)}
    if splits:
        content["split"] = np.repeat([0, 1, 2], [NUM_TRAIN, NUM_VALID, NUM_TEST])
    np.savez(path, **content)
    return path


MODEL: dict[str, Any] = {"family": "hsmm", "num_states": 3, "max_duration": 10, "rank": 2}
DATA: dict[str, Any] = {"tokens": 100, "num_streams": 3, "window": 7}
TRAIN: dict[str, Any] = {
    "optimizer": "adam",
    "updates": 7,
    "seed": 3,
    "lr": 0.05,
    "evaluate_every": 3,
    "checkpoint_every": 2,
    "log_every": 2,
    "device": "cpu",
}


def tiny(**settings: Any) -> Config:
    """The tiny recipe, with settings in whichever table has them."""
    tables: dict[str, tuple[type[Any], dict[str, Any]]] = {
        "model": (FrameConfig, MODEL),
        "data": (DataConfig, DATA),
        "train": (TrainConfig, TRAIN),
    }
    made: dict[str, Any] = {}
    for table, (cls, defaults) in tables.items():
        fields = {field.name for field in dataclasses.fields(cls)}
        own = {name: settings.pop(name) for name in list(settings) if name in fields}
        made[table] = cls(**{**defaults, **own})
    assert not settings, f"no table has {settings}"
    return Config(**made)
