"""What frames weigh in each state, and what maximises their expected log-weight: three exponential families.

Frames are prepared once, to the statistics "n s" of their family; then the log-weights of all states are one product
with their parameters, and the expected statistics one product with the posteriors. All in float64, whatever the model
is: squares cancel, and 1 - p has no digits to spare. Read next: `em.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankfold.errors import DomainError


class CollapseError(DomainError):
    """A start from which no maximum is reached; others may reach one."""


class Observed(NamedTuple):
    """The parameters of all states; which of them are there says the family."""

    mean: Tensor | None = None  # "z f"
    variance: Tensor | None = None  # "z f", or "f" where it is tied
    probability: Tensor | None = None  # "z f": of a 1; "z v": of a symbol


class Family(Protocol):
    """What a kind of observation has to know."""

    def prepare(self, frames: Tensor) -> Tensor:
        """The statistics "t s" of frames "t f", or symbols "t" as they are; 0 for a missing frame."""

    def log_obs(self, data: Tensor, at: Observed) -> Tensor:  # "... s" -> "... z"
        """The log-weight of every frame in every state."""

    def count(self, data: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "z s"
        """The expected statistics of every state."""

    def maximise(self, counts: Tensor, at: Observed) -> Observed:  # "z s"
        """The parameters that maximise the expected log-weight; a state nobody visits keeps its own."""

    def log_prior(self, at: Observed) -> Tensor:  # ""
        """The log-density of the prior, up to a constant; 0 without one. Differentiable in the parameters."""

    def size(self, at: Observed) -> float:
        """How large the terms are that a frame's log-weight is the sum of, where they may cancel; else 0."""


@dataclass(frozen=True)
class Gaussian:
    """Independent normal features. Statistics: x^2, x, 1 of each feature that is there, x less the mean of all frames.

    `floor` "f" bounds the variances from below: the maximum under that bound is the maximum without, cut off, so the
    likelihood still never decreases. `prior_frames` adds so many frames of the variance `spread` "f" to every state
    (an inverse gamma prior of the variances).
    """

    shift: Tensor  # "f"
    spread: Tensor  # "f"
    floor: Tensor  # "f"
    tied: bool = False
    prior_frames: float = 0.0

    def prepare(self, frames: Tensor) -> Tensor:
        here = ~frames.isnan()
        x = torch.where(here, frames.double() - self.shift, 0.0)
        return torch.cat([x * x, x, here.to(x.dtype)], 1)

    def log_obs(self, data: Tensor, at: Observed) -> Tensor:
        assert at.mean is not None
        assert at.variance is not None
        mean, precision = at.mean - self.shift, 1 / at.variance.expand_as(at.mean)
        level = mean * mean * precision - precision.log() + math.log(2 * math.pi)
        return data @ torch.cat([-precision / 2, mean * precision, -level / 2], 1).mT

    def count(self, data: Tensor, posterior: Tensor) -> Tensor:
        return posterior.double().mT @ data

    def maximise(self, counts: Tensor, at: Observed) -> Observed:
        assert at.mean is not None
        assert at.variance is not None
        squares, sums, number = counts.chunk(3, 1)
        seen = number > 0
        mean = torch.where(seen, sums / torch.where(seen, number, 1.0), at.mean - self.shift)
        scatter = squares - 2 * mean * sums + mean * mean * number
        if self.tied:
            scatter, number, seen = scatter.sum(0), number.sum(0), seen.any(0)
            prior_frames = self.prior_frames * len(mean)
        else:
            prior_frames = self.prior_frames
        total = number + prior_frames
        variance = (scatter + prior_frames * self.spread) / torch.where(total > 0, total, 1.0)
        variance = torch.where(seen, torch.maximum(variance, self.floor), at.variance)
        # What rounding leaves of a difference of sums that are equal: below it a variance is none.
        rounding = 4 * torch.finfo(mean.dtype).eps * (mean * mean + self.spread)
        collapsed = variance <= (rounding.amax(0) if self.tied else rounding)
        if bool(collapsed.any()):
            *state, feature = collapsed.nonzero()[0].tolist()
            whose = f"state {state[0]}" if state else "all states"
            raise CollapseError(
                f"the variance of feature {feature} in {whose} went to 0: the likelihood has no maximum.\n"
                "  Give variances a floor (min_variance above 0), a prior (variance_prior above 0), or fewer states."
            )
        return Observed(mean=mean + self.shift, variance=variance)

    def log_prior(self, at: Observed) -> Tensor:
        assert at.mean is not None
        assert at.variance is not None
        if not self.prior_frames:
            return at.mean.new_zeros(())
        variance = at.variance.expand_as(at.mean)
        return -self.prior_frames / 2 * (variance.log() + self.spread / variance).sum()

    def size(self, at: Observed) -> float:
        assert at.mean is not None
        assert at.variance is not None
        return float((((at.mean - self.shift).square() + self.spread) / at.variance).sum(1).amax())


