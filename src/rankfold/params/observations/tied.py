"""Observations that several states share: one distribution for each group of states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import ObservationModule, one_hot
from rankfold.params.observations.wrapped import KIND, WrappedObservation
from rankfold.params.prior import Prior


@dataclass(frozen=True, eq=False)
class Tied:
    """The distributions of groups, read by states."""

    groups: Any
    index: Tensor  # "z"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" or "b t" -> "b t z"
        found: Tensor = self.groups.log_obs(frames)
        return found.index_select(-1, self.index)

    def __getattr__(self, name: str) -> Any:
        """Samples of states are samples of their groups."""
        if not name.startswith("sample"):
            raise AttributeError(name)
        return partial(_by_group, getattr(self.groups, name), self.index)


def _by_group(draw: Any, index: Tensor, states: Tensor, *how: Any) -> Any:
    return draw(index[states], *how)


class TiedObservation(WrappedObservation):
    """State z has the distribution of group `index[z]`; counts, tables and priors are those of the groups.

    `initialise` takes the groups of frames, and means of groups.
    """

    index: Tensor  # "z"

    def __init__(self, groups: ObservationModule, index: Tensor) -> None:  # "z" int64
        super().__init__(groups)
        self.register_buffer("index", index, persistent=False)
        for name in KIND:
            setattr(self, name, getattr(groups, name))

    def forward(self, keep: Tensor | None = None) -> Tied:
        return Tied(self.inner(), take_rows(self.index, keep))

    def coordinates(self, frames: Tensor) -> Tensor:  # "n f" -> "n g"
        return self.inner.coordinates(frames)

    def sequence_statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "b t f" or "b t" -> "(t b) s"
        return self.inner.sequence_statistics(frames, prior)

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "g s"
        members = one_hot(self.index, int(self.index.max()) + 1)  # "z g"
        return self.inner.count(statistics, posterior.double() @ members)


def members_in_order(groups: Tensor, index: Tensor) -> Tensor:  # "t", "z" -> "t"
    """States for groups of frames (-1: unknown): along a run of a group its states in order, then the last one."""
    members = [(index == g).nonzero()[:, 0].tolist() for g in range(int(index.max()) + 1)]
    found, before, place = [], -1, 0
    for g in groups.tolist():
        place = place + 1 if g == before else 0
        found.append(-1 if g < 0 else members[g][min(place, len(members[g]) - 1)])
        before = g
    return torch.tensor(found, dtype=groups.dtype, device=groups.device)
