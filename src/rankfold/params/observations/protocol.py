"""The interface of observations: log-weights, samples, and the two halves of a step of EM.

A new observation is a file with a subclass of `ObservationModule` and a line in the catalogue, `OBSERVATIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.errors import DomainError, UnsupportedError
from rankfold.params.networks import Network, normal
from rankfold.params.prior import Prior, Table


class CollapseError(DomainError):
    """EM from this initialisation diverges, because a variance goes to 0; another one may converge."""


class Invalid(NamedTuple):
    """A value that observations cannot take."""

    at: tuple[int, ...]  # its index
    expected: str  # what was expected, in words
    remedy: str


class Observation(Protocol):
    """The distributions of a frame given each state that dropout keeps, returned by `ObservationModule.forward`."""

    def log_obs(self, frames: Tensor) -> Tensor: ...  # "b t f" or "b t" -> "b t z"; a missing frame is a row of zeros
    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor: ...  # "n" -> "n f" or "n"


class Sizes(Protocol):
    """The settings that `ObservationModule.draw` reads: fields of `models.config.FrameConfig`."""

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
    @property
    def covariance(self) -> str: ...
    @property
    def covariance_states(self) -> int: ...
    @property
    def covariance_rank(self) -> int: ...
    @property
    def num_components(self) -> int: ...
    @property
    def num_covariates(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def order(self) -> int: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def chains(self) -> tuple[int, ...]: ...


class ObservationModule(nn.Module):
    """Parameters of the distributions of frames, one for each state.

    Training by gradients needs `draw` and `forward`, EM also `statistics` and `maximise`; the rest have defaults.
    """

    symbols: ClassVar[bool] = False  # frames are whole numbers "t", -1 = missing; else features "t f", NaN = missing
    measured: ClassVar[bool] = False  # real-valued features, which have a density and may be standardised
    values: ClassVar[str] = "finite"  # the valid features, in words for error messages
    remedy: ClassVar[str] = "Leave the frame out, or mark the feature as missing: NaN."  # of invalid ones
    complete: ClassVar[bool] = False  # whether a frame is missing as a whole or not at all
    needs: ClassVar[Literal["nothing", "inputs", "all"]] = "nothing"  # columns that may not be missing
    joins: ClassVar[bool] = True  # whether it can be part of a product, beside other columns
    covariances: ClassVar[tuple[str, ...]] = ()  # the kinds it may have; (): `draw` says so, or has none
    priors: ClassVar[tuple[str, ...]] = ()  # of "mean", "variance", "emission": those fields of `Prior` that it heeds
    shares_covariance: ClassVar[bool] = False  # whether all states always have one
    capturable: ClassVar[bool] = True  # whether a CUDA graph can hold it: no shape depends on values
    lags: int = 0  # how many frames before a frame its distribution depends on

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Initial parameters. With `init` "papers" all states are equal, or networks initialised as in the papers."""
        raise NotImplementedError

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        """The numbers that log_obs holds for each frame, by states and features; 0 where it is a matrix product."""
        return 0

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:  # "... f" bool
        """Which features are invalid; NaN, a missing feature, is valid. Symbols come as a column of numbers."""
        return frames.isinf()

    @classmethod
    def takes_every_number(cls) -> bool:
        """Whether any finite features are valid, and any of them may be missing."""
        own = cls.invalid.__func__, cls.first_invalid.__func__  # type: ignore[attr-defined]
        base = ObservationModule.invalid.__func__, ObservationModule.first_invalid.__func__  # type: ignore[attr-defined]
        return own == base and not cls.complete and cls.needs == "nothing"

    @classmethod
    def first_invalid(cls, frames: Tensor, inside: Tensor, sizes: Sizes) -> Invalid | None:  # "... f", "..." bool
        """The first value of frames `inside` their sequences that cannot be observed; None if all can."""
        any_number = cls.invalid.__func__ is ObservationModule.invalid.__func__  # type: ignore[attr-defined]
        if any_number and bool(frames.sum().isfinite()):
            return None  # every number can be observed, and all are there
        wrong, gone = cls.invalid(frames), frames.isnan()
        if bool(wrong.any()) and (found := first_index(wrong & inside.unsqueeze(-1))) is not None:
            return Invalid(found, cls.values, cls.remedy)
        if not bool(gone.any()):
            return None
        some = inside & gone.any(-1) & ~gone.all(-1)
        if cls.complete and (found := first_index(some.unsqueeze(-1) & gone)) is not None:
            return Invalid(found, "there, or the whole frame is missing", "Mark all of the frame as missing: NaN.")
        if cls.needs == "inputs":
            start = frames.shape[-1] - sizes.num_covariates
            found = first_index(some.unsqueeze(-1) & gone[..., start:])
            if found is not None:
                where = (*found[:-1], start + found[-1])
                remedy = "Fill the input in, or mark the whole frame as missing."
                return Invalid(where, "known inputs of every frame", remedy)
        if cls.needs == "all" and (found := first_index(inside.unsqueeze(-1) & gone)) is not None:
            return Invalid(
                found,
                "all there: a frame is a lag of the next ones, and a missing lag cannot be summed out",
                "Cut the sequence there, fill the frame in, or use observations without lags.",
            )
        return None

    def forward(self, keep: Tensor | None = None) -> Observation:
        """The distributions of the states at the indices `keep`; None: of all."""
        raise NotImplementedError

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" or "b t" -> "b t z"
        """The log-weight of every frame in every state."""
        return self.forward().log_obs(frames)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" or "n" -> "n s"
        """The sufficient statistics of each frame, float64; 0 where it is missing."""
        raise UnsupportedError(f'{type(self).__name__} has no step of EM.\n  Use train.optimizer="adam".')

    def sequence_statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "b t f" or "b t" -> "(t b) s"
        """The statistics of whole sequences, time first; where they depend on frames before, override this one."""
        return self.statistics(frames.transpose(0, 1).flatten(0, 1), prior)

    def log_obs_of(self, statistics: Tensor, prior: Prior) -> Tensor | None:  # "n s" -> "n z"
        """The log-weight of every frame in every state, where it is a product with the statistics; None: from frames.

        EM keeps the statistics, so that this is all it computes from the frames at each step.
        """
        return None

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "z s"
        """The expected statistics of every state; those of several batches add up."""
        return posterior.double().mT @ statistics

    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z s"
        """Set the parameters to the maximum of the expected log-weight; a state without counts keeps its own."""
        raise UnsupportedError(f'{type(self).__name__} has no step of EM.\n  Use train.optimizer="adam".')

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the prior, up to a constant; 0 without one. Differentiable in the parameters."""
        return torch.zeros((), dtype=torch.float64, device=next(self.parameters()).device)

    def rounding(self, prior: Prior) -> float:
        """A bound on the rounding error of one frame's log-weight, in nats: above 0 where large terms cancel."""
        return 0.0

    def keep_within(self, prior: Prior) -> None:
        """Clamp parameters to the bounds of the prior, after a gradient step."""

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"   without missing frames
        """Shift freshly drawn parameters to the average of all frames, and to their scale where features have one."""

    @classmethod
    def on_scale(cls, frames: Tensor, columns: Sequence[str] = ()) -> Tensor:  # "n f" -> "n f"
        """Features as means and variances are of them, those of priors too: log-normal ones are logarithms."""
        return frames

    def coordinates(self, frames: Tensor) -> Tensor:  # "n f" -> "n g"
        """Where frames lie for k-means, which looks for those that are near each other."""
        return self.on_scale(frames)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:  # "n f" or "n", "n", "z f"
        """Initialise each state from its frames: `states` are labels or nearest means, -1: none.

        `near`: the means are those of k-means, else frames drawn at random.
        """
        self.maximise(self.count(self.statistics(frames, prior), one_hot(states, len(means))), prior)

    def tables(self) -> Mapping[str, Table]:
        """The parameters by the names that `start=` and `fill` know them by."""
        return {}

    def fill(self, **tables: Tensor) -> None:
        """Set some of the tables."""
        raise UnsupportedError(f"{type(self).__name__} has no tables to fill.")

    @property
    def num_free(self) -> int:
        """The number of free parameters; override it for distributions, of whose n entries n - 1 are free."""
        return sum(x.numel() for x in self.parameters())


