"""Cases of models of frames: their names, their random frames, their small size. Read next: `bench/cases.py`."""

from __future__ import annotations

import dataclasses

import torch

from rankfold.data.batch import Batch
from rankfold.errors import UnsupportedError
from rankfold.models.frame_config import FrameConfig

DENSITY = 0.05  # of ones among Bernoullis: about four keys of a piano


def frame_name(config: FrameConfig) -> str:
    """The sizes in words."""
    what = [config.family, f"{config.num_states:,} states"]
    if config.own_rank is not None:
        what.append(f"rank {config.rank:,}")
    if config.has_segments:
        what.append(f"durations to {config.max_duration}")
        what += [] if config.may_repeat else ["no state after itself"]
    what.append(f"{config.num_features} {config.observations}")
    return ", ".join(what) + (f", dropout {config.state_dropout:.2g}" if config.state_dropout else "")


def check_frames(config: FrameConfig) -> None:
    """Raise on choices the reference does not know."""
    if config.observations == "categorical" or (config.neural and config.observations == "gaussian"):
        raise UnsupportedError(
            f"{config.observations} observations with neural = {config.neural} have no reference here.\n"
            "  Measure Gaussian ones of free tables, or Bernoullis."
        )
    if config.feature_dropout:
        raise UnsupportedError("feature_dropout has no reference here.\n  Set it to 0.")


def draw_frames(config: FrameConfig, batch: int, length: int, device: torch.device) -> Batch:
    """Random frames, all sequences as long as the batch is wide."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, length, config.num_features)
    if config.observations == "gaussian":
        frames = torch.randn(shape, generator=generator, dtype=torch.float32)
    else:
        frames = (torch.rand(shape, generator=generator, dtype=torch.float32) < DENSITY).float()
    return Batch(frames, torch.full((batch,), length)).to(device)


def small_frames(config: FrameConfig) -> FrameConfig:
    """The same choices at a size where every check takes a moment; without dropout."""
    return dataclasses.replace(
        config,
        num_states=12,
        rank=5,
        max_duration=min(3, config.max_duration),
        num_features=4,
        dim=8,
        state_dropout=0.0,
    )
