"""More zeros than another distribution has, features independent: dry days, hours without a call.

A feature is 0 with a probability of its own, else it is as the other distribution says. Of positive numbers all zeros
are such; of counts EM takes for hidden which of them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rankfold.params.networks import take_rows
from rankfold.params.observations.bernoulli import weighed
from rankfold.params.observations.gamma import GammaObservation
from rankfold.params.observations.log_normal import LogNormalObservation
from rankfold.params.observations.negative_binomial import NegativeBinomialObservation
from rankfold.params.observations.poisson import CountObservation, PoissonObservation
from rankfold.params.observations.protocol import Observation, ObservationModule, Sizes, draw_table, means_of
from rankfold.params.observations.wrapped import WrappedObservation
from rankfold.params.prior import Prior, Table


class ZeroInflated(NamedTuple):
    """Log-odds of zeros that are not the other distribution's, and the log-weight that this one gives a zero."""

    logit: Tensor  # "z f"
    log_zero: Tensor  # "z f"   -inf for positive numbers
    inner: Observation

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """sum_f log(p + (1 - p) g(0)) where x is 0, log(1 - p) + log g(x) elsewhere, over those that are not NaN."""
        log_p, log_rest = logsigmoid(self.logit), logsigmoid(-self.logit)
        zero = torch.where(self.log_zero.isinf(), log_p, torch.logaddexp(log_p, log_rest + self.log_zero))
        both = torch.cat([frames == 0, frames > 0], -1).to(zero.dtype)
        return weighed(both, torch.cat([zero, log_rest], -1)) + self.inner.log_obs(without_zeros(frames))

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        found = self.inner.sample(states, generator)
        nothing = torch.bernoulli(self.logit.sigmoid()[states], generator=generator)
        return found.masked_fill(nothing == 1, 0.0)


def without_zeros(frames: Tensor) -> Tensor:
    """Zeros as missing features."""
    return frames.masked_fill(frames == 0, float("nan"))


