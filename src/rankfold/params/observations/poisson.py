"""Counts with a Poisson distribution, features independent: masses as one matrix product."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import ObservationModule, Sizes, draw_table, means_of
from rankfold.params.prior import Prior, Table, weighted_logs


class Poisson(NamedTuple):
    """The logarithms of the rates of the states that dropout keeps; -inf: a rate of 0."""

    log_rate: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """sum_f x log rate - rate - log x! over the features that are not NaN; in float64, whose terms cancel."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double(), 0.0)
        log_rate = self.log_rate.double()
        never = log_rate.detach() == float("-inf")
        total = x @ log_rate.masked_fill(never, 0.0).mT - here.double() @ log_rate.exp().mT
        total = total - torch.lgamma(x + 1).sum(-1, keepdim=True)
        against = (x > 0).double() @ never.double().mT
        return total.masked_fill(against > 0, float("-inf")).to(self.log_rate.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return torch.poisson(self.log_rate.exp()[states], generator=generator)


class CountObservation(ObservationModule):
    """Frames of counts, from one table "z f"."""

    values = "whole numbers of at least 0"
    remedy = 'Give counts as they are; for other numbers use observations="gaussian".'

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Standard normal logits, or logarithms of rates; with `init` "papers" all are 0."""
        return cls(draw_table(sizes, generator))

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return ~(((frames >= 0) & (frames == frames.floor()) & frames.isfinite()) | frames.isnan())


class PoissonObservation(CountObservation):
    """Free logarithms of rates "z f". `smoothing` counts as so many frames of the mean of all in each state."""

    def __init__(self, log_rate: Tensor) -> None:  # "z f"
        super().__init__()
        self.log_rate = nn.Parameter(log_rate)

    def forward(self, keep: Tensor | None = None) -> Poisson:
        return Poisson(take_rows(self.log_rate, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 2f"
        """The counts, and whether each is there."""
        here = ~frames.isnan()
        return torch.cat([torch.where(here, frames, 0.0), here.to(frames.dtype)], 1).double()

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 2f"
        """The mean count, with `smoothing` frames of the mean of all."""
        if "rate" in prior.fixed:
            return
        total, number = counts.chunk(2, 1)
        total, number = total + prior.smoothing * prior.centre, number + prior.smoothing
        rate = total / torch.where(number > 0, number, 1.0)
        self.log_rate.copy_(torch.where(number > 0, rate.log(), self.log_rate.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """smoothing times the sum of m log rate - rate, m the mean of all frames: a gamma distribution."""
        if not prior.smoothing:
            return super().log_prior(prior)
        log_rate = self.log_rate.double()
        return prior.smoothing * (weighted_logs(prior.centre, log_rate) - log_rate.exp().sum())

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn rates are taken as multiples of the mean count, of one more frame with a 1."""
        mean = torch.from_numpy((frames.sum(0) + 1) / (len(frames) + 1)).to(self.log_rate.device)
        with torch.no_grad():
            self.log_rate.add_(mean.log())

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The mean counts as if each state had seen one more frame, of the mean in all; no rate begins at 0."""
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        overall = (frames.sum(0) + 1) / (len(frames) + 1)
        self.fill(rate=(means_of(frames, states, means) * number + overall) / (number + 1))

    def tables(self) -> dict[str, Table]:
        return {"rate": Table(self.log_rate.detach().double().exp(), positive="or zero")}

    def fill(self, *, rate: Tensor) -> None:  # type: ignore[override]
        """Set the rates, "z f"."""
        with torch.no_grad():
            self.log_rate.copy_(rate.double().log())