def first_index(wrong: Tensor) -> tuple[int, ...] | None:
    """Where the first true entry is; None if there is none."""
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None


def draw_table(sizes: Sizes, generator: torch.Generator) -> Tensor:  # "z f"
    """A standard normal number for each state and feature; zeros with `init` "papers", where all states are alike."""
    shape = (sizes.num_states, sizes.num_features)
    if sizes.init == "papers":
        return torch.zeros(shape, dtype=torch.float32)
    return normal(*shape, generator=generator).data


def network_of(sizes: Sizes, generator: torch.Generator) -> Network:
    """The networks of observations from embeddings."""
    return Network(sizes.dim, sizes.num_layers, generator, "xavier" if sizes.init == "papers" else "spread")


def one_hot(states: Tensor, num_states: int) -> Tensor:  # "n" -> "n z"   float64
    """1 at the state of each frame; none where it is -1."""
    return (states[:, None] == torch.arange(num_states, device=states.device)).double()


def means_of(frames: Tensor, states: Tensor, otherwise: Tensor) -> Tensor:  # "n f", "n", "z f" -> "z f"
    """The mean of the frames of each state; `otherwise` for states without frames."""
    number = torch.bincount(states, minlength=len(otherwise)).to(frames.dtype)[:, None]
    sums = torch.zeros_like(otherwise).index_add_(0, states, frames)
    return torch.where(number > 0, sums / torch.where(number > 0, number, 1), otherwise)


def moments_of(
    frames: Tensor, states: Tensor, means: Tensor, prior: Prior, *, near: bool
) -> tuple[Tensor, Tensor, Tensor]:  # "n f", "n", "z f" -> "z f", "z f", "z 1"
    """Means of the frames of each state, their variances with one more frame of the variance of all, and their number.

    Not `near`, where frames say little of their state: the variance of all.
    """
    number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
    mean = means_of(frames, states, means)
    squares = torch.zeros_like(means).index_add_(0, states, (frames - mean[states]).square())
    return mean, (squares + prior.spread) / (number + 1) if near else torch.zeros_like(mean) + prior.spread, number


def log_above(variance: Tensor, floor: float) -> Tensor:
    """log(variance - floor), of at least the floor once more: at the floor itself no gradient leads away."""
    above = variance.double()
    return (torch.maximum(above, above.new_tensor(2 * floor)) - floor if floor else above).log()
