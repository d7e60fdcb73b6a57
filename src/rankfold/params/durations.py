"""How long a segment lasts: tables "z d" of log-probabilities of 1..d frames, and modules that hold their parameters.

All are cut at the longest duration and sum to 1 below it. EM sets a table to its own counts, a Poisson's rate exactly,
and a negative binomial's shape by a step that is taken only if it gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from rankfold.errors import DomainError, UnsupportedError
from rankfold.params.networks import normal, take_rows
from rankfold.params.prior import Prior, Table, log_shares, weighted_logs

Array = NDArray[np.float64]
NEAR = 2.0**-30  # of a mean duration: how near to the shortest or longest a rate goes whose maximum is at infinity


def _long(log_mass: Tensor, shortest: int) -> Tensor:  # "... d"
    """The log-mass without durations below the shortest."""
    duration = torch.arange(1, log_mass.shape[-1] + 1, device=log_mass.device)
    return log_mass if shortest == 1 else log_mass.masked_fill(duration < shortest, float("-inf"))


def poisson(
    log_rate: Tensor, max_duration: int, *, normalised: bool = True, shortest: int = 1
) -> Tensor:  # "z" -> "z d"
    """log p(d | z) of a Poisson variable of this rate, given that it lies in shortest..max_duration.

        p(d) = rate^d / d!  /  sum_{e = shortest..max_duration} rate^e / e!

    Not normalised: d log rate - rate - log d!, whose mass at 0 and above the longest is lost, as in the code of Chiu,
    Deng, Rush 2021. In float64, returned in the rate's dtype. Cost: z d.
    """
    duration = torch.arange(1, max_duration + 1, dtype=torch.float64, device=log_rate.device)
    log_mass = log_rate.double()[:, None] * duration - torch.lgamma(duration + 1)
    log_mass = _long(log_mass, shortest)
    log_mass = log_mass.log_softmax(1) if normalised else log_mass - log_rate.double().exp()[:, None]
    return log_mass.to(log_rate.dtype)


def negative_binomial(
    log_shape: Tensor, log_odds: Tensor, max_duration: int, *, shortest: int = 1
) -> Tensor:  # "z", "z" -> "z d"
    """log p(d | z) where d - 1 is negative binomial, given that d is in shortest..max_duration.

        p(d) proportional to  Gamma(d - 1 + shape) / (Gamma(shape) (d - 1)!)  q^(d - 1),   q = sigmoid(log_odds)

    Shape 1 is the geometric distribution of an ordinary hidden Markov chain; a Poisson's variance is its limit, any
    larger one can be had. In float64, returned in the shape's dtype. Cost: z d.
    """
    more = torch.arange(max_duration, dtype=torch.float64, device=log_shape.device)
    log_mass = _log_ways(log_shape, max_duration) + more * logsigmoid(log_odds.double())[:, None]
    return _long(log_mass, shortest).log_softmax(1).to(log_shape.dtype)


def _log_ways(log_shape: Tensor, max_duration: int) -> Tensor:  # "z" -> "z d"   float64
    """log Gamma(d - 1 + shape) / (Gamma(shape) (d - 1)!), as products of (shape + i) / (i + 1).

    A difference of log Gammas cancels where the shape is large.
    """
    more = torch.arange(max_duration, dtype=torch.float64, device=log_shape.device)
    shape = log_shape.double().exp()[:, None]
    return pad(torch.log((shape + more[:-1]) / more[1:]).cumsum(1), (1, 0))


def categorical(logits: Tensor) -> Tensor:  # "z d" -> "z d"
    """log p(d | z) = log softmax_d of free logits; -inf stays -inf."""
    return logits.log_softmax(1)


class Duration(nn.Module):
    """The durations of every state. Training needs `forward`; EM `maximise`, of the expected uses of each duration."""

    max_duration: int
    shortest: int = 1

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        """log p(d | z), the first column that of 1."""
        raise NotImplementedError

    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z d"
        """Set the parameters to the maximum of the expected log-likelihood, or so that it does not decrease."""
        raise NotImplementedError

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the prior, up to a constant; 0 without one."""
        return torch.zeros((), dtype=torch.float64, device=next(self.parameters()).device)

    def initialise(self, mean: Tensor) -> None:  # "z"
        """Begin with durations of about this mean."""
        raise NotImplementedError

    def tables(self) -> Mapping[str, Table]:
        """The parameters by the names that `start=` and `fill` know them by."""
        raise NotImplementedError

    def fill(self, **tables: Tensor) -> None:
        """Set some of the tables."""
        raise NotImplementedError

    @property
    def num_free(self) -> int:
        """The number of free parameters."""
        num_states, each = len(next(self.parameters())), len(list(self.parameters()))
        return num_states * min(each, self.max_duration - self.shortest)


