"""Observations made of another one, `inner`: what a subclass leaves out is as there."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from rankfold.params.observations.protocol import ObservationModule
from rankfold.params.prior import Prior, Table

KIND = (
    "symbols",
    "measured",
    "values",
    "remedy",
    "complete",
    "needs",
    "capturable",
    "lags",
)  # of a class


class WrappedObservation(ObservationModule):
    """The interface of another observation, handed on; `forward` is the subclass's own."""

    def __init__(self, inner: ObservationModule) -> None:
        super().__init__()
        self.inner, self.capturable = inner, inner.capturable  # type: ignore[misc]

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" or "n" -> "n s"
        return self.inner.statistics(frames, prior)

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "z s"
        return self.inner.count(statistics, posterior)

    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z s"
        self.inner.maximise(counts, prior)

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        return self.inner.log_prior(prior)

    def rounding(self, prior: Prior) -> float:
        return self.inner.rounding(prior)

    def keep_within(self, prior: Prior) -> None:
        self.inner.keep_within(prior)

    def move_to(self, frames: Any) -> None:  # "n f"
        self.inner.move_to(frames)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        self.inner.initialise(frames, states, means, prior, rng, near=near)

    def tables(self) -> dict[str, Table]:
        return dict(self.inner.tables())

    def fill(self, **tables: Tensor) -> None:
        self.inner.fill(**tables)

    @property
    def num_free(self) -> int:
        return self.inner.num_free
