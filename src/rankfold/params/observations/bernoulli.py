"""Frames of independent yes-or-no features, the 88 keys of a piano: masses as matrix products."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rankfold.errors import expect, expect_weights, may_look
from rankfold.numerics.precision import products_in
from rankfold.params.networks import normal, residual_mlp, taken, xavier
from rankfold.params.observations.categorical import InitKind


def log_mass(frames: Tensor, logit: Tensor) -> Tensor:  # "b t f" of 0, 1 and NaN, "z f" -> "b t z"
    """log p(x_t | z) = sum_f x log p + (1 - x) log(1 - p), p = sigmoid(logit), over the features that are not NaN.

    One product of "t 2f" and "2f z", all of whose terms have one sign. An infinite logit is certainty: a frame that
    contradicts it has -inf, found by a second product of the same size, which is left out where no logit is infinite
    and that may be looked at. Cost: 2 t f z multiply-adds, or twice that.
    """
    on, off = (frames == 1).to(logit.dtype), (frames == 0).to(logit.dtype)
    both = torch.cat([on, off], -1)
    log_p = torch.cat([logsigmoid(logit), logsigmoid(-logit)], -1)
    never = log_p.detach() == float("-inf")
    with products_in("float32", logit.device):
        if may_look(logit) and not bool(never.any()):
            return both @ log_p.mT
        total = both @ log_p.masked_fill(never, 0.0).mT
        against = both @ never.to(logit.dtype).mT
    return total.masked_fill(against > 0, float("-inf"))


class Bernoulli(NamedTuple):
    """The log-odds of every feature in the states that are kept."""

    logit: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        return log_mass(frames, self.logit)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return torch.bernoulli(torch.sigmoid(self.logit)[states], generator=generator)


class BernoulliObservation(nn.Module):
    """Free log-odds "z f"; of any range, infinite ones included, which stay what they are in training."""

    def __init__(self, logit: Tensor) -> None:  # "z f"
        super().__init__()
        self.logit = nn.Parameter(logit)

    @classmethod
    def draw(cls, num_states: int, num_features: int, *, generator: torch.Generator | None) -> BernoulliObservation:
        """Standard normal log-odds; without a generator all states are alike, at even odds."""
        shape = (num_states, num_features)
        return cls(
            torch.zeros(shape, dtype=torch.float32) if generator is None else normal(*shape, generator=generator).data
        )

    @classmethod
    def of(cls, probability: Tensor) -> BernoulliObservation:  # "z f"
        """With these probabilities of a 1, 0 and 1 included."""
        expect(probability, "z f", name="probability")
        expect_weights(probability, name="probability")
        expect_weights(1 - probability, name="1 - probability")
        return cls(torch.logit(probability.detach().double()).to(probability.dtype))

    def forward(self, keep: Tensor | None = None) -> Bernoulli:
        return Bernoulli(taken(self.logit, keep))

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-probability of every frame in every state."""
        return self.forward().log_obs(frames)


class NeuralBernoulliObservation(nn.Module):
    """Each feature a two-way softmax of f2(e_z) . w + bias, w and bias for off and on.

    Source: the music model of Chiu, Deng, Rush 2021, by their code: 2 f vectors of the features' two values.
    """

    def __init__(
        self,
        num_states: int,
        num_features: int,
        dim: int,
        num_layers: int,
        *,
        init: InitKind = "spread",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        size = 2 * num_features
        if init == "xavier":
            self.state, self.value = (
                xavier(num_states, dim, generator=generator),
                xavier(size, dim, generator=generator),
            )
        else:
            self.state = normal(num_states, dim, generator=generator)
            self.value = normal(size, dim, spread=dim**-0.5, generator=generator)
        self.bias = nn.Parameter(torch.zeros(size, dtype=torch.float32))
        self.mlp = residual_mlp(dim, num_layers, generator=generator)

    def forward(self, keep: Tensor | None = None) -> Bernoulli:
        off, on = self.value.chunk(2)
        bias_off, bias_on = self.bias.chunk(2)
        return Bernoulli(self.mlp(taken(self.state, keep)) @ (on - off).mT + (bias_on - bias_off))

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-probability of every frame in every state."""
        return self.forward().log_obs(frames)
