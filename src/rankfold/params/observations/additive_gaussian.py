"""Gaussian frames whose mean is a sum: each chain of a factorial HMM adds a vector of its own.

x = sum_c  part_c[z_c]  + noise, one covariance for all states. Source: Ghahramani and Jordan 1997, whose M step is
exact here: the expected frames of every joint state are known.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.networks import normal
from rankfold.params.observations.linear_gaussian import FullGaussianObservation, raise_to_floor
from rankfold.params.observations.protocol import ObservationModule, Sizes
from rankfold.params.prior import Prior, Table


class AdditiveGaussianObservation(FullGaussianObservation):
    """Parts "k f", one row for each state of each chain, and one covariance. Without chains a part is a mean.

    Adding a vector to all states of one chain and taking it from another changes nothing: of all best parts EM takes
    the smallest.
    """

    joins = False
    shares_covariance = True
    part: nn.Parameter  # "k f"
    design: Tensor  # "z k"   1 where the state of a chain is part of the joint state

    def __init__(self, part: Tensor, chains: tuple[int, ...], *, diagonal: bool, min_variance: float = 0.0) -> None:
        ObservationModule.__init__(self)
        size, num_states = part.shape[1], int(np.prod(chains))
        self.chains, self.min_variance = chains, min_variance
        self.part = nn.Parameter(part)
        start = 0.5 * math.log(1.0 - min_variance) if min_variance < 1 else 0.0
        self.log_diagonal = nn.Parameter(torch.full((1, size), start, dtype=part.dtype))
        self.lower = None if diagonal else nn.Parameter(part.new_zeros(1, size, size))
        columns = np.stack(np.unravel_index(np.arange(num_states), chains), 1) + np.cumsum([0, *chains[:-1]])  # "z c"
        design = np.zeros((num_states, sum(chains)), np.float32)
        np.put_along_axis(design, columns, 1.0, 1)
        self.register_buffer("design", torch.from_numpy(design), persistent=False)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> AdditiveGaussianObservation:
        """Variances of one, and parts drawn from the standard normal."""
        chains = sizes.chains or (sizes.num_states,)
        part = normal(sum(chains), sizes.num_features, generator=generator).data
        return cls(part, chains, diagonal=sizes.covariance == "diag", min_variance=sizes.min_variance)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # "z f 1"
        """The means of the joint states."""
        return (self.design.to(self.part) @ self.part).unsqueeze(2)

    def set_weight(self, weight: Tensor) -> None:  # "z f 1"
        self.part.copy_(torch.linalg.pinv(self.design.double()) @ weight.squeeze(2).double())

    def _best_weight(self, rr: Tensor, yr: Tensor, before: Tensor, prior: Prior) -> Tensor:  # "z f 1"
        """The least squares of all parts together; all states share the covariance, which does not matter then."""
        if "part" in prior.fixed:
            return before
        design = self.design.double()
        number, sums = rr[:, 0], yr.squeeze(2)  # "z 1", "z f"
        part = torch.linalg.pinv(design.mT @ (number * design), hermitian=True) @ (design.mT @ sums)
        # A state that no frame is of leaves directions open: there everything stays as it was.
        free = (design.mT @ number).squeeze(1) > 0
        old = torch.linalg.pinv(design) @ before.squeeze(2)
        return (design @ torch.where(free[:, None], part, old)).unsqueeze(2)

    def move_to(self, frames: Any) -> None:  # "n f"
        """Drawn parts are taken as standard scores of all frames; the covariance is the variances of all frames."""
        centre, variance = (torch.from_numpy(x).to(self.part.device) for x in (frames.mean(0), frames.var(0)))
        with torch.no_grad():
            self.part.copy_(self.part.double() * variance.sqrt() + centre / len(self.chains))
            self.fill_covariance(torch.diag(variance)[None])

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Parts from frames drawn at random, around an equal share of the mean of all; the variances of all frames.

        The means of k-means are of joint states, in no order that chains could go by.
        """
        centre, num = frames.mean(0), len(self.chains)
        drawn = frames[torch.from_numpy(rng.choice(len(frames), len(self.part)))]
        spread = torch.as_tensor(prior.spread).to(frames).expand_as(centre)
        with torch.no_grad():
            self.part.copy_((drawn - centre) / num**0.5 + centre / num)
            self.fill_covariance(raise_to_floor(torch.diag(spread)[None], prior.min_variance))

    def tables(self) -> dict[str, Table]:
        covariance = self.covariance.detach()[0]
        return {"part": Table(self.part.detach().double()), "covariance": Table(covariance, positive="definite")}

    def fill(self, *, part: Tensor | None = None, covariance: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the parts "k f", the first chain's states first, and the covariance "f f"."""
        with torch.no_grad():
            if part is not None:
                self.part.copy_(part)
            if covariance is not None:
                self.fill_covariance(covariance[None])

    @property
    def num_free(self) -> int:
        size = self.part.shape[1]
        each = size if self.lower is None else size * (size + 1) // 2
        return (len(self.part) - len(self.chains) + 1) * size + each