@dataclass(frozen=True)
class Bernoulli:
    """Independent features that are 0 or 1. Statistics: x and 1 - x of each feature.

    `smoothing` adds so many frames with a 1 and so many with a 0 to every feature of every state.
    """

    smoothing: float = 0.0

    def prepare(self, frames: Tensor) -> Tensor:
        both = torch.cat([frames, 1 - frames], 1).double()
        return both.masked_fill_(both.isnan(), 0.0)

    def log_obs(self, data: Tensor, at: Observed) -> Tensor:
        assert at.probability is not None
        logs = torch.cat([at.probability.log(), torch.log1p(-at.probability)], 1)
        never = logs == float("-inf")
        if not bool(never.any()):
            return data @ logs.mT
        found = data @ torch.where(never, 0.0, logs).mT
        return found.masked_fill(data @ never.to(data.dtype).mT > 0, float("-inf"))

    def count(self, data: Tensor, posterior: Tensor) -> Tensor:
        return posterior.double().mT @ data

    def maximise(self, counts: Tensor, at: Observed) -> Observed:
        assert at.probability is not None
        ones, zeros = counts.chunk(2, 1)
        total = ones + zeros + 2 * self.smoothing
        found = (ones + self.smoothing) / torch.where(total > 0, total, 1.0)
        # A share of rounded sums may be above 1 by a rounding.
        return Observed(probability=torch.where(total > 0, found.clamp(max=1.0), at.probability))

    def log_prior(self, at: Observed) -> Tensor:
        assert at.probability is not None
        if not self.smoothing:
            return at.probability.new_zeros(())
        return self.smoothing * (at.probability.log() + torch.log1p(-at.probability)).sum()

    def size(self, at: Observed) -> float:
        return 0.0


@dataclass(frozen=True)
class Categorical:
    """Symbols, by their ids; -1 is a missing one. `smoothing` adds so many of each symbol to every state."""

    num_symbols: int
    smoothing: float = 0.0

    def prepare(self, frames: Tensor) -> Tensor:
        return frames

    def log_obs(self, data: Tensor, at: Observed) -> Tensor:
        assert at.probability is not None
        missing = data < 0
        table = at.probability.mT.log()
        found = table[torch.where(missing, 0, data)]
        return found.masked_fill_(missing.unsqueeze(-1), 0.0) if bool(missing.any()) else found

    def count(self, data: Tensor, posterior: Tensor) -> Tensor:
        # A missing symbol has a row of its own, which nobody reads.
        rows = posterior.new_zeros(self.num_symbols + 1, posterior.shape[1], dtype=torch.float64)
        return rows.index_add_(0, torch.where(data < 0, self.num_symbols, data), posterior.double())[:-1].mT

    def maximise(self, counts: Tensor, at: Observed) -> Observed:
        assert at.probability is not None
        return Observed(probability=shares(counts + self.smoothing, at.probability))

    def log_prior(self, at: Observed) -> Tensor:
        assert at.probability is not None
        if not self.smoothing:
            return at.probability.new_zeros(())
        return self.smoothing * at.probability.log().sum()

    def size(self, at: Observed) -> float:
        return 0.0


def shares(counts: Tensor, otherwise: Tensor, axis: int = 1) -> Tensor:
    """Counts over their sum along an axis: the maximum of sum counts log p. Where all are 0 what it was before."""
    total = counts.sum(axis, keepdim=True)
    return torch.where(total > 0, counts / torch.where(total > 0, total, 1.0), otherwise)
