"""A bound on what underflow took from the linear products of a forward pass over segments, sequence by sequence.

The window is in logarithms and loses nothing; only segments that close at a frame are scaled, pushed and may vanish.
Unit: the smallest normal number; everything below it counts as lost. Rounding is not bounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.scaled import visible
from rankfold.recursions.segments.passes import Run, last_window
from rankfold.recursions.segments.potentials import Segments
from rankfold.recursions.segments.sweep import Linear, least_opened, missing, scan


def lossless(c: Segments, run: Run) -> Tensor:  # "b"
    """Whether log_z is free of underflow, to the dtype's round-off.

    First every entry that was pushed is compared with the most that could be missing from it; transitions
    without zeros pass. Sequences that fail get the bound itself, which costs a second pass over them; over all
    sequences, where values cannot be looked at.
    """
    sound = far_from_underflow(c, run)
    if not may_look(sound):
        return sound | _noise_is_small(c, run)
    doubtful = (~sound).nonzero()[:, 0]
    if len(doubtful):
        sound[doubtful] = _noise_is_small(c.take(doubtful), _take(run, doubtful))
    return sound


def far_from_underflow(c: Segments, run: Run) -> Tensor:  # "b"
    """Whether every pushed entry exceeds its possible loss by 1 / round-off, and none overflowed."""
    least, frames = least_opened(c), run.frames
    opened, top = frames.opened[1:], frames.top[:-1]
    if run.border is not None:
        opened, top = torch.cat([run.border.opened[1:], opened]), torch.cat([run.border.top, top])
    # Where nothing closes, nothing was pushed and nothing is missing.
    clear = (opened - top.unsqueeze(-1) >= least).all(-1) | (top == -torch.finfo(top.dtype).max)
    inside = c.inside().mT[len(frames.opened) - len(clear) :]
    return torch.where(inside, clear, True).all(0) & _in_range(run)


def _in_range(run: Run) -> Tensor:  # "b"
    """Whether no product overflowed: an infinity or NaN anywhere inside a sequence reaches its log Z."""
    return run.log_z < float("inf")


class _Noise(Linear):
    """The possible loss, in units of `tiny`, on its way through the same frames and the same scales."""

    def __init__(self, c: Segments, run: Run) -> None:
        super().__init__(c.transition, run.log_obs)
        self._top, self._missing = run.frames.top.unsqueeze(-1), missing(c)
        self.noise = run.frames.top, self._missing

    def close(self, step: int, closing: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(closing - self._top[step]).sum(0), self._top[step]

    def open(self, closed: Tensor) -> Tensor:
        return super().open(closed) + self._missing


def _noise_is_small(c: Segments, run: Run) -> Tensor:  # "b"
    entry = torch.full_like(c.log_final, float("-inf"))
    if run.border is not None:
        noise = missing(c).log() + c.transition.log_scale
        entry = torch.maximum(run.border.top[0].unsqueeze(-1) + noise.to(entry.dtype), entry)
    found = scan(_Noise(c, run), entry, run.log_obs, run.log_top.cumsum(0), c.durations())
    log_opened = found.opened.double() + found.log_before.unsqueeze(-1)
    fresh = c if not c.is_carried else c.replace(log_initial=torch.full_like(c.log_initial, float("-inf")))
    closing = last_window(fresh, run.log_obs, run.log_top, log_opened)
    closing = closing + c.at_end()
    log_missing = closing.transpose(0, 1).flatten(1).logsumexp(-1)
    log_unit = torch.full_like(log_missing, visible(entry.dtype)).log()
    # An impossible sequence that nothing can be missing from is impossible.
    return (log_missing + log_unit <= run.log_z) & _in_range(run)


def _take(run: Run, index: Tensor) -> Run:
    parts = [None if x is None else type(x)(*(y[:, index] for y in x)) for x in (run.border, run.frames)]
    border, frames = parts
    assert frames is not None
    log_last = run.log_last[:, index]
    return Run(run.log_obs[:, index], run.log_top[:, index], border, frames, log_last, run.log_z[index])
