"""How long segments last: tables of log-probabilities "z d", and the parameters that maximise expected counts.

All are normalised over 1..d. A Poisson's rate is found by bisection, exactly; a negative binomial's shape by a step
that is taken only if it gains (generalised EM); a categorical table is its own counts. Read next: `em.py`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from rankfold.estimators.observations import shares

Array = NDArray[np.float64]
Kind = Literal["poisson", "negative_binomial", "categorical"]
NEAR = 2.0**-30  # of a mean duration: how near to the shortest or longest a rate goes whose maximum is at infinity


class Durations(NamedTuple):
    """The parameters of all states; which of them are there says the kind.

    poisson             p(d) ~ rate^d / d!
    negative_binomial   p(d) ~ Gamma(d - 1 + shape) / (d - 1)!  share^(d - 1),   share below 1

    as `params.durations` writes them.
    """

    kind: Kind
    longest: int
    log_rate: Tensor | None = None  # "z": log rate, or log share
    log_shape: Tensor | None = None  # "z"
    table: Tensor | None = None  # "z d"

    def log_table(self) -> Tensor:  # "z d"
        """The log-probability of each duration, the first column that of 1."""
        if self.table is not None:
            return self.table.log()
        assert self.log_rate is not None
        return _tilted(self._base(self.log_shape), self.log_rate)

    def _base(self, log_shape: Tensor | None) -> Tensor:  # "1 d" or "z d"
        """The log-weights at rate 1."""
        assert self.log_rate is not None
        d = _lengths(self.longest, self.log_rate)
        if log_shape is None:
            return -torch.lgamma(d + 1)[None]
        return pad(torch.log((log_shape.exp()[:, None] + d[:-1] - 1) / d[:-1]).cumsum(1), (1, 0))

    def maximise(self, counts: Tensor, smoothing: float) -> Durations:  # "z d"
        """The parameters that maximise (categorical, Poisson) or do not lower (negative binomial) what is expected."""
        if self.table is not None:
            return self._replace(table=shares(counts + smoothing, self.table))
        assert self.log_rate is not None
        seen = counts.sum(1) > 0
        if self.log_shape is None:
            found = _matched(self._base(None), counts, self.log_rate)
            return self._replace(log_rate=torch.where(seen, found, self.log_rate))
        # Of a few shapes around the present one, each with its best share, the best; the present one is among them.
        best = (counts * self.log_table()).sum(1)
        log_rate, log_shape = self.log_rate, self.log_shape
        for step in (0.0, -1.0, -0.25, -0.0625, 0.0625, 0.25, 1.0):
            tried = self.log_shape + step
            base = self._base(tried)
            # The expected log-weight is concave in the log of the share: below 1 its maximum is that without, cut off.
            rate = _matched(base, counts, self.log_rate).clamp(max=-torch.finfo(base.dtype).eps)
            value = (counts * _tilted(base, rate)).sum(1)
            better = seen & (value > best)
            best = torch.where(better, value, best)
            log_rate, log_shape = torch.where(better, rate, log_rate), torch.where(better, tried, log_shape)
        return self._replace(log_rate=log_rate, log_shape=log_shape)

    def log_prior(self, smoothing: float) -> Tensor | float:  # ""
        """The log-density of the Dirichlet prior of a categorical table, up to a constant; 0 for the others."""
        return smoothing * self.table.log().sum() if smoothing and self.table is not None else 0.0


def started(kind: Kind, longest: int, mean: Tensor) -> Durations:  # "z"
    """Durations of about this mean."""
    if kind == "categorical":
        d = _lengths(longest, mean)
        table = _tilted(torch.zeros_like(d)[None], torch.log1p(-1 / (mean + 1))).exp()
        return Durations(kind, longest, table=table)
    if kind == "poisson":
        return Durations(kind, longest, log_rate=mean.log())
    shape = torch.full_like(mean, 2.0)
    return Durations(kind, longest, log_rate=torch.log(mean / (mean + shape)), log_shape=shape.log())


def _lengths(longest: int, like: Tensor) -> Tensor:  # "d"
    return torch.arange(1, longest + 1, dtype=like.dtype, device=like.device)


def _tilted(base: Tensor, log_rate: Tensor) -> Tensor:  # "z d", "z" -> "z d"
    return (base + log_rate[:, None] * _lengths(base.shape[1], base)).log_softmax(1)


def _matched(base: Tensor, counts: Tensor, start: Tensor) -> Tensor:  # "z d", "z d", "z" -> "z"
    """The log-rates whose mean duration is that of the counts: the maximum of an exponential family.

    The mean grows with the rate: the bracket is doubled until it holds the root, then halved to the last digit. Counts
    of one extreme duration alone have their maximum at infinity: the bracket ends where the mean is within NEAR of it,
    a step that gains like any other.
    """
    # In numpy: tables this small are read faster than torch's threads wake up for them, some hundred times a step.
    table, uses, begin = (x.detach().cpu().double().numpy() for x in (base, counts, start))
    d = np.arange(1.0, table.shape[1] + 1)
    total = uses.sum(1)
    wanted = np.where(total > 0, (uses @ d) / np.where(total > 0, total, 1.0), _mean(table, begin, d))
    width = np.ones_like(begin)
    low, high = begin - width, begin + width
    while True:
        below, above = _mean(table, low, d), _mean(table, high, d)
        under, over = (below > wanted) & (below > d[0] * (1 + NEAR)), (above < wanted) & (above < d[-1] * (1 - NEAR))
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
