"""Frames of independent yes-or-no features, the 88 keys of a piano: masses as matrix products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rankfold.errors import expect, expect_weights, may_look
from rankfold.numerics.precision import products_in
from rankfold.params.networks import Network, take_rows
from rankfold.params.observations.protocol import ObservationModule, Sizes, draw_table, means_of, network_of
from rankfold.params.prior import Prior, Table, weighted_logs


def log_mass(frames: Tensor, logit: Tensor) -> Tensor:  # "b t f" of 0, 1 and NaN, "z f" -> "b t z"
    """log p(x_t | z) = sum_f x log p + (1 - x) log(1 - p), p = sigmoid(logit), over the features that are not NaN.

    One product of "t 2f" and "2f z", all of whose terms have one sign. An infinite logit is certainty: a frame that
    contradicts it has -inf, found by a second product of the same size, which is left out where no logit is infinite
    and that may be looked at. Cost: 2 t f z multiply-adds, or twice that.
    """
    on, off = (frames == 1).to(logit.dtype), (frames == 0).to(logit.dtype)
    return weighed(torch.cat([on, off], -1), torch.cat([logsigmoid(logit), logsigmoid(-logit)], -1))


def weighed(marks: Tensor, log_p: Tensor) -> Tensor:  # "b t k" of 0 and 1, "z k" -> "b t z"
    """The sum of log p where there is a mark; -inf has its effect there alone."""
    never = log_p.detach() == float("-inf")
    with products_in("float32", log_p.device):
        if may_look(log_p) and not bool(never.any()):
            return marks @ log_p.mT
        total = marks @ log_p.masked_fill(never, 0.0).mT
        against = marks @ never.to(log_p.dtype).mT
    return total.masked_fill(against > 0, float("-inf"))


class Bernoulli(NamedTuple):
    """The log-odds of every feature in the states that are kept."""

    logit: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        return log_mass(frames, self.logit)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return torch.bernoulli(torch.sigmoid(self.logit)[states], generator=generator)


class _YesOrNo(ObservationModule):
    values = "0 or 1"
    remedy = 'Cut them at a threshold (x > 0.5), or use observations="gaussian".'

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return ~((frames == 0) | (frames == 1) | frames.isnan())


class BernoulliObservation(_YesOrNo):
    """Free log-odds "z f"; of any range, infinite ones included, which training does not change."""

    priors = ("emission",)

    def __init__(self, logit: Tensor) -> None:  # "z f"
        super().__init__()
        self.logit = nn.Parameter(logit)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> ObservationModule:  # type: ignore[override]
        """Standard normal log-odds, or a network; papers: all states are alike, at even odds."""
        if not sizes.neural:
            return cls(draw_table(sizes, generator))
        return NeuralBernoulliObservation(sizes.num_states, sizes.num_features, network_of(sizes, generator))

    @classmethod
    def of(cls, probability: Tensor) -> BernoulliObservation:  # "z f"
        """With these probabilities of a 1, 0 and 1 included."""
        expect(probability, "z f", name="probability")
        expect_weights(probability, name="probability")
        expect_weights(1 - probability, name="1 - probability")
        return cls(torch.logit(probability.detach().double()).to(probability.dtype))

    def forward(self, keep: Tensor | None = None) -> Bernoulli:
        return Bernoulli(take_rows(self.logit, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 2f"
        """x and 1 - x of each feature that is there."""
        both = torch.cat([frames, 1 - frames], 1).double()
        return both.masked_fill_(both.isnan(), 0.0)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 2f"
        """The share of ones, with `smoothing` frames of each value, and those of `emission`."""
        if "probability" in prior.fixed:
            return
        ones, zeros = (x + prior.smoothing + prior.emission for x in counts.chunk(2, 1))
        # Of the two counts, not of their share: 1 - p has no digits to spare.
        self.logit.copy_(torch.where(ones + zeros > 0, ones.log() - zeros.log(), self.logit.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        if not prior.smoothing and not isinstance(prior.emission, Tensor) and not prior.emission:
            return super().log_prior(prior)
        logit = self.logit.double()
        both = logsigmoid(logit) + logsigmoid(-logit)
        return weighted_logs(prior.smoothing + prior.emission, both)

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn log-odds are added to those of all frames, and of one more frame of each value: none is impossible."""
        share = torch.from_numpy((frames.sum(0) + 1) / (len(frames) + 2))
        with torch.no_grad():
            self.logit.add_(torch.logit(share).to(self.logit.device))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The shares of ones as if each state had seen one more frame, of the share in all; smoothing leaves no 0."""
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        overall = (frames.sum(0) + prior.smoothing) / (len(frames) + 2 * prior.smoothing)
        self.fill(probability=(means_of(frames, states, means) * number + overall) / (number + 1))

    def tables(self) -> dict[str, Table]:
        return {"probability": Table(self.logit.detach().double().sigmoid())}

    def fill(self, *, probability: Tensor) -> None:  # type: ignore[override]
        """Set the probabilities of a 1, "z f"."""
        with torch.no_grad():
            self.logit.copy_(torch.logit(probability.double()))


class NeuralBernoulliObservation(_YesOrNo):
    """Each feature a two-way softmax of f2(e_z) . w + bias, w and bias for off and on.

    Source: the music model of Chiu, Deng, Rush 2021, by their code: 2 f vectors of the features' two values.
    """

    def __init__(self, num_states: int, num_features: int, network: Network) -> None:
        super().__init__()
        size = 2 * num_features
        self.state, self.value = network.embeddings(num_states, size)
        self.bias = nn.Parameter(torch.zeros(size, dtype=torch.float32))
        self.mlp = network.mlp()

    def forward(self, keep: Tensor | None = None) -> Bernoulli:
        off, on = self.value.chunk(2)
        bias_off, bias_on = self.bias.chunk(2)
        return Bernoulli(self.mlp(take_rows(self.state, keep)) @ (on - off).mT + (bias_on - bias_off))
