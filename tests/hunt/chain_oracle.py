"""Chains by forward and backward messages in wide logarithms, of any size; shares no code with the library.

Held to plain enumeration in `test_oracles.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tests.hunt.arithmetic import NONE, Array, exp, times, total


class Solved(NamedTuple):
    """Everything one wants to know of a batch of chains. Impossible sequences: log_z -inf, posteriors 0."""

    alpha: Array  # "b t z"     log p(x_1..t, z_t)
    beta: Array  # "b t z"      log p(x_t+1..T | z_t)
    log_z: Array  # "b"
    posterior: Array  # "b t z"
    moves: Array  # "b t-1 z y" log of the gradient in A of each step
    inside: Array  # "b t"


def solve(initial: Array, a: Array, obs: Array, final: Array, lengths: Array) -> Solved:
    """Forward, backward, and what they say: "b z", "z y" or "b t-1 z y", "b t z", "b z", "b"."""
    num, steps, states = obs.shape
    inside = np.arange(steps) < lengths[:, None]
    obs = np.where(inside[..., None], obs, 0.0)
    a = _each(a, inside)
    alpha, beta = np.full(obs.shape, NONE), np.full(obs.shape, NONE)
    alpha[:, 0] = initial + obs[:, 0]
    for t in range(1, steps):
        alpha[:, t] = total(alpha[:, t - 1, :, None] + a[:, t - 1], 1) + obs[:, t]
    for t in reversed(range(steps)):
        if t < steps - 1:
            beta[:, t] = total(a[:, t] + (obs[:, t + 1] + beta[:, t + 1])[:, None, :])
        beta[lengths - 1 == t, t] = final[lengths - 1 == t]
    log_z = total(alpha[np.arange(num), lengths - 1] + final)
    known = np.where(np.isfinite(log_z), log_z, 0.0)
    posterior = np.where(inside[..., None], exp(alpha + beta - known[:, None, None]), 0.0)
    ahead = obs[:, 1:] + beta[:, 1:]
    moves = alpha[:, :-1, :, None] + ahead[:, :, None, :] - known[:, None, None, None]
    moves = np.where((inside[:, 1:] & np.isfinite(log_z)[:, None])[..., None, None], moves, NONE)
    return Solved(alpha, beta, log_z, posterior, moves.reshape(num, steps - 1, states, states), inside)


def _each(a: Array, inside: Array) -> Array:  # "b t-1 z y"
    """A transition for each step; nothing beyond a length is read."""
    if a.ndim == 4:
        return np.where(inside[:, 1:, None, None], a, 0.0)
    return np.broadcast_to(a, (inside.shape[0], inside.shape[1] - 1, *a.shape))


def entropy(
    s: Solved, a: Array, log_a: Array, initial: Array, obs: Array, final: Array, lengths: Array
) -> Array:  # "b"
    """H of the path; log_a: what a use of (z, y) adds to the log-weight, log A itself or its mean over ranks."""
    end = np.arange(obs.shape[1]) == lengths[:, None] - 1
    expected = times(s.posterior, np.where(s.inside[..., None], obs, 0.0)).sum((1, 2))
    expected += times(s.posterior[:, 0], initial).sum(1)
    expected += np.where(end[..., None], times(s.posterior, final[:, None]), 0.0).sum((1, 2))
    a, log_a = _each(a, s.inside), _each(log_a, s.inside)
    expected += times(exp(s.moves + a), log_a).sum((1, 2, 3))
    return np.where(np.isfinite(s.log_z), np.where(np.isfinite(s.log_z), s.log_z, 0.0) - expected, 0.0)


def best(initial: Array, a: Array, obs: Array, final: Array, lengths: Array) -> Array:  # "b"
    """The log-weight of the best path."""
    a = _each(a, np.arange(obs.shape[1]) < lengths[:, None])
    score = initial + obs[:, 0]
    ends = np.where((lengths == 1)[:, None], score + final, NONE).max(1)
    for t in range(1, obs.shape[1]):
        inside = t < lengths
        score = (score[:, :, None] + a[:, t - 1]).max(1) + np.where(inside[:, None], obs[:, t], 0.0)
        ends = np.where(lengths - 1 == t, (score + final).max(1), ends)
    return ends


def weight(
    paths: Array, initial: Array, a: Array, obs: Array, final: Array, lengths: Array
) -> Array:  # "n b t" -> "n b"
    """The log-weight of given paths."""
    num, steps, _ = obs.shape
    rows = np.arange(num)
    a = _each(a, np.arange(steps) < lengths[:, None])
    out = initial[rows, paths[..., 0]] + obs[rows, 0, paths[..., 0]]
    for t in range(1, steps):
        inside = t < lengths
        step = a[rows, t - 1, paths[..., t - 1], paths[..., t]] + np.where(inside, obs[rows, t, paths[..., t]], 0.0)
        out = out + np.where(inside, step, 0.0)
    return out + final[rows, paths[:, rows, lengths - 1]]