class PoissonDuration(Duration):
    """A rate for each state."""

    def __init__(
        self, log_rate: Tensor, max_duration: int, *, normalised: bool = True, shortest: int = 1
    ) -> None:  # "z"
        super().__init__()
        self.log_rate, self.max_duration, self.normalised = nn.Parameter(log_rate), max_duration, normalised
        self.shortest = shortest

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        rate = take_rows(self.log_rate, keep)
        return poisson(rate, self.max_duration, normalised=self.normalised, shortest=self.shortest)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z d"
        """The rate whose mean duration is that of the counts, found by bisection."""
        if "log_rate" in prior.fixed:
            return
        before = self.log_rate.double()
        duration = torch.arange(1, self.max_duration + 1, dtype=torch.float64, device=before.device)
        found = match_means(_long(-torch.lgamma(duration + 1)[None], self.shortest), counts, before)
        self.log_rate.copy_(torch.where(counts.sum(1) > 0, found, before))

    def initialise(self, mean: Tensor) -> None:  # "z"
        self.fill(log_rate=mean.log())

    def tables(self) -> dict[str, Table]:
        return {"log_rate": Table(self.log_rate.detach().double())}

    def fill(self, *, log_rate: Tensor) -> None:  # type: ignore[override]
        with torch.no_grad():
            self.log_rate.copy_(log_rate)


class NegativeBinomialDuration(Duration):
    """A shape and log-odds for each state."""

    def __init__(self, log_shape: Tensor, log_odds: Tensor, max_duration: int, *, shortest: int = 1) -> None:  # "z"
        super().__init__()
        self.log_shape, self.log_odds = nn.Parameter(log_shape), nn.Parameter(log_odds)
        self.max_duration, self.shortest = max_duration, shortest

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        shape, odds = take_rows(self.log_shape, keep), take_rows(self.log_odds, keep)
        return negative_binomial(shape, odds, self.max_duration, shortest=self.shortest)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z d"
        """Of a few shapes around the present one, each with its best q, the best: generalised EM.

        The present parameters are among them, so nothing is ever lost.
        """
        if "log_rate" in prior.fixed and "log_shape" in prior.fixed:
            return
        if {"log_rate", "log_shape"} & prior.fixed:
            raise UnsupportedError("log_rate and log_shape of durations are fixed together, or neither.")
        before = self.log_shape.double()
        log_q = logsigmoid(self.log_odds.double())
        odds = self.log_odds.double()
        best = _expected(counts, negative_binomial(before, odds, self.max_duration, shortest=self.shortest))
        found_q, found_shape, seen = log_q, before, counts.sum(1) > 0
        duration = torch.arange(1, self.max_duration + 1, dtype=torch.float64, device=before.device)
        for step in (0.0, -1.0, -0.25, -0.0625, 0.0625, 0.25, 1.0):
            shape = before + step
            ways = _long(_log_ways(shape, self.max_duration), self.shortest)
            # The expected log-weight is concave in log q: below 0 its maximum is that without the bound, cut off.
            rate = match_means(ways, counts, log_q).clamp(max=-torch.finfo(torch.float64).eps)
            value = _expected(counts, (ways + rate[:, None] * duration).log_softmax(1))
            better = seen & (value > best)
            best = torch.where(better, value, best)
            found_q, found_shape = torch.where(better, rate, found_q), torch.where(better, shape, found_shape)
        changed = (found_q != log_q) | (found_shape != before)
        self.log_odds.copy_(torch.where(changed, _odds(found_q), self.log_odds.double()))
        self.log_shape.copy_(found_shape)

    def initialise(self, mean: Tensor) -> None:  # "z"
        shape = torch.full_like(mean, 2.0)
        self.fill(log_rate=torch.log(mean / (mean + shape)), log_shape=shape.log())

    def tables(self) -> dict[str, Table]:
        log_q = logsigmoid(self.log_odds.detach().double())
        return {"log_rate": Table(log_q), "log_shape": Table(self.log_shape.detach().double())}

    def fill(self, *, log_rate: Tensor | None = None, log_shape: Tensor | None = None) -> None:  # type: ignore[override]
        """Set log q, the rate at which durations become less probable, and the log of the shape."""
        with torch.no_grad():
            if log_rate is not None:
                self.log_odds.copy_(_odds(log_rate))
            if log_shape is not None:
                self.log_shape.copy_(log_shape)


