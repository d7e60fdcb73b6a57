"""The sum over segmentations as a plain loop that autograd can follow, any number of times.

When the gradient of log Z is itself differentiated, its steps are retraced here, with every window kept: in logarithms,
or, where linear weights of the transition are exactly zero and a logarithm has no derivative, on scaled vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, may_look
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import Scaled
from rankfold.numerics.times_log import times_log
from rankfold.recursions.segments.potentials import Segments


class _Solved(Protocol):
    in_range: bool

    @property
    def log_z(self) -> Tensor: ...
    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]: ...


class Retraced:
    """A solution whose second derivatives come from these loops, all sequences together."""

    in_range = True  # whether the loop was exact at any range

    def retrace(self: _Solved, c: Segments) -> Tensor:  # "b"
        """log Z of segments of the same values as ordinary operations, impossible sequences as constants."""
        out, self.in_range = _retrace(c, self.log_z)
        return out

    def confirm(self: _Solved, found: Sequence[Tensor], weight: Tensor, wanted: Sequence[bool]) -> None:
        """Raise if a gradient that was retraced on scaled vectors is not the known one."""
        if not self.in_range:
            solved = self.gradients(weight, of_factors=any(wanted[len(Segments.fields) :]))
            _expect_same(found, [x for x, want in zip(solved, wanted, strict=False) if want])


def _retrace(c: Segments, known: Tensor) -> tuple[Tensor, bool]:  # "b" -> "b"
    """log Z as ordinary operations, impossible sequences as constants; and whether it is exact at any range."""
    if not may_look(known):
        raise UnsupportedError(
            "second derivatives look at values, which a CUDA graph that is being captured has none of.\n"
            "  Differentiate posteriors outside of captured graphs."
        )
    possible = (known > float("-inf")).nonzero()[:, 0]
    if not len(possible):  # in logarithms, whose derivatives of all orders are 0 there
        return log_z_in_logs(c), True
    zeros = _has_zeros(c)
    loop = log_z_scaled if zeros else log_z_in_logs
    return known.index_copy(0, possible, loop(c.take(possible))), not zeros


def _expect_same(found: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Raise unless a gradient on scaled vectors is the known one: where the range is too wide for them it is not.

    Nor where it is so large that the next product may overflow. Second derivatives are wrong by the difference here.
    """
    most = torch.finfo(torch.float64).max ** 0.5
    for one, other in zip(found, known, strict=True):
        rounding = 2.0**-30 if one.dtype == torch.float64 else 2.0**-12
        same = torch.allclose(one.detach(), other.to(one.dtype), rtol=rounding, atol=rounding)
        if not same or bool((one.detach().abs() > most).any()):
            raise UnsupportedError(
                "a posterior of a sequence whose range exceeds float64 was to be differentiated in transition\n"
                "  weights some of which are exactly zero. Build the transition with from_log(...)."
            )


class Marks(NamedTuple):
    """Zeros that stand for events without weights of their own, so that derivatives in them are their posteriors."""

    start: Tensor  # "b t z"   a segment begins
    end: Tensor  # "b t z"     a segment ends

    def last(self, c: Segments) -> Tensor | float:  # "b 1 z"
        """The ends of last segments; a segment that may be cut does not end."""
        return (
            0.0
            if c.censored
            else self.end[torch.arange(len(c.lengths), device=c.lengths.device), c.lengths - 1].unsqueeze(1)
        )


def differentiable_marks(c: Segments, known: Marks) -> Marks:
    """The posteriors of all beginnings and ends with a graph; raises where they are not the `known` ones.

    They are derivatives of log Z in a weight of 1 for each. On scaled vectors, which linear weights of exactly zero
    need, a range beyond float64 is lost.
    """
    marks = Marks(*(torch.zeros_like(x, dtype=torch.float64).requires_grad_() for x in known))
    zeros = _has_zeros(c)
    total = (log_z_scaled if zeros else log_z_in_logs)(c, marks).sum()
    found = torch.autograd.grad(total, marks, create_graph=True, materialize_grads=True)
    if zeros:
        _expect_same(found, known)
    return Marks(*found)


def _has_zeros(c: Segments) -> bool:
    """Whether a gradient is asked of linear weights of the transition some of which are exactly zero."""
    return any(factor.requires_grad and bool((factor == 0).any()) for factor in c.linear_factors())


def log_z_in_logs(c: Segments, marks: Marks | None = None) -> Tensor:  # "b"   float64
    """log Z in logarithms, any range."""
    c = c.double()
    durations, closings, frames = c.durations(), c.closings(), c.observations()
    window = _start(c)  # "b d z"
    last = window
    for t, frame in enumerate(frames):
        if t or c.is_carried:
            closed = log_sum((window + durations).transpose(1, 2))
            opened = c.transition.push_log(closed if marks is None or not t else closed + marks.end[:, t - 1])
            window = torch.cat([opened.unsqueeze(1), window[:, :-1]], 1)
        if marks is not None:
            window = torch.cat([window[:, :1] + marks.start[:, t, None], window[:, 1:]], 1)
        window = window + frame.unsqueeze(1)
        last = torch.where((c.lengths == t + 1)[:, None, None], window, last)
    end = last + closings + c.log_final.unsqueeze(1)
    return log_sum((end if marks is None else end + marks.last(c)).flatten(1))


def log_z_scaled(c: Segments, marks: Marks | None = None) -> Tensor:  # "b"   float64
    """The same on scaled vectors, right at weights of zero; a window has a range of 708 nats."""
    c = c.double()
    log_durations, closings, frames = c.durations(), c.closings(), c.observations()
    top = log_durations.detach().amax()
    top = torch.where(top > float("-inf"), top, 0.0)
    durations = torch.exp(log_durations - top)
    shape = (len(c.lengths), c.longest, c.log_obs.shape[-1])
    x = Scaled.from_log(_start(c).flatten(1))
    last = x
    fresh = torch.zeros_like(durations)
    fresh[0] = top + c.transition.log_scale  # of what was opened at this frame, next to the scale it shares
    for t, frame in enumerate(frames):
        log_w = frame.unsqueeze(1).expand(shape)
        if t or c.is_carried:
            window = x.mantissa.reshape(shape)
            closed = (window * durations).sum(1)
            opened = c.transition.push(closed if marks is None or not t else closed * marks.end[:, t - 1].exp())
            x = Scaled(torch.cat([opened.unsqueeze(1), window[:, :-1]], 1).flatten(1), x.log_scale)
            log_w = log_w + fresh
        if marks is not None:
            log_w = torch.cat([log_w[:, :1] + marks.start[:, t, None], log_w[:, 1:]], 1)
        x = times_log(x, log_w.flatten(1))
        at_end = c.lengths == t + 1
        last = Scaled(
            torch.where(at_end[:, None], x.mantissa, last.mantissa), torch.where(at_end, x.log_scale, last.log_scale)
        )
    log_end = closings + c.log_final.unsqueeze(1)
    end = times_log(last, (log_end if marks is None else log_end + marks.last(c)).flatten(1))
    return end.mantissa.sum(-1).log() + end.log_scale


def _start(c: Segments) -> Tensor:  # "b d z"
    """The open segments before the first frame is added."""
    if c.is_carried:
        return c.log_initial
    nothing = c.log_initial.new_full((len(c.lengths), c.longest - 1, c.log_initial.shape[-1]), float("-inf"))
    return torch.cat([c.log_initial.unsqueeze(1), nothing], 1)
