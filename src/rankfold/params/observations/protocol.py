"""What a model of frames asks of its observations."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Observation(Protocol):
    """The distribution of a frame in every state."""

    def log_obs(self, frames: Tensor) -> Tensor: ...  # "b t f" or "b t" -> "b t z"; a missing frame is a row of zeros
    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor: ...  # "n" -> "n f" or "n"
