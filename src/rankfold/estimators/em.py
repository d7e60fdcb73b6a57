"""Expectation maximisation with exact counts: every step maximises, none lowers the likelihood (or the posterior).

Read next: `expectation.py` for the counts, `observations.py`, `moves.py`, `durations.py` for their maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from rankfold.estimators.expectation import Counts, Tables, expected
from rankfold.estimators.observations import Family, shares
from rankfold.estimators.packed import Group


class Priors(NamedTuple):
    """What is added to counts, and which moves have none."""

    smoothing: float = 0.0
    forbidden: Tensor | None = None  # "z y", of dense transitions


class Fitted(NamedTuple):
    """Where EM ended."""

    tables: Tables
    history: list[float]  # the log-likelihood (plus the log-prior) of the tables before each step, and of the last
    converged: bool


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


def log_prior(tables: Tables, family: Family, priors: Priors) -> float:
    """The log-density of the priors, up to a constant; 0 without any."""
    total = family.log_prior(tables.observed) + tables.moves.log_prior(priors.smoothing, priors.forbidden)
    if priors.smoothing:
        total += float(priors.smoothing * tables.initial.log().sum())
    if tables.durations is not None:
        total += tables.durations.log_prior(priors.smoothing)
    return total


def em(
    groups: Sequence[Group], tables: Tables, family: Family, priors: Priors, *, num_steps: int, tol: float | None
) -> Fitted:
    """At most `num_steps` steps; fewer where one gains less than `tol` nats a frame (None: never fewer).

    The last tables are returned, and the value of every table but the last is in the history: to know the last one's
    would cost another E step.
    """
    num_frames = sum(int(group.lengths.sum()) for group in groups)
    history: list[float] = []
    converged = False
    for _ in range(num_steps):
        counts = expected(groups, tables, family)
        history.append(counts.log_likelihood + log_prior(tables, family, priors))
        if tol is not None and len(history) > 1 and history[-1] - history[-2] < tol * num_frames:
            converged = True
            break
        tables = maximised(counts, tables, family, priors)
    return Fitted(tables, history, converged)
