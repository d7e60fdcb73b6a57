"""What a sequence model asks of its observations: log-weights, samples, and the two halves of a step of EM.

A new observation is a file with a class of this kind and a line in the catalogue, `OBSERVATIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.errors import DomainError, UnsupportedError
from rankfold.params.prior import Prior, Table


class CollapseError(DomainError):
    """A start from which no maximum is reached; others may reach one."""


class Observation(Protocol):
    """The distribution of a frame in every state that is kept: what an `ObservationModule` makes for a step."""

    def log_obs(self, frames: Tensor) -> Tensor: ...  # "b t f" or "b t" -> "b t z"; a missing frame is a row of zeros
    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor: ...  # "n" -> "n f" or "n"


class Sizes(Protocol):
    """The settings observations are drawn by; `models.config.FrameConfig` says what they mean."""

    @property
    def num_states(self) -> int: ...
    @property
    def num_features(self) -> int: ...
    @property
    def tied_variance(self) -> bool: ...
    @property
    def min_variance(self) -> float: ...
    @property
    def neural(self) -> bool: ...
    @property
    def dim(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def init(self) -> str: ...


class ObservationModule(nn.Module):
    """Distributions of frames. Gradients need `draw` and `forward`, EM `statistics` and `maximise`."""

    symbols: ClassVar[bool] = False  # frames are whole numbers "t", -1 = missing; else features "t f", NaN = missing
    measured: ClassVar[bool] = False  # features are measured on a scale: what a frame has is a density
    values: ClassVar[str] = "finite"  # what features are, or NaN where missing

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Fresh parameters. With `init` "papers" all states begin alike, or networks as the papers' do."""
        raise NotImplementedError

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:  # "... f" bool
        """Which features are no such values; NaN is missing. Symbols are a column of numbers here."""
        return frames.isinf()

    def forward(self, keep: Tensor | None = None) -> Observation:
        """The distributions of the states that are kept."""
        raise NotImplementedError

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" or "b t" -> "b t z"
        """The log-weight of every frame in every state."""
        return self.forward().log_obs(frames)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" or "n" -> "n s"
        """What EM counts of each frame, float64; 0 where it is missing."""
        raise UnsupportedError(f'{type(self).__name__} has no step of EM.\n  Use train.optimizer="adam".')

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "z s"
        """The expected statistics of every state; those of several batches add up."""
        return posterior.double().mT @ statistics

    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z s"
        """Set the parameters to the maximum of the expected log-weight; a state nobody visits keeps its own."""
        raise UnsupportedError(f'{type(self).__name__} has no step of EM.\n  Use train.optimizer="adam".')

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the prior, up to a constant; 0 without one. Differentiable in the parameters."""
        return torch.zeros((), dtype=torch.float64, device=next(self.parameters()).device)

    def rounding(self, prior: Prior) -> float:
        """The nats that rounding may cost a frame, beyond that of their sum: where terms cancel."""
        return 0.0

    def keep_within(self, prior: Prior) -> None:
        """Put parameters that a gradient step took beyond a bound of the prior back onto it."""

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"   without missing frames
        """Move freshly drawn parameters to where the frames are."""

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:  # "n f" or "n", "n", "z f"
        """Begin where frames of a state are: the nearest mean's (`near`: of k-means), or the label's; -1 is none."""
        self.maximise(self.count(self.statistics(frames, prior), one_hot(states, len(means))), prior)

    def tables(self) -> Mapping[str, Table]:
        """The parameters by the names that `start=` and `fill` know them by."""
        return {}

    def fill(self, **tables: Tensor) -> None:
        """Set some of the tables."""
        raise UnsupportedError(f"{type(self).__name__} has no tables to fill.")

    @property
    def num_free(self) -> int:
        """How many numbers are free: what sums to 1 has one less."""
        return sum(x.numel() for x in self.parameters())


def one_hot(states: Tensor, num_states: int) -> Tensor:  # "n" -> "n z"   float64
    """1 at the state of each frame; none where it is -1."""
    return (states[:, None] == torch.arange(num_states, device=states.device)).double()


def means_of(frames: Tensor, states: Tensor, otherwise: Tensor) -> Tensor:  # "n f", "n", "z f" -> "z f"
    """The mean of the frames of each state."""
    number = torch.bincount(states, minlength=len(otherwise)).to(frames.dtype)[:, None]
    sums = torch.zeros_like(otherwise).index_add_(0, states, frames)
    return torch.where(number > 0, sums / torch.where(number > 0, number, 1), otherwise)
