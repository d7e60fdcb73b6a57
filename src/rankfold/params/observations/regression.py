"""Frames whose mean is a linear function of inputs, or of the frames before: regression, autoregression.

A network of the inputs may be added to the linear function.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.params.dynamics.input_driven import Uses, climb
from rankfold.params.networks import normal, take_rows
from rankfold.params.observations.linear_gaussian import LinearGaussianObservation, draw_noise, log_density, means_at
from rankfold.params.observations.protocol import Sizes, means_of
from rankfold.params.prior import Prior, Table


def lagged(frames: Tensor, order: int) -> Tensor:  # "b t f" -> "b t (p f)"
    """The frames before each: the last one first; zeros stand before the first frame."""
    parts = [pad(frames, (0, 0, lag, 0))[:, : frames.shape[1]] for lag in range(1, order + 1)]
    return torch.cat(parts, 2)


def with_one(regressors: Tensor) -> Tensor:  # "b t k" -> "b t (k + 1)"
    """The regressors and a 1; 0 where one is missing, which is so beyond the end of a sequence alone."""
    known = torch.where(regressors.isnan(), 0.0, regressors)
    return torch.cat([known, torch.ones_like(known[..., :1])], -1)


def of_network(network: nn.Module, regressors: Tensor, weight: Tensor) -> Tensor:  # "... k+1", "z o k+1" -> "... z o"
    """What a network of the inputs adds to the linear function of each state."""
    x = regressors[..., :-1].to(weight)
    found, shape = network(x.reshape(-1, x.shape[-1])), (*x.shape[:-1], *weight.shape[:2])
    if not isinstance(found, Tensor) or found.numel() != math.prod(shape):
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(
            f"the network of the observations gave {came}, but a number for each frame, state and output was expected: "
            f"shape {(math.prod(shape[:-2]), *shape[-2:])}."
        )
    return found.reshape(shape)


class Regression(NamedTuple):
    """y = W (u, 1) + network(u) + noise; a frame is y and then the inputs u."""

    weight: Tensor  # "z o k+1"
    root: Tensor  # "c o o"
    dof: Tensor | None = None  # "z", of the noise of Student's t
    network: nn.Module | None = None  # "n k" -> "n z o"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t (o + k)" -> "b t z"
        size = self.weight.shape[1]
        r = with_one(frames[..., size:])
        more = None if self.network is None else of_network(self.network, r, self.weight)
        return _log_obs(self.weight, self.root, self.dof, frames[..., :size], r, more)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:
        raise DomainError("a sample of a regression needs its inputs.\n  Give them: sample(n, inputs=...).")

    def sample_sequence(
        self, states: Tensor, inputs: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:  # "t", "t k" -> "t (o + k)"
        """Frames of one sequence of states, given its inputs."""
        num = self.weight.shape[2] - 1
        if inputs is None:
            return self.sample(states, generator)
        if inputs.shape != (len(states), num) or not bool(inputs.isfinite().all()):
            raise DomainError(
                f"inputs have shape {tuple(inputs.shape)}, but {num} finite ones of each of {len(states)} frames were "
                "expected."
            )
        u = inputs.to(self.weight)
        r = with_one(u[None])[0]
        mean = (self.weight[states] @ r.unsqueeze(2)).squeeze(2)
        if self.network is not None:
            mean = mean + of_network(self.network, r, self.weight)[torch.arange(len(states)), states]
        return torch.cat([mean + draw_noise(self.root, self.dof, states, len(self.weight), generator), u], 1)


class Autoregression(NamedTuple):
    """x_t = W (x_t-1, ..., x_t-p, 1) + noise, zeros before the first frame."""

    weight: Tensor  # "z f (p f)+1"
    root: Tensor  # "c f f"
    dof: Tensor | None = None  # "z", of the noise of Student's t

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        order = (self.weight.shape[2] - 1) // self.weight.shape[1]
        return _log_obs(self.weight, self.root, self.dof, frames, with_one(lagged(frames, order)))

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.sample_sequence(states, None, generator)

    def sample_sequence(
        self, states: Tensor, inputs: Tensor | None, generator: torch.Generator | None
    ) -> Tensor:  # "t" -> "t f"
        """Frames of one sequence of states, from the first on."""
        size, order = self.weight.shape[1], (self.weight.shape[2] - 1) // self.weight.shape[1]
        noise = draw_noise(self.root, self.dof, states, len(self.weight), generator)
        before, found = noise.new_zeros(order * size), []
        for state, own in zip(states.tolist(), noise, strict=True):
            x = self.weight[state] @ torch.cat([before, before.new_ones(1)]) + own
            before = torch.cat([x, before])[: order * size]
            found.append(x)
        return torch.stack(found)


def _log_obs(
    weight: Tensor, root: Tensor, dof: Tensor | None, y: Tensor, r: Tensor, more: Tensor | None = None
) -> Tensor:  # "b t o", "b t p", "b t z o" -> "b t z"
    mean = means_at(r.flatten(0, 1).double(), weight.double(), None if more is None else more.flatten(0, 1).double())
    return log_density(y.flatten(0, 1), mean, root, dof).reshape(*y.shape[:2], -1).to(weight.dtype)


class _WithTables(LinearGaussianObservation):
    """Tables of coefficients, intercepts and covariances, of diagonal ones the variances."""

    covariances = ("diag", "full")

    def tables(self) -> dict[str, Table]:
        weight, covariance = self.weight.detach().double(), self.covariance.detach()
        return {
            "coefficient": Table(weight[:, :, :-1]),
            "intercept": Table(weight[:, :, -1]),
            **(
                {"covariance": Table(covariance, positive="definite")}
                if self.lower is not None
                else {"variance": Table(covariance.diagonal(dim1=1, dim2=2), positive="entries")}
            ),
        }

    def fill(  # type: ignore[override]
        self,
        *,
        coefficient: Tensor | None = None,
        intercept: Tensor | None = None,
        covariance: Tensor | None = None,
        variance: Tensor | None = None,
    ) -> None:
        """Set the coefficients "z o k", intercepts "z o" and covariances "z o o", or variances "z o"."""
        with torch.no_grad():
            if coefficient is not None:
                self.weight[:, :, :-1].copy_(coefficient)
            if intercept is not None:
                self.weight[:, :, -1].copy_(intercept)
            if covariance is not None:
                self.fill_covariance(covariance)
            if variance is not None:
                self.fill_covariance(torch.diag_embed(variance))

    def _begin(self, y: Tensor, states: Tensor, means: Tensor, coefficient: Tensor, prior: Prior) -> None:
        """These coefficients, means of the features in each state, and the variances of all frames."""
        size = self.weight.shape[1]
        spread = prior_vector(prior.spread, size).to(y)[:size]
        self.fill(
            coefficient=coefficient,
            intercept=means_of(y, states, means[:, :size]),
            covariance=torch.diag(spread).expand(len(self.log_diagonal), -1, -1),
        )


def prior_vector(x: Tensor | float, size: int) -> Tensor:  # -> "f"
    """A number of the prior for each feature."""
    found = torch.as_tensor(x)
    return found.expand(size) if found.ndim == 0 else found


class RegressionObservation(_WithTables):
    """Regression: the last `num_covariates` columns of a frame are inputs, which have no distribution.

    Of a network EM keeps every frame: first the exact maximum of linear function and covariance next to it, then
    steps of the means that never lose.
    """

    needs = "inputs"
    joins = False
    network: nn.Module | None

    def __init__(
        self, weight: Tensor, num_covariances: int, *, diagonal: bool = False, min_variance: float = 0.0
    ) -> None:  # "z o k+1"
        super().__init__(weight, num_covariances, diagonal=diagonal, min_variance=min_variance)
        self.network = None

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        num, inputs = sizes.num_features, sizes.num_covariates
        if not 1 <= inputs < num:
            raise DomainError(
                f"num_covariates is {inputs} of {num} columns, but a regression has an input and an output.\n"
                "  The last columns are the inputs: n_inputs=... of an estimator, model.num_covariates of a recipe."
            )
        weight = normal(sizes.num_states, num - inputs, inputs + 1, generator=generator).data
        return cls(weight, sizes.num_states, diagonal=sizes.covariance == "diag", min_variance=sizes.min_variance)

    def outputs(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        size = self.weight.shape[1]
        return frames[..., :size], with_one(frames[..., size:])

    def forward(self, keep: Tensor | None = None) -> Regression:
        if keep is not None and self.network is not None:
            raise UnsupportedError("state_dropout and a network of the observations do not go together.")
        return Regression(take_rows(self.weight, keep), self._kept_root(keep), self._kept_dof(keep), self.network)

    def beside(self, regressors: Tensor) -> Tensor | None:
        return None if self.network is None else of_network(self.network, regressors, self.weight).detach().double()

    def count(self, statistics: Tensor, posterior: Tensor) -> Any:  # "n (2o + 2p)", "n z" -> "z s"
        """Sums of products; of a network the frames themselves."""
        if self.network is None:
            return super().count(statistics, posterior)
        return Uses(statistics, posterior.double())

    def maximise(self, counts: Any, prior: Prior) -> None:
        if self.network is None:
            super().maximise(counts, prior)
            return
        # Features that are missing: their expectations raise the likelihood of the others, which the steps then climb.
        super().maximise(super().count(counts.inputs, counts.counts), prior)
        size, num = self.weight.shape[1:]
        y, r, own, theirs = counts.inputs.split([size, num, size, num], 1)
        frames = torch.cat([y + own, (r + theirs)[:, :-1]], 1)[None]

        def objective() -> Tensor:
            found: Tensor = (counts.counts * self.forward().log_obs(frames)[0].double()).sum()
            return found + self.log_prior(prior)

        held = prior.fixed & {"coefficient", "intercept"}
        climb([*self.network.parameters(), *(() if held else (self.weight,))], objective)

    def centres(self, prior: Prior) -> tuple[Tensor, Tensor]:
        size, num = self.weight.shape[1:]
        zeros = torch.zeros(1, dtype=torch.float64, device=self.weight.device)
        whole = prior_vector(prior.centre, size + num - 1).to(zeros)
        return whole[:size], torch.cat([whole[size:], zeros])

    def of_outputs(self, prior: Prior) -> Prior:
        """The prior of the modelled features."""
        size, num = self.weight.shape[1:]
        whole = (prior_vector(x, size + num - 1).to(self.weight.device) for x in (prior.spread, prior.min_variance))
        spread, least = (x[:size] for x in whole)
        return prior._replace(spread=spread, min_variance=least)

    def set_covariance(self, scatter: Tensor, number: Tensor, weight: Tensor, prior: Prior) -> None:
        super().set_covariance(scatter, number, weight, self.of_outputs(prior))

    def log_prior(self, prior: Prior) -> Tensor:
        """Of the covariances, and of a network -weight_precision/2 times the sum of its squared parameters."""
        found: Tensor = super().log_prior(self.of_outputs(prior))
        for x in () if self.network is None else self.network.parameters():
            found = found - prior.weight_precision / 2 * x.double().square().sum()
        return found

    @property
    def num_free(self) -> int:
        return super().num_free + sum(x.numel() for x in (() if self.network is None else self.network.parameters()))

    def rounding(self, prior: Prior) -> float:
        return super().rounding(self.of_outputs(prior))

    def keep_within(self, prior: Prior) -> None:
        super().keep_within(self.of_outputs(prior))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The least squares of each state's frames and one more frame of the variance of all; states are moved a bit
        by chance, because their frames were grouped without regard to the inputs."""
        size, num = self.weight.shape[1:]
        noise = 0.1 * torch.from_numpy(rng.standard_normal((len(means), size, num - 1))).to(frames)
        self._begin(frames[:, :size], states, means, noise, prior)
        one = prior._replace(variance_frames=prior.variance_frames + 1.0, fixed=frozenset())
        weights = frames.new_zeros(len(states), len(means), dtype=torch.float64)
        weights[states >= 0, states[states >= 0]] = 1.0
        super().maximise(super().count(self.statistics(frames, prior), weights), one)


