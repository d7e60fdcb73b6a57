"""Counts of several kinds, given how many there are of all together: multinomial frames."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.poisson import CountObservation
from rankfold.params.prior import Prior, Table, log_shares


class Multinomial(NamedTuple):
    """The log-probability of each kind in the states that dropout keeps."""

    log_probability: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """log n! / prod x_f! + sum_f x_f log p_f, n the sum of the frame; 0 where it is missing."""
        here = ~frames.isnan().any(-1, keepdim=True)
        x, log_p = torch.where(here, frames.double(), 0.0), self.log_probability.double()
        never = log_p.detach() == float("-inf")
        ways = torch.lgamma(x.sum(-1, keepdim=True) + 1) - torch.lgamma(x + 1).sum(-1, keepdim=True)
        total = ways + x @ log_p.masked_fill(never, 0.0).mT
        against = (x > 0).double() @ never.double().mT
        return total.masked_fill(against > 0, float("-inf")).to(self.log_probability.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return self.sample_trials(states, 1, generator)

    def sample_trials(self, states: Tensor, trials: int, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        """Frames of so many trials each."""
        p = self.log_probability.exp()[states]
        drawn = torch.multinomial(p, trials, replacement=True, generator=generator)
        return torch.zeros_like(p).scatter_add_(1, drawn, torch.ones_like(drawn, dtype=p.dtype))


class MultinomialObservation(CountObservation):
    """Softmax of free logits "z f". How many trials a frame has is given, not modelled; a sample has one."""

    complete = True
    joins = False
    priors = ("emission",)

    def __init__(self, logits: Tensor) -> None:  # "z f"
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, keep: Tensor | None = None) -> Multinomial:
        return Multinomial(take_rows(self.logits, keep).log_softmax(1))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n f"
        """The counts."""
        return torch.where(frames.isnan(), 0.0, frames).double()

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z f"
        """The share of each kind, with the prior's counts."""
        if "probability" not in prior.fixed:
            self.logits.copy_(log_shares(counts + prior.smoothing + prior.emission, self.logits))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        return prior.of_shares(self.logits, prior.emission)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The shares of each state's counts and of one more frame, of the mean of all."""
        one_each = (states[:, None] == torch.arange(len(means), device=states.device)).to(frames.dtype)
        overall = (frames.sum(0) + 1) / len(frames)
        table = one_each.mT @ frames + overall
        self.fill(probability=table / table.sum(1, keepdim=True))

    def tables(self) -> dict[str, Table]:
        return {"probability": Table(self.logits.detach().double().softmax(1), axis=1)}

    def fill(self, *, probability: Tensor) -> None:  # type: ignore[override]
        """Set the probabilities, "z f"."""
        with torch.no_grad():
            self.logits.copy_(probability.double().log())

    @property
    def num_free(self) -> int:
        return self.logits.numel() - len(self.logits)