class CategoricalDuration(Duration):
    """A table of logits."""

    def __init__(self, logits: Tensor, *, shortest: int = 1) -> None:  # "z d"
        super().__init__()
        self.logits, self.max_duration, self.shortest = nn.Parameter(logits), logits.shape[1], shortest

    def forward(self, keep: Tensor | None = None) -> Tensor:  # "z d"
        return categorical(_long(take_rows(self.logits, keep), self.shortest))

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z d"
        """The share of each duration, with `smoothing` of each."""
        if "duration" not in prior.fixed:
            self.logits.copy_(log_shares(counts + self._pseudo_counts(prior), self.logits))

    def _pseudo_counts(self, prior: Prior) -> Tensor:  # "z d"   float64
        possible = _long(torch.zeros_like(self.logits, dtype=torch.float64), self.shortest).exp()
        return possible * prior.smoothing

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        if not prior.smoothing:
            return super().log_prior(prior)
        return weighted_logs(self._pseudo_counts(prior), categorical(_long(self.logits.double(), self.shortest)))

    def initialise(self, mean: Tensor) -> None:  # "z"
        """Geometric durations."""
        duration = torch.arange(1, self.max_duration + 1, dtype=mean.dtype, device=mean.device)
        self.fill(duration=_long(torch.log1p(-1 / (mean + 1))[:, None] * duration, self.shortest).softmax(1))

    def tables(self) -> dict[str, Table]:
        return {"duration": Table(_long(self.logits.detach().double(), self.shortest).softmax(1), axis=1)}

    def fill(self, *, duration: Tensor) -> None:  # type: ignore[override]
        if bool((duration[:, : self.shortest - 1] > 0).any()):
            raise DomainError(
                f"a duration below min_duration, {self.shortest}, has a probability above 0.\n"
                "  Set it to 0, and let the row sum to 1 again; or lower min_duration."
            )
        with torch.no_grad():
            self.logits.copy_(duration.log())

    @property
    def num_free(self) -> int:
        return len(self.logits) * (self.max_duration - self.shortest)


def _expected(counts: Tensor, log_p: Tensor) -> Tensor:  # "z d", "z d" -> "z"
    """sum_d counts log p; what has no count has no term."""
    return (counts * log_p.masked_fill(counts == 0, 0.0)).sum(1)


def _odds(log_q: Tensor) -> Tensor:
    """log q / (1 - q)"""
    return log_q - torch.log(-torch.expm1(log_q))


def match_means(base: Tensor, counts: Tensor, start: Tensor) -> Tensor:  # "1 d" or "z d", "z d", "z" -> "z"
    """The log-rates whose mean duration is that of the counts: the maximum of an exponential family.

    p(d) ~ exp(base[d] + d log_rate). The mean grows with the rate: the bracket is doubled until it holds the root, then
    halved to the last digit. Counts of one extreme duration alone have their maximum at infinity: the bracket ends
    where the mean is within NEAR of it, a step that gains like any other.
    """
    # In numpy: tables this small are read faster than torch's threads wake up for them, some hundred times per step.
    table, uses, begin = (x.detach().cpu().double().numpy() for x in (base, counts, start))
    d = np.arange(1.0, table.shape[1] + 1)
    least = d[np.isfinite(table).argmax(1)]  # durations that are too short have no mass
    total = uses.sum(1)
    wanted = np.where(total > 0, (uses @ d) / np.where(total > 0, total, 1.0), _mean(table, begin, d))
    width = np.ones_like(begin)
    low, high = begin - width, begin + width
    while True:
        below, above = _mean(table, low, d), _mean(table, high, d)
        under, over = (below > wanted) & (below > least * (1 + NEAR)), (above < wanted) & (above < d[-1] * (1 - NEAR))
        if not (under | over).any():
            break
        low, high = np.where(under, low - width, low), np.where(over, high + width, high)
        width = 2 * width
    for _ in range(64):
        middle = (low + high) / 2
        short = _mean(table, middle, d) < wanted
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return torch.from_numpy((low + high) / 2).to(start)


def _mean(base: Array, log_rate: Array, d: Array) -> Array:  # "z d", "z", "d" -> "z"
    """The mean duration of each state."""
    log_weight = base + log_rate[:, None] * d
    weight = np.exp(log_weight - log_weight.max(1, keepdims=True))
    found: Array = (weight @ d) / weight.sum(1)
    return found


def draw_duration(
    kind: str,
    num_states: int,
    max_duration: int,
    *,
    normalised: bool,
    generator: torch.Generator | None,
    shortest: int = 1,
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
        return PoissonDuration(noise + centre, max_duration, normalised=normalised, shortest=shortest)
    if kind == "negative_binomial":  # shape 1, q = mean / (1 + mean): log-odds is the log of the mean
        shape = torch.zeros(num_states, dtype=torch.float32)
        return NegativeBinomialDuration(shape, noise + centre, max_duration, shortest=shortest)
    if generator is None:
        return CategoricalDuration(torch.zeros(num_states, max_duration, dtype=torch.float32), shortest=shortest)
    return CategoricalDuration(
        normal(num_states, max_duration, spread=0.1, generator=generator).data, shortest=shortest
    )