class AutoregressiveObservation(_WithTables):
    """Vector autoregression of order p, with a covariance for each state. Its frames may not be missing."""

    needs = "all"
    joins = False

    def __init__(
        self, weight: Tensor, num_covariances: int, *, diagonal: bool = False, min_variance: float = 0.0
    ) -> None:  # "z f (p f)+1"
        super().__init__(weight, num_covariances, diagonal=diagonal, min_variance=min_variance)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        size = sizes.num_features
        weight = normal(sizes.num_states, size, sizes.order * size + 1, spread=0.1, generator=generator).data
        return cls(weight, sizes.num_states, diagonal=sizes.covariance == "diag", min_variance=sizes.min_variance)

    @property
    def lags(self) -> int:  # type: ignore[override]
        return (self.weight.shape[2] - 1) // self.weight.shape[1]

    def outputs(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return frames, with_one(lagged(frames, self.lags))

    def forward(self, keep: Tensor | None = None) -> Autoregression:
        return Autoregression(take_rows(self.weight, keep), self._kept_root(keep), self._kept_dof(keep))

    def centres(self, prior: Prior) -> tuple[Tensor, Tensor]:
        size = self.weight.shape[1]
        zeros = torch.zeros(1, dtype=torch.float64, device=self.weight.device)
        own = prior_vector(prior.centre, size).to(zeros)
        return own, torch.cat([own.repeat(self.lags), zeros])

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Each state returns to the mean of its frames, each feature from its own last value at a random speed."""
        num_states, size, num = self.weight.shape
        speed = torch.from_numpy(rng.random((num_states, size))).to(frames)
        coefficient = frames.new_zeros(num_states, size, num - 1)
        coefficient[:, :, :size] = torch.diag_embed(speed)
        self._begin(frames, states, means, coefficient, prior)
        self.fill(intercept=(1 - speed) * means_of(frames, states, means))
