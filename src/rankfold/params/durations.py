"""How long a segment lasts: tables "z d" of log-probabilities of 1..d frames, and modules that hold their parameters.

All are cut at the longest duration and sum to 1 below it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from rankfold.params.networks import normal, taken


def poisson(log_rate: Tensor, max_duration: int, *, normalised: bool = True) -> Tensor:  # "z" -> "z d"
    """log p(d | z) of a Poisson variable of this rate, given that it lies in 1..max_duration.

        p(d) = rate^d / d!  /  sum_{e = 1..max_duration} rate^e / e!

    Not normalised: d log rate - rate - log d!, whose mass at 0 and above the longest is lost, as in the code of Chiu,
    Deng, Rush 2021. In float64, returned in the rate's dtype. Cost: z d.
    """
    duration = torch.arange(1, max_duration + 1, dtype=torch.float64, device=log_rate.device)
    log_mass = log_rate.double()[:, None] * duration - torch.lgamma(duration + 1)
    log_mass = log_mass.log_softmax(1) if normalised else log_mass - log_rate.double().exp()[:, None]
    return log_mass.to(log_rate.dtype)


def negative_binomial(log_shape: Tensor, log_odds: Tensor, max_duration: int) -> Tensor:  # "z", "z" -> "z d"
    """log p(d | z) where d - 1 is negative binomial, given that d is at most max_duration.

        p(d) proportional to  Gamma(d - 1 + shape) / (Gamma(shape) (d - 1)!)  q^(d - 1),   q = sigmoid(log_odds)

    Shape 1 is the geometric distribution of an ordinary hidden Markov chain; a Poisson's variance is its limit, any
    larger one can be had. In float64, returned in the shape's dtype. Cost: z d.
    """
    more = torch.arange(max_duration, dtype=torch.float64, device=log_shape.device)
    shape = log_shape.double().exp()[:, None]
    # Products of (shape + i) / (i + 1), not a difference of log Gammas, which cancels where the shape is large.
    ways = pad(torch.log((shape + more[:-1]) / more[1:]).cumsum(1), (1, 0))
    log_mass = ways + more * logsigmoid(log_odds.double())[:, None]
    return log_mass.log_softmax(1).to(log_shape.dtype)


def categorical(logits: Tensor) -> Tensor:  # "z d" -> "z d"
    """log p(d | z) = log softmax_d of free logits; -inf stays -inf."""
    return logits.log_softmax(1)


class PoissonDuration(nn.Module):
    """A rate for each state."""

    def __init__(self, log_rate: Tensor, max_duration: int, *, normalised: bool = True) -> None:  # "z"
        super().__init__()
        self.log_rate, self.max_duration, self.normalised = nn.Parameter(log_rate), max_duration, normalised

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        return poisson(taken(self.log_rate, keep), self.max_duration, normalised=self.normalised)


class NegativeBinomialDuration(nn.Module):
    """A shape and log-odds for each state."""

    def __init__(self, log_shape: Tensor, log_odds: Tensor, max_duration: int) -> None:  # "z", "z"
        super().__init__()
        self.log_shape, self.log_odds = nn.Parameter(log_shape), nn.Parameter(log_odds)
        self.max_duration = max_duration

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        return negative_binomial(taken(self.log_shape, keep), taken(self.log_odds, keep), self.max_duration)


class CategoricalDuration(nn.Module):
    """A table of logits."""

    def __init__(self, logits: Tensor) -> None:  # "z d"
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        return categorical(taken(self.logits, keep))


Duration = PoissonDuration | NegativeBinomialDuration | CategoricalDuration


def draw_duration(
    kind: str, num_states: int, max_duration: int, *, normalised: bool, generator: torch.Generator | None
) -> Duration:
    """Fresh durations: rates and means around a quarter of the longest; without a generator rate 1, or all alike.

    Tables begin uniform, with a little noise.
    """
    noise = (
        torch.zeros(num_states, dtype=torch.float32)
        if generator is None
        else normal(num_states, spread=0.5, generator=generator).data
    )
    centre = 0.0 if generator is None else math.log(max(1.0, max_duration / 4))
    if kind == "poisson":
        return PoissonDuration(noise + centre, max_duration, normalised=normalised)
    if kind == "negative_binomial":  # shape 1, q = mean / (1 + mean): log-odds is the log of the mean
        return NegativeBinomialDuration(torch.zeros(num_states, dtype=torch.float32), noise + centre, max_duration)
    if generator is None:
        return CategoricalDuration(torch.zeros(num_states, max_duration, dtype=torch.float32))
    return CategoricalDuration(normal(num_states, max_duration, spread=0.1, generator=generator).data)
