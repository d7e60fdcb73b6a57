"""Long sequences in stretches: borders are kept, messages between them are recomputed for the gradient.

A border is a window "b d z": the open segments by age. Forward, it is carried on; backward, what the future makes of
each open segment is the end of the stretch before. Nothing is cut off: the same sums, some of them twice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.scaled import largest
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.segments.plain import Retraced
from rankfold.recursions.segments.potentials import Segments, survival
from rankfold.recursions.segments.rungs import SegmentRung, SegmentSolution, solve
from rankfold.recursions.segments.soundness import far_from_underflow
from rankfold.recursions.segments.sweep import show

# Entries of "b t z" up to which all frames are held at once: a gradient holds 23 such tables, 770 MB in float32.
HELD = 2**23
# Durations that a stretch has at least: its backward pass runs over one more than its frames.
LEAST = 16


def solve_long(c: Segments, arithmetic: Arithmetic, stretch: int | None = None) -> SegmentSolution | InStretches:
    """The solution of all frames at once, or in stretches: of this many frames, or, if it is long, of some."""
    num_sequences, num_frames, num_states = c.log_obs.shape
    if stretch is None:
        stretch = usual_stretch(num_sequences, num_frames, num_states, c.longest) if may_look(c.log_obs) else num_frames
    return solve(c, arithmetic) if stretch >= num_frames else InStretches(c, arithmetic, stretch)


def usual_stretch(num_sequences: int, num_frames: int, num_states: int, longest: int) -> int:
    """The default length of a stretch: all frames; in a long batch, so many that stretches and borders balance."""
    if num_sequences * num_frames * num_states <= HELD:
        return num_frames
    return min(num_frames, max(LEAST * longest, math.isqrt(num_frames * longest)))


def open_segments(c: Segments) -> tuple[Tensor, Tensor]:  # "b d z", "b"
    """The segments still open after the last frame, by age, over log Z; and log Z: float64, exact at any range.

    log Z is that of the frames so far: the end may cut a segment, and `log_final`, which belongs to the last frame of
    all, has no say here. While a CUDA graph is captured, NaN where a pass would have to be repeated.
    """
    c = c.double()
    c = c.replace(log_final=torch.zeros_like(c.log_final), censored=True)
    solution = SegmentSolution(_StreamRung(c))
    carried, total = solution.rung.run.log_last, solution.log_z
    for index, wider in solution.wider:
        carried[:, index] = wider.rung.run.log_last
    impossible = (total == float("-inf"))[:, None]  # what is open there, if anything, has no duration left
    out = torch.where(impossible, float("-inf"), carried - total[:, None]).transpose(0, 1)
    missing = c.log_duration.shape[1] - out.shape[1]
    more = [out.new_full((len(out), missing, out.shape[2]), float("-inf"))] if missing else []
    return torch.cat([out, *more], 1), total


def log_open(c: Segments) -> Tensor:  # "t b z"   float64
    """log p(x_1..t, z_t): of the segments open at every frame, each age with all durations that reach it.

    One pass; then for every frame the ages add up again, from the observations since each segment opened.
    """
    c = c.double()
    solution = SegmentSolution(_StreamRung(c))
    out = _by_frame(solution.rung)
    for index, wider in solution.wider:
        out[:, index] = _by_frame(wider.rung)
    return out if may_look(out) else torch.where(solution.log_z.isnan()[:, None], float("nan"), out)


def _by_frame(rung: SegmentRung) -> Tensor:  # "t b z"
    c, run = rung.problem, rung.run
    log_survival = survival(c.log_duration).mT[: c.longest]
    log_obs = run.log_obs.double() + run.log_top.unsqueeze(-1)
    log_opened = run.frames.opened.double() + run.frames.log_before.unsqueeze(-1)
    out = torch.empty_like(log_opened)

    def add(first: int, by_age: Tensor, _: Tensor) -> None:  # "s d b z"
        out[first : first + len(by_age)] = by_age.logsumexp(1)

    show(add, log_opened, log_obs, log_survival, None, run.log_top)
    if c.is_carried:
        ages, seen = c.log_initial.transpose(0, 1), log_obs[: c.longest - 1].cumsum(0)
        for t, frames in enumerate(seen):
            carried = (ages[: c.longest - t - 1] + log_survival[t + 1 :].unsqueeze(1)).logsumexp(0) + frames
            out[t] = torch.logaddexp(out[t], carried)
    return out


class _StreamRung(SegmentRung):
    """A rung that is sound only where every entry has all its digits: later frames may need any of them."""

    def sound(self) -> Tensor:  # "b"
        return far_from_underflow(self.problem, self.run)


class InStretches(Retraced):
    """log Z and its gradients, a stretch at a time. Looks at lengths, which no captured graph may."""

    def __init__(self, c: Segments, arithmetic: Arithmetic, size: int) -> None:
        self.problem, self.arithmetic, self.size = c, arithmetic, size
        self.log_z = torch.zeros_like(c.lengths, dtype=torch.float64)
        self._borders: list[Tensor | None] = [None]  # "b d z" before each stretch, in the caller's dtype
        for number, start in enumerate(self._starts):
            on, ended = self._split(start)
            if len(ended):
                self.log_z[ended] += solve(self._piece(ended, number), arithmetic).log_z
            if len(on):
                carried, total = open_segments(self._piece(on, number))
                self.log_z[on] += total
                border = carried.new_full((len(c.lengths), *carried.shape[1:]), float("-inf"), dtype=c.log_obs.dtype)
                border[on] = carried.to(border.dtype)
                self._borders.append(border)

    @property
    def _starts(self) -> range:
        return range(0, int(self.problem.lengths.max()), self.size)

    def _split(self, start: int) -> tuple[Tensor, Tensor]:
        """The sequences that go on after this stretch, and the sequences that end in it."""
        lengths, stop = self.problem.lengths, start + self.size
        return (lengths > stop).nonzero()[:, 0], ((lengths > start) & (lengths <= stop)).nonzero()[:, 0]

    def _piece(self, index: Tensor, number: int) -> Segments:  # "k"
        """A stretch of some sequences."""
        c, start = self.problem, number * self.size
        border = self._borders[number]
        log_obs = c.log_obs[:, start : start + self.size]
        lengths = (c.lengths - start).clamp(max=log_obs.shape[1])
        piece = c.replace(
            log_initial=c.log_initial if border is None else border,
            log_obs=log_obs,
            lengths=lengths,
            ragged=c.ragged or log_obs.shape[1] < self.size,
        )
        return piece.take(index)

    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]:
        """d (weight . log_z) / d (log_initial, log_duration, log_obs, log_final, *factors); no factors if not asked."""
        c = self.problem
        factors = c.transition.factors() if of_factors else ()
        grads = [torch.zeros_like(x) for x in (c.log_initial, c.log_duration, c.log_obs, c.log_final, *factors)]
        future: Tensor | None = None  # "b d z"   what follows segments open at a stretch's end, up to a constant
        for number, start in reversed(list(enumerate(self._starts))):
            border = self._borders[number]
            before = None if border is None else torch.zeros_like(border)
            for index, goes_on in zip(self._split(start), (True, False), strict=True):
                if not len(index):
                    continue
                piece = self._piece(index, number)
                if goes_on:
                    assert future is not None
                    piece = piece.replace(ends=future[index])
                solution = solve(piece, self.arithmetic)
                initial, durations, obs, final, *rest = solution.gradients(weight[index], of_factors=of_factors)
                grads[1] += durations
                grads[2][index, start : start + obs.shape[1]] = obs.to(c.log_obs.dtype)
                if not goes_on:
                    grads[3][index] = final.to(c.log_obs.dtype)
                grads[4:] = [grad + part for grad, part in zip(grads[4:], rest, strict=True)]
                if border is None or before is None:
                    grads[0][index] = initial.to(c.log_obs.dtype)
                else:
                    assert solution.log_onward is not None
                    onward = solution.log_onward.transpose(0, 1)
                    # Any constant will do: the one that leaves what counts near 0, where a narrow dtype has its digits.
                    top = largest((onward + border[index]).flatten(1)).unsqueeze(-1)
                    before[index] = (onward - top).to(border.dtype)
            future = before
        return grads
