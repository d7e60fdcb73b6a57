"""Angles in radians with a von Mises distribution, features independent: directions, times of day."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, draw_table, one_hot
from rankfold.params.prior import Prior, Table


class VonMises(NamedTuple):
    """Directions and logarithms of concentrations in the states that dropout keeps."""

    mean: Tensor  # "z f"
    log_concentration: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """sum_f k cos(x - m) - log(2 pi I0(k)) over the features that are not NaN: one product."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double(), 0.0)
        mean, k = self.mean.double(), self.log_concentration.double().exp()
        parts = torch.cat([k * mean.cos(), k * mean.sin(), -_log_i0(k) - math.log(2 * math.pi)], 1)
        both = torch.cat([here * x.cos(), x.sin(), here.double()], -1)
        return (both @ parts.mT).to(self.mean.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        """By rejection from normal distributions that end at -pi and pi: cos x - 1 is at most -2 (x / pi)^2."""
        k = self.log_concentration.double().exp()[states]
        root = (2 * k).sqrt()
        found = torch.zeros_like(k)
        left = torch.ones_like(k, dtype=torch.bool)
        while bool(left.any()):
            u, v = torch.rand(2, *k.shape, dtype=k.dtype, device=k.device, generator=generator)
            side = 2 * u - 1
            x = torch.where(root > 0, math.pi * torch.erfinv(side * root.erf()) / root, math.pi * side)
            taken = left & (v.log() <= k * (2 * (x / math.pi).square() - 2 * (x / 2).sin().square()))
            found, left = torch.where(taken, x, found), left & ~taken
        return _wrapped(self.mean.double()[states] + found).to(self.mean.dtype)


class VonMisesObservation(ObservationModule):
    """Free directions and logarithms of concentrations. `smoothing` counts as so many frames of all directions."""

    values = "finite angles, in radians"

    def __init__(self, mean: Tensor, log_concentration: Tensor) -> None:  # "z f"
        super().__init__()
        self.mean, self.log_concentration = nn.Parameter(mean), nn.Parameter(log_concentration)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Concentrations of 1 around directions near 0; with `init` "papers" all at 0."""
        mean = draw_table(sizes, generator)
        return cls(mean, torch.zeros_like(mean))

    def forward(self, keep: Tensor | None = None) -> VonMises:
        return VonMises(take_rows(self.mean, keep), take_rows(self.log_concentration, keep))

    def coordinates(self, frames: Tensor) -> Tensor:  # "n f" -> "n 2f"
        """Points on circles: angles next to -pi and pi are near each other."""
        return torch.cat([frames.cos(), frames.sin()], 1)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 3f"
        """cos x, sin x, and whether it is there."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double(), 0.0)
        return torch.cat([here * x.cos(), x.sin(), here.double()], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 3f"
        """The direction of the sum of all points, and the concentration at which its length is the expected one."""
        cosine, sine, number = counts.chunk(3, 1)
        number = number + prior.smoothing
        seen, fixed = number > prior.smoothing, prior.fixed
        if "mean" not in fixed:
            self.mean.copy_(torch.where(seen, torch.atan2(sine, cosine), self.mean.double()))
        if "concentration" in fixed:
            return
        mean = self.mean.double()
        length = (cosine * mean.cos() + sine * mean.sin()) / torch.where(seen, number, 1.0)
        length = torch.where(length < 0, 0.0, length)  # points away from a mean that is fixed: no concentration is best
        narrow = seen & (1 - length.square() <= 64 * torch.finfo(length.dtype).eps)
        if bool(narrow.any()):
            z, f = narrow.nonzero()[0].tolist()
            raise CollapseError(
                f"the angles of feature {f} in state {z} became all alike: the likelihood has no maximum.\n"
                "  Give a prior (smoothing above 0), or fewer states."
            )
        best = _concentration(torch.where(seen, length, 0.0))
        self.log_concentration.copy_(torch.where(seen, best.log(), self.log_concentration.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """-smoothing times the sum of log I0(k): the expected log-density of a uniform direction."""
        return -prior.smoothing * _log_i0(self.log_concentration.double().exp()).sum()

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn directions are taken relative to that of all frames."""
        with torch.no_grad():
            around = np.arctan2(np.sin(frames).mean(0), np.cos(frames).mean(0))
            self.mean.add_(torch.from_numpy(around).to(self.mean))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Direction and concentration of each state's frames, and of one more of all directions."""
        counts = self.count(self.statistics(frames, prior), one_hot(states, len(means)))
        self.maximise(counts, Prior(smoothing=1.0))

    def tables(self) -> dict[str, Table]:
        concentration = self.log_concentration.detach().double().exp()
        return {
            "mean": Table(_wrapped(self.mean.detach().double())),
            "concentration": Table(concentration, positive="or zero"),
        }

    def fill(self, *, mean: Tensor | None = None, concentration: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the directions and concentrations, "z f" each."""
        with torch.no_grad():
            if mean is not None:
                self.mean.copy_(mean)
            if concentration is not None:
                self.log_concentration.copy_(concentration.double().log())


def _log_i0(k: Tensor) -> Tensor:
    found: Tensor = torch.special.i0e(k).log() + k
    return found


def _wrapped(x: Tensor) -> Tensor:
    """The same angle from -pi to pi; those that are there already stay as they are."""
    return torch.where(x.abs() <= math.pi, x, torch.atan2(x.sin(), x.cos()))


def _concentration(length: Tensor) -> Tensor:  # "z f"
    """The root of I1(k) / I0(k) = length, by bisection between Amos's bounds of that ratio, solved for k."""
    square = length.square()
    low = length / (1 - square)
    high = low * (1 + (9 - 8 * square).sqrt()) / 2
    for _ in range(60):
        middle = (low + high) / 2
        below = torch.special.i1e(middle) < length * torch.special.i0e(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2
