"""Frames that are symbols: the emissions of words, with symbols that may be missing.

Read next: `params/emissions.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.numerics.log_space import pick
from rankfold.params.emissions import CategoricalEmission, Emission, FreeEmission


class Categorical(NamedTuple):
    """The distribution of symbols in the states that are kept; -1 is a missing symbol."""

    emission: Emission

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t" -> "b t z"
        missing = frames < 0
        return self.emission.log_obs(frames.masked_fill(missing, 0)).masked_fill(missing.unsqueeze(-1), 0.0)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n"
        return pick(self.emission.log_rows(states), generator)


class CategoricalObservation(nn.Module):
    """Softmax over the symbols, of free logits or of inner products with a network."""

    def __init__(self, emission: FreeEmission | CategoricalEmission) -> None:
        super().__init__()
        self.emission = emission

    def forward(self, keep: Tensor | None = None) -> Categorical:
        return Categorical(self.emission(keep))

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t" -> "b t z"
        """The log-probability of every symbol in every state."""
        return self.forward().log_obs(frames)