class ZeroInflatedObservation(WrappedObservation):
    """Log-odds "z f" of zeros next to an observation of features that are independent. `smoothing` counts for both."""

    kind: ClassVar[type[ObservationModule]]
    remedy = 'For other numbers use observations="gaussian".'

    def __init__(self, logit: Tensor, inner: ObservationModule) -> None:  # "z f"
        super().__init__(inner)
        self.logit = nn.Parameter(logit)

    def __init_subclass__(cls) -> None:
        cls.counts = issubclass(cls.kind, (CountObservation, NegativeBinomialObservation))
        cls.values = CountObservation.values if cls.counts else "at least 0"
        cls.priors = cls.kind.priors

    counts: ClassVar[bool]  # whether the other distribution has zeros, too

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Even odds of a zero, around which states differ."""
        return cls(draw_table(sizes, generator), cls.kind.draw(sizes, generator))

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return cls.kind.residuals(sizes)

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return cls.kind.invalid(frames) & (frames != 0)

    @classmethod
    def on_scale(cls, frames: Tensor, columns: Sequence[str] = ()) -> Tensor:  # "n f" -> "n f"
        return cls.kind.on_scale(frames if cls.counts else without_zeros(frames))

    def coordinates(self, frames: Tensor) -> Tensor:  # "n f" -> "n f"
        return frames

    def forward(self, keep: Tensor | None = None) -> ZeroInflated:
        inner, logit = self.inner(keep), take_rows(self.logit, keep)
        if not self.counts:
            return ZeroInflated(logit, torch.full_like(logit, float("-inf")), inner)
        return ZeroInflated(logit, inner.log_obs(self._zeros()[None])[0].mT, inner)

    def _zeros(self) -> Tensor:  # "f f"
        """A frame for each feature, in which it is 0 and all others are missing."""
        size = self.logit.shape[1]
        gone = torch.full((size, size), float("nan"), dtype=self.logit.dtype, device=self.logit.device)
        return gone.fill_diagonal_(0.0)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n (2f + s)"
        """Which features are 0, which are above, and the statistics of those."""
        both = torch.cat([frames == 0, frames > 0], 1).double()
        return torch.cat([both, self.inner.statistics(without_zeros(frames), prior)], 1)

    @torch.no_grad()
    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n (2f + s)", "n z" -> "z (2f + s)"
        """The expected zeros of each kind; those of the other distribution are counted there, too."""
        size = self.logit.shape[1]
        zeros, more = (posterior.double().mT @ x for x in statistics[:, : 2 * size].chunk(2, 1))
        inner = self.inner.count(statistics[:, 2 * size :], posterior)
        if not self.counts:
            return torch.cat([zeros, more, inner], 1)
        odds = self.forward().log_zero.double() - self.logit.double()  # log of (1 - p) g(0) : p
        theirs = zeros * torch.sigmoid(odds)
        inner = inner + self.inner.count(self.inner.statistics(self._zeros(), Prior()), theirs.mT)
        return torch.cat([zeros - theirs, more + theirs, inner], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z (2f + s)"
        """The share of zeros that are not the other distribution's, and its own maximum."""
        size = self.logit.shape[1]
        zeros, others = (x + prior.smoothing for x in counts[:, : 2 * size].chunk(2, 1))
        if "zero" not in prior.fixed:
            self.logit.copy_(torch.where(zeros + others > 0, zeros.log() - others.log(), self.logit.double()))
        self.inner.maximise(counts[:, 2 * size :], prior)

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        if not prior.smoothing:
            return self.inner.log_prior(prior)
        logit = self.logit.double()
        return self.inner.log_prior(prior) + prior.smoothing * (logsigmoid(logit) + logsigmoid(-logit)).sum()

    def move_to(self, frames: Any) -> None:  # "n f"
        """Drawn log-odds are added to those of a zero in all frames, and in one more frame of each kind."""
        share = torch.from_numpy(((frames == 0).sum(0) + 1) / (len(frames) + 2))
        with torch.no_grad():
            self.logit.add_(torch.logit(share).to(self.logit.device))
        self.inner.move_to(frames if self.counts else _filled(torch.from_numpy(frames)).numpy())

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The zeros of each state and of one more frame like all (of counts half of them); the others by themselves."""
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        zeros = (frames == 0).to(frames.dtype)
        overall = (zeros.sum(0) + 1) / (len(frames) + 2)
        share = (means_of(zeros, states, means) * number + overall) / (number + 1)
        self.fill(zero=share / 2 if self.counts else share)
        if self.counts:
            self.inner.initialise(frames, states, means, prior, rng, near=near)
            return
        filled = _filled(frames)
        centre = self.kind.on_scale(filled).mean(0).expand(*means.shape)
        self.inner.initialise(filled, states, centre, prior, rng, near=near)

    def tables(self) -> dict[str, Table]:
        return {"zero": Table(self.logit.detach().double().sigmoid(), positive="share"), **self.inner.tables()}

    def fill(self, *, zero: Tensor | None = None, **tables: Tensor) -> None:
        """Set the probabilities "z f" of zeros that are not the other distribution's, and its tables."""
        if zero is not None:
            with torch.no_grad():
                self.logit.copy_(torch.logit(zero.double()))
        if tables:
            self.inner.fill(**tables)

    @property
    def num_free(self) -> int:
        return self.logit.numel() + self.inner.num_free


def _filled(frames: Tensor) -> Tensor:  # "n f"
    """Zeros as the mean of the other values of their feature, for the start alone."""
    some = without_zeros(frames)
    return torch.where(some.isnan(), some.nanmean(0), some)


class ZeroInflatedPoissonObservation(ZeroInflatedObservation):
    """Counts."""

    kind = PoissonObservation


class ZeroInflatedNegativeBinomialObservation(ZeroInflatedObservation):
    """Counts that vary more."""

    kind = NegativeBinomialObservation


class ZeroInflatedGammaObservation(ZeroInflatedObservation):
    """Amounts, rain for instance."""

    kind = GammaObservation


class ZeroInflatedLogNormalObservation(ZeroInflatedObservation):
    """Amounts over orders of magnitude."""

    kind = LogNormalObservation
