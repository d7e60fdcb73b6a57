"""Models of frames and batches for them, small and drawn: what tests of graphs share with and without a GPU."""

from __future__ import annotations

from typing import Any

import torch

from rankfold.data.batch import Batch
from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel

FAMILIES = ("hsmm", "lhsmm", "frame_hmm", "frame_lhmm")
OBSERVATIONS = ("gaussian", "bernoulli", "categorical")


def drawn_model(family: str, observations: str, **settings: Any) -> FrameModel:
    """Of 6 states and 4 features, or symbols."""
    config = FrameConfig(
        family=family,  # type: ignore[arg-type]
        observations=observations,  # type: ignore[arg-type]
        num_states=6,
        rank=3,
        max_duration=5,
        num_features=4,
        **settings,
    )
    return build_model(config, seed=3)


def drawn_batch(observations: str, lengths: list[int], *, seed: int = 0, labels: bool = False) -> Batch:
    """Sequences of these lengths, one feature missing and one frame; what lies beyond a length is not to be read."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    if observations == "categorical":
        frames = torch.randint(4, shape, generator=draw)
        frames[0, -1] = -1
    else:
        frames = torch.randn(*shape, 4, generator=draw)
        if observations == "bernoulli":
            frames = (frames > 0).float()
        frames[0, 0, 1] = float("nan")
        frames[-1, -1] = float("nan")
    known = torch.randint(-1, 6, shape, generator=draw) if labels else None
    return Batch(frames, torch.tensor(lengths), known)
