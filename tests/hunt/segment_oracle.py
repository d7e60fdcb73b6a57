"""Segments by messages over explicit tables of all segments, in wide logarithms; shares no code with the library.

One sequence at a time. A segment is (first frame, last frame, state); one that was carried in has an age as well.
Held to plain enumeration in `test_oracles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.hunt.arithmetic import NONE, Array, exp, total


@dataclass
class Tables:
    """The log-weights of all segments of one sequence of `frames` frames."""

    inner: Array  # "s e z"   from s to e, another one follows
    last: Array  # "s z"      from s to the end, log_final included
    carried: Array  # "e d z" carried in at age d + 1, to e - 1 (0: it ended at the border), another follows
    carried_last: Array  # "d z"
    first: Array  # "z"       a segment of z begins at 0; -inf where a state was carried in

    @property
    def frames(self) -> int:
        return len(self.last)


def tables(initial: Array, duration: Array, obs: Array, final: Array, censored: bool) -> Tables:
    """initial "z" or "d z", duration "z d", obs "t z", final "z"."""
    frames, states = obs.shape
    num = duration.shape[1]
    by_age = np.concatenate([duration.T, np.full((frames + num, states), NONE)])  # duration d at d - 1
    survive = np.stack([total(by_age[d:], 0) for d in range(len(by_age))])
    closing = survive if censored else by_age
    seen = np.concatenate([np.zeros((1, states), obs.dtype), np.cumsum(np.where(np.isfinite(obs), obs, 0.0), 0)])
    gone = np.concatenate([np.zeros((1, states), int), np.cumsum(~np.isfinite(obs), 0)])

    def span(s: int, e: int) -> Array:  # frames s..e-1
        return np.where(gone[e] > gone[s], NONE, seen[e] - seen[s])

    inner = np.full((frames, frames, states), NONE)
    last = np.full((frames, states), NONE)
    carried = np.full((frames, num, states), NONE)
    for s in range(frames):
        for e in range(s, frames - 1):
            inner[s, e] = by_age[e - s] + span(s, e + 1)
        last[s] = closing[frames - s - 1] + span(s, frames) + final
    carried_last = np.full((num, states), NONE)
    first = initial if initial.ndim == 1 else np.full(states, NONE)
    if initial.ndim == 2:
        for e in range(frames):
            carried[e] = initial + by_age[e : e + num] + span(0, e)
        carried_last = initial + closing[frames : frames + num] + span(0, frames) + final
    return Tables(inner, last, carried, carried_last, first)


@dataclass
class Solved:
    """Messages, log Z and posteriors of one sequence."""

    opened: Array  # "t z"
    begun: Array  # "t z"
    after: Array  # "t z"   given that a segment ended at t, another follows; the last row is log of nothing
    border: Array  # "z"    the same for a segment that ended before the first frame
    log_z: Array
    t: Tables

    def uses(self) -> tuple[Array, Array, Array, Array]:
        """The posteriors of all segments, by the tables."""
        z = self.log_z if np.isfinite(self.log_z) else 0.0
        t = self.t
        inner = exp(self.opened[:, None] + t.inner + self.after[None] - z)
        last = exp(self.opened + t.last - z)
        ahead = np.concatenate([self.border[None], self.after[:-1]])
        return inner, last, exp(t.carried + ahead[:, None] - z), exp(t.carried_last - z)

    def moves(self, a: Array) -> Array:  # "z y"
        """log d log Z / d A."""
        if not np.isfinite(self.log_z):
            return np.full(a.shape, NONE)
        closed = total(np.stack([total(self.opened[:, None] + self.t.inner, 0), *[self._carried_closed()]], -1))
        steps = closed[:-1, :, None] + self.begun[1:, None, :]
        first = total(self.t.carried[0], 0)[:, None] + self.begun[0]
        return total(np.concatenate([steps, first[None]]), 0) - self.log_z

    def _carried_closed(self) -> Array:
        out = np.full(self.opened.shape, NONE)
        out[:-1] = total(self.t.carried[1:], 1)
        return out


def solve(t: Tables, a: Array) -> Solved:
    """Forward and backward."""
    frames, states = t.last.shape
    opened, begun = np.full((frames, states), NONE), np.full((frames, states), NONE)
    after = np.full((frames, states), NONE)
    opened[0] = total(np.stack([t.first, total(total(t.carried[0], 0)[:, None] + a, 0)], -1))
    for s in range(1, frames):
        closed = total(np.concatenate([opened[:s] + t.inner[:s, s - 1], t.carried[s]]), 0)
        opened[s] = total(closed[:, None] + a, 0)
    for s in reversed(range(frames)):
        begun[s] = total(np.concatenate([t.inner[s, s:-1] + after[s:-1], t.last[s][None]]), 0)
        if s:
            after[s - 1] = total(a + begun[s])
    border = total(a + begun[0])
    log_z = total(np.concatenate([opened + t.last, t.carried_last]).reshape(-1))
    return Solved(opened, begun, after, border, log_z, t)


def best(t: Tables, a: Array) -> Array:
    """The log-weight of the best segmentation."""
    frames, states = t.last.shape
    opened = np.full((frames, states), NONE)
    opened[0] = np.maximum(t.first, (t.carried[0].max(0)[:, None] + a).max(0))
    for s in range(1, frames):
        closed = np.concatenate([opened[:s] + t.inner[:s, s - 1], t.carried[s]]).max(0)
        opened[s] = (closed[:, None] + a).max(0)
    top: Array = np.concatenate([opened + t.last, t.carried_last]).max()
    return top


def weight(t: Tables, a: Array, states: Array, begins: Array) -> Array:
    """The log-weight of a segmentation given by frames; a segment that was carried in takes its best age."""
    starts = np.nonzero(begins)[0].tolist()
    frames = t.frames
    out = t.first.dtype.type(0.0)
    if not starts or starts[0] > 0:
        if not starts:
            return t.carried_last[:, states[0]].max()
        out += t.carried[starts[0], :, states[0]].max()
        before = states[0]
    else:
        z = states[0]
        out += np.maximum(t.first[z], (t.carried[0].max(0) + a[:, z]).max())
        before = None
    for s, e in zip(starts, [*starts[1:], frames], strict=True):
        z = states[s]
        if before is not None:
            out += a[before, z]
        out += t.last[s, z] if e == frames else t.inner[s, e - 1, z]
        before = z
    return out


@dataclass
class Posterior:
    """Probabilities by frame, and expected counts."""

    states: Array  # "t z"
    starts: Array  # "t z"
    ends: Array  # "t z"
    durations: Array  # "z d"
    final: Array  # "z"
    initial: Array  # "z", or "d z" carried in


def posterior(s: Solved, duration: Array, censored: bool, carried: bool) -> Posterior:
    """What the uses of all segments say."""
    inner, last, came, came_last = s.uses() if np.isfinite(s.log_z) else [0.0 * exp(x) for x in _all(s.t)]
    frames, states = last.shape
    num = duration.shape[1]
    at = np.zeros((frames, states), last.dtype)
    durations = np.zeros((frames + 2 * num, states), last.dtype)
    for i in range(frames):
        for e in range(i, frames - 1):
            at[i : e + 1] += inner[i, e]
            durations[e - i] += inner[i, e]
        at[i:] += last[i]
        durations[: len(durations)] += _ages(last[i][None], duration, frames - i - 1, censored, len(durations))
        at[:i] += came[i].sum(0)
        durations[i : i + num] += came[i]
    at += came_last.sum(0)
    durations += _ages(came_last, duration, frames, censored, len(durations))
    ends = inner.sum(0)
    ends[:-1] += came[1:].sum(1)
    if not censored:
        ends[-1] += last.sum(0) + came_last.sum(0)
    known = s.log_z if np.isfinite(s.log_z) else 0.0
    starts = exp(s.opened + s.begun - known) if np.isfinite(s.log_z) else np.zeros_like(at)
    initial = came.sum(0) + came_last if carried else starts[0]
    return Posterior(at, starts, ends, durations[:num].T, last.sum(0) + came_last.sum(0), initial)


def _all(t: Tables) -> tuple[Array, ...]:
    return tuple(np.where(np.isfinite(x), 0.0, x) for x in (t.inner, t.last, t.carried, t.carried_last))


def _ages(uses: Array, duration: Array, first: int, censored: bool, length: int) -> Array:  # "d z" -> "d z"
    """Uses of last segments by whole duration; row d of `uses` was seen for first + d + 1 frames."""
    out = np.zeros((length, uses.shape[1]), uses.dtype)
    if not censored:
        out[first : first + len(uses)] += uses[: length - first]
        return out
    by_age = duration.T
    for d, row in enumerate(uses):
        rest = by_age[first + d :]
        if len(rest):
            whole = total(rest, 0)
            share = exp(rest - np.where(np.isfinite(whole), whole, 0.0))
            out[first + d : len(by_age)] += np.where(row > 0, row * share, 0.0)
    return out
