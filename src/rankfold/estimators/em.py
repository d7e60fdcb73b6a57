"""Expectation maximisation with exact counts: every step maximises, none lowers the likelihood (or the posterior).

Read next: `expectation.py` for the counts, `observations.py`, `moves.py`, `durations.py` for their maxima.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.estimators.expectation import Counts, Tables, expected
from rankfold.estimators.observations import Family, shares
from rankfold.estimators.packed import Group

# What rounding makes of equal values was at most 7 eps of the size of what they are the sum of.
ROUNDINGS = 64


class Priors(NamedTuple):
    """What is added to counts, and which moves have none."""

    smoothing: float = 0.0
    forbidden: Tensor | None = None  # "z y", of dense transitions


class Fitted(NamedTuple):
    """Where EM ended."""

    tables: Tables
    history: list[float]  # the log-likelihood (plus the log-prior) of the tables before each step, and of the last
    converged: bool
    counts: Counts  # the last ones that tables were made of, or of the tables themselves


def maximised(counts: Counts, tables: Tables, family: Family, priors: Priors) -> Tables:
    """The M step."""
    smoothing = priors.smoothing
    durations = tables.durations
    if durations is not None:
        assert counts.durations is not None
        durations = durations.maximise(counts.durations, smoothing)
    return tables._replace(
        initial=shares(counts.initial + smoothing, tables.initial, 0),
        moves=tables.moves.maximise(counts.moves, smoothing, priors.forbidden),
        observed=family.maximise(counts.observed, tables.observed),
        durations=durations,
    )


def log_prior(tables: Tables, family: Family, priors: Priors) -> Tensor:  # ""
    """The log-density of the priors, up to a constant; 0 without any. Differentiable in the tables.

    smoothing times the logs of all starts, moves that are not forbidden (of a low rank: both factors), symbols, zeros
    and ones, and entries of duration tables; and of each variance v of a state, in a feature of variance s,
    -variance_prior / 2 (log v + s / v).
    """
    total = family.log_prior(tables.observed) + tables.moves.log_prior(priors.smoothing, priors.forbidden)
    if priors.smoothing:
        total = total + priors.smoothing * tables.initial.log().sum()
    if tables.durations is not None:
        total = total + tables.durations.log_prior(priors.smoothing)
    return total


def _rounding(value: float, num_frames: int, dtype: torch.dtype, size: float) -> float:
    """One rounding of a log-likelihood: of its sum over frames in the dtype, of each frame's own terms in float64."""
    wide, narrow = torch.finfo(torch.float64).eps, torch.finfo(dtype).eps
    return narrow * (abs(value) + num_frames) + wide * num_frames * size


def em(
    groups: Sequence[Group], tables: Tables, family: Family, priors: Priors, *, num_steps: int, tol: float | None
) -> Fitted:
    """At most `num_steps` steps; fewer where one gains less than `tol` nats a frame (None: never fewer).

    The last tables are returned, and the value of every table but the last is in the history: to know the last one's
    would cost another E step. A step that loses more than rounding can explain is no convergence: the tables before
    it are returned, and a warning says what was lost.
    """
    num_frames = sum(int(group.lengths.sum()) for group in groups)
    history: list[float] = []
    converged = False
    before, counts = tables, None
    for _ in range(num_steps):
        last = counts
        counts = expected(groups, tables, family)
        value = counts.log_likelihood + float(log_prior(tables, family, priors))
        gain = value - history[-1] if history else math.inf
        if gain < -ROUNDINGS * _rounding(value, num_frames, groups[0].dtype, family.size(tables.observed)):
            warnings.warn(
                f"a step of EM lost {-gain:g} nats ({history[-1]:g} to {value:g}), which no exact step does: the fit "
                f"ends before it, after {len(history)} steps, and has not converged.\n"
                '  Numbers too far apart for their dtype do that: rescale the features, or use dtype="float64".',
                stacklevel=6,
            )
            assert last is not None
            return Fitted(before, history, False, last)
        history.append(value)
        if tol is not None and gain < tol * num_frames:
            converged = True
            break
        before, tables = tables, maximised(counts, tables, family, priors)
    assert counts is not None
    return Fitted(tables, history, converged, counts)
