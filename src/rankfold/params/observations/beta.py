"""Numbers between 0 and 1 with a beta distribution, features independent: shares, probabilities, fractions of time."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.networks import normal, take_rows
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, means_of
from rankfold.params.prior import Prior, Table

STEPS = 100  # of Newton's method, which doubles its digits near the maximum
HALVINGS = 60


def _log_norm(alpha: Tensor, beta: Tensor) -> Tensor:
    """log B(alpha, beta)"""
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)


class Beta(NamedTuple):
    """Logarithms of both shapes in the states that dropout keeps."""

    log_alpha: Tensor  # "z f"
    log_beta: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """sum_f (a - 1) log x + (b - 1) log(1 - x) - log B(a, b) over the features that are not NaN: one product."""
        alpha, beta = self.log_alpha.double().exp(), self.log_beta.double().exp()
        parts = torch.cat([alpha - 1, beta - 1, -_log_norm(alpha, beta)], 1)
        return (_statistics(frames) @ parts.mT).to(self.log_alpha.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        """x / (x + y) of gammas x and y, from their logarithms; a number that rounds to 0 or 1 is the next one inside.

        log of a gamma of shape a is that of shape a + 1 plus log(u) / a, also where it is too small for the dtype.
        """
        logs = []
        for log_shape in (self.log_alpha, self.log_beta):
            shape = log_shape.double().exp()[states]
            u = torch.rand(shape.shape, generator=generator, dtype=shape.dtype, device=shape.device)
            logs.append(torch._standard_gamma(shape + 1, generator=generator).log() + torch.log1p(-u) / shape)
        x = torch.sigmoid(logs[0] - logs[1]).to(self.log_alpha.dtype)
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        return torch.minimum(torch.maximum(x, torch.nextafter(zero, one)), torch.nextafter(one, zero))


def _statistics(frames: Tensor) -> Tensor:  # "... f" -> "... 3f"
    """log x, log(1 - x), and whether it is there; 0 where it is missing."""
    here = ~frames.isnan()
    x = torch.where(here, frames.double(), 0.5)
    logs = (torch.where(here, each, 0.0) for each in (x.log(), torch.log1p(-x)))
    return torch.cat([*logs, here.double()], -1)


class BetaObservation(ObservationModule):
    """Free logarithms of both shapes. `smoothing` counts as so many frames of a uniform distribution."""

    values = "above 0 and below 1"
    remedy = 'Mark what is missing as NaN; for other numbers use observations="gaussian".'

    def __init__(self, log_alpha: Tensor, log_beta: Tensor) -> None:  # "z f"
        super().__init__()
        self.log_alpha, self.log_beta = nn.Parameter(log_alpha), nn.Parameter(log_beta)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Distributions around the uniform one; with `init` "papers" all uniform."""
        shape = (sizes.num_states, sizes.num_features)
        if sizes.init == "papers":
            return cls(torch.zeros(shape, dtype=torch.float32), torch.zeros(shape, dtype=torch.float32))
        return cls(*(normal(*shape, spread=0.5, generator=generator).data for _ in range(2)))

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return (frames <= 0) | (frames >= 1)

    def forward(self, keep: Tensor | None = None) -> Beta:
        return Beta(take_rows(self.log_alpha, keep), take_rows(self.log_beta, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 3f"
        """log x, log(1 - x), and whether it is there."""
        return _statistics(frames)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 3f"
        """The shapes whose expected log x and log(1 - x) are the means of the counts, by Newton's method."""
        low, high, number = counts.chunk(3, 1)
        number = number + prior.smoothing
        seen = number > 0
        total = torch.where(seen, number, 1.0)
        # Of a uniform distribution both means are -1, and so they are here for states without any frame.
        means = torch.stack([torch.where(seen, (x - prior.smoothing) / total, -1.0) for x in (low, high)], -1)
        held = [name in prior.fixed for name in ("alpha", "beta")]
        # exp(mean log x) + exp(mean log(1 - x)) is below 1, and 1 where all x are alike.
        alike = -torch.logsumexp(means, -1) <= 16 * torch.finfo(means.dtype).eps * (1 - means.sum(-1))
        if bool(alike.any()) and not any(held):
            z, f = alike.nonzero()[0].tolist()
            raise CollapseError(
                f"the values of feature {f} in state {z} became all alike: the likelihood has no maximum.\n"
                "  Give a prior (smoothing above 0), or fewer states."
            )
        before = torch.stack([self.log_alpha, self.log_beta], -1).double().exp()
        found = _best_shapes(means, before, torch.tensor(held, device=means.device))
        found = torch.where(seen.unsqueeze(-1), found, before).log()
        for own, table, stays in zip((self.log_alpha, self.log_beta), found.unbind(-1), held, strict=True):
            if not stays:
                own.copy_(torch.where(seen, table, own.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        if not prior.smoothing:
            return super().log_prior(prior)
        alpha, beta = self.log_alpha.double().exp(), self.log_beta.double().exp()
        return prior.smoothing * (2 - alpha - beta - _log_norm(alpha, beta)).sum()

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Mean and variance of each state's frames, and of one more of a uniform distribution."""
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        mean = (means_of(frames, states, means) * number + 0.5) / (number + 1)
        squares = torch.zeros_like(means).index_add_(0, states, (frames - mean[states]).square())
        variance = (squares + 1 / 12 + (mean - 0.5).square()) / (number + 1)
        size = mean * (1 - mean) / variance - 1
        self.fill(alpha=mean * size, beta=(1 - mean) * size)

    def tables(self) -> dict[str, Table]:
        alpha, beta = (x.detach().double().exp() for x in (self.log_alpha, self.log_beta))
        return {"alpha": Table(alpha, positive="entries"), "beta": Table(beta, positive="entries")}

    def fill(self, *, alpha: Tensor | None = None, beta: Tensor | None = None) -> None:  # type: ignore[override]
        """Set both shapes, "z f" each."""
        with torch.no_grad():
            for own, table in ((self.log_alpha, alpha), (self.log_beta, beta)):
                if table is not None:
                    own.copy_(table.double().log())


def _best_shapes(means: Tensor, start: Tensor, held: Tensor) -> Tensor:  # "z f 2", "z f 2", "2" bool -> "z f 2"
    """The maximum of (a - 1) mean log x + (b - 1) mean log(1 - x) - log B(a, b), which is concave.

    Newton's steps in a and b, halved until they stay above 0 and gain.
    """

    def value(shapes: Tensor) -> Tensor:  # "z f"
        return ((shapes - 1) * means).sum(-1) - _log_norm(*shapes.unbind(-1))

    found, best = start, value(start)
    for _ in range(STEPS):
        both = found.sum(-1, keepdim=True)
        slope = (means - torch.digamma(found) + torch.digamma(both)).masked_fill(held, 0.0)
        # The curvature is -diag(psi'(a), psi'(b)) + psi'(a + b); its inverse is written out.
        own, shared = torch.polygamma(1, found), torch.polygamma(1, both)
        inverse = torch.where(held, 0.0, 1 / own)
        weight = shared / (1 - shared * inverse.sum(-1, keepdim=True))
        step = inverse * (slope + weight * (inverse * slope).sum(-1, keepdim=True))
        size = torch.ones_like(best)
        for _ in range(HALVINGS):
            moved = found + size.unsqueeze(-1) * step
            inside = (moved > 0).all(-1)
            now = value(torch.where(inside.unsqueeze(-1), moved, found))
            short = ~(inside & (now >= best))
            if not bool(short.any()):
                break
            size = torch.where(short, size / 2, size)
        moved = torch.where(short.unsqueeze(-1), found, moved)
        if bool(((moved - found).abs() <= 4 * torch.finfo(found.dtype).eps * found).all()):
            break
        found, best = moved, torch.where(short, best, now)
    return found
