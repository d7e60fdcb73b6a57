"""Semi-Markov chains: log Z over all segmentations and labels, its messages, and the state carried onwards.

`log_z` is one autograd function: the forward pass stores what opens and closes at each frame, the backward pass
runs the same sweep in reversed time. Read next: `recursions/segments/rungs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError, expect_plain, may_look
from rankfold.numerics.function import Function, refuse_undefined
from rankfold.numerics.precision import Precision, check_precision
from rankfold.recursions.ladder import Arithmetic, check_arithmetic
from rankfold.recursions.segments import passes, plain
from rankfold.recursions.segments.potentials import SegmentPotentials, Segments, survival, validate
from rankfold.recursions.segments.rungs import solve
from rankfold.recursions.segments.stretches import carried_on, solve_long

__all__ = ["Messages", "SegmentPotentials", "carry", "log_z", "messages", "survival", "validate"]


class Messages(NamedTuple):
    """What each frame knows of its past and of its future: logarithms, float64, -inf beyond a length."""

    opened: Tensor  # "b t z"   log p(x_1..t-1, a segment of z begins at t)
    closed: Tensor  # "b t z"   log p(x_1..t, a segment of z ends at t)
    begun: Tensor  # "b t z"    log p(x_t..T | a segment of z begins at t)
    after: Tensor  # "b t z"    log p(x_t+1..T | a segment of z ends at t), log_final included


def log_z(
    p: SegmentPotentials | Segments,
    arithmetic: Arithmetic = "scaled",
    precision: Precision = "float32",
    *,
    strict: bool = False,
    stretch: int | None = None,
) -> Tensor:  # "b"   float64
    """Log-weight of each observed sequence, summed over all segmentations and labels.

        log Z = log sum_{K, z_1..K, d_1..K}  initial[z_1]  prod_k duration[z_k, d_k] prod_{t in k} obs_t[z_k]
                                             prod_k A[z_k, z_k+1]  final[z_K],        d_1 + .. + d_K = T

    Cost: O(b t d z) additions and exponentials and one `push` a frame, O(b t z r) for a low-rank transition.
    Memory O(b t z) and a few windows "b d z". With `stretch`, messages of so many frames at a time and a window for
    each of these stretches: log_obs and its gradient are then all that is as long as the sequence, for one more
    forward pass in float64. By default batches of more than 2^23 entries "b t z" are cut, others are not.
    Differentiable in every field, twice; d log Z / d log_obs is the state posterior, d log Z / d log_duration the
    expected number of uses of each duration. Not the best segmentation: see `viterbi_segments`. Always float64;
    products are as exact as their dtype, whatever `precision` permits.

    Open segments are kept in logarithms. The product with the transition is linear, on scaled vectors; what
    underflow could have taken is bounded, and sequences that fail are repeated in float64, then in
    logarithms, which `arithmetic="log"` asks for at once: worth it where frames differ by hundreds of nats
    and many transitions are forbidden. An impossible sequence has -inf and zero gradients; `strict` raises
    instead. While a CUDA graph is captured nothing can be repeated: those sequences are NaN, never wrong.
    Source: the papers' HSMM (Chiu, Deng, Rush 2021, app. D), with low-rank products and without its
    tensor of all durations and transitions.
    """
    check_arithmetic(arithmetic)
    check_precision(precision)
    if stretch is not None and (not isinstance(stretch, int) or stretch < 1):
        raise DomainError(f"stretch is {stretch!r}, but must be a number of frames, at least 1.")
    c = validate(p)
    out: Tensor = _LogZ.apply(c, arithmetic, stretch, *c.tensors())
    if strict and may_look(out):
        _raise_if_impossible(out.detach())
    return out


def messages(p: SegmentPotentials) -> Messages:
    """What every frame knows of its past and its future, in logarithms, detached; exact at any range.

        p(a segment of z begins at t | x) = exp(opened_t[z] + begun_t[z] - log Z)
        p(a segment of z ends at t | x)   = exp(closed_t[z] + after_t[z] - log Z)

    Cost: one pass in each direction in log arithmetic.
    """
    c = validate(p).detach()
    with torch.no_grad():
        run = solve(c, "log").run
        uses = passes.backward(c.double(), run, log=True)
    both = (
        (run.frames.opened, run.frames.log_before),
        (run.frames.closed, run.frames.log_scale),
        (uses.log_begun, uses.log_begun_scale),
        (uses.log_after, uses.log_after_scale),
    )
    inside = c.inside().unsqueeze(-1)
    return Messages(
        *(torch.where(inside, (x + scale.unsqueeze(-1)).transpose(0, 1), float("-inf")) for x, scale in both)
    )


def carry(p: SegmentPotentials) -> Tensor:  # "b d z"
    """The segments still open after the last frame, by age, to be the next stretch's `log_initial`.

        carried[d, z] = log p(a segment of z began d + 1 frames ago, and nothing is said of its end, x) - log Z

    Then log Z of the stretches add up to that of the whole, exactly, whatever the weights are. All stretches but
    the last are `censored`: the border cuts a segment, it does not end one. Detached: gradients stop at
    the border, which is truncated back-propagation. Impossible sequences carry -inf; while a CUDA graph is
    captured, those that would have to be repeated carry NaN.
    """
    c = validate(p).detach()
    if not c.censored:
        raise UnsupportedError(
            "a sequence that goes on does not end a segment at the border, but censored is False.\n"
            "  Set censored=True for every stretch but the last."
        )
    if p.log_final is not None:
        raise UnsupportedError("a sequence that goes on has no end yet, but log_final ends it.\n  Leave log_final out.")
    with torch.no_grad():
        return carried_on(c)[0].to(p.log_obs.dtype)


class _LogZ(Function):
    """log Z with forward-backward over segments as its derivative."""

    @staticmethod
    def forward(ctx: Any, c: Segments, arithmetic: Arithmetic, stretch: int | None, *tensors: Tensor) -> Tensor:
        ctx.segments = c = c.with_tensors(*(x.detach() for x in tensors))
        ctx.solution = solve_long(c, arithmetic, stretch)
        ctx.save_for_backward(*tensors)
        out: Tensor = ctx.solution.log_z.clone()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        expect_plain(weight, name="the gradient of log_z")
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow.
            # Views, because inputs may be made of one another: only the last step to each is asked for.
            tensors = tuple(x.view_as(x) for x in tensors)
            out, in_range = _retrace(ctx.segments.with_tensors(*tensors), ctx.solution.log_z)
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            refuse_undefined(asked, tensors[4:])
            grads = torch.autograd.grad(out, asked, weight, create_graph=True, materialize_grads=True)
            if not in_range:
                solved = ctx.solution.gradients(weight.detach(), of_factors=any(wanted[4:]))
                _expect_same(grads, [x for x, want in zip(solved, wanted, strict=False) if want])
            found = iter(grads)
        else:
            solved = ctx.solution.gradients(weight, of_factors=any(wanted[4:]))
            every = (x.to(like.dtype) for x, like in zip(solved, tensors, strict=False))
            found = iter([x for x, want in zip(every, wanted, strict=False) if want])
        return (None, None, None, *(next(found) if want else None for want in wanted))


def _retrace(c: Segments, known: Tensor) -> tuple[Tensor, bool]:  # "b" -> "b"
    """log Z as ordinary operations, impossible sequences as constants; and whether it is exact at any range."""
    if not may_look(known):
        raise UnsupportedError(
            "second derivatives look at values, which a CUDA graph that is being captured has none of.\n"
            "  Differentiate posteriors outside of captured graphs."
        )
    possible = (known > float("-inf")).nonzero()[:, 0]
    if not len(possible):  # in logarithms, whose derivatives of all orders are 0 there
        return plain.log_z_in_logs(c), True
    op = c.transition
    zeros = any(
        factor.requires_grad and not is_log and bool((factor == 0).any())
        for factor, is_log in zip(op.factors(), op.log_factors, strict=True)
    )
    loop = plain.log_z_scaled if zeros else plain.log_z_in_logs
    return known.index_copy(0, possible, loop(c.take(possible))), not zeros


def _expect_same(found: Sequence[Tensor], known: Sequence[Tensor]) -> None:
    """Raise unless a gradient on scaled vectors is the known one: where the range is too wide for them it is not.

    Nor where it is so large that what is made of it next may overflow. Second derivatives are off by what differs here.
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


def _raise_if_impossible(out: Tensor) -> None:
    impossible = (out == float("-inf")).nonzero()[:, 0]
    if len(impossible):
        raise DomainError(
            f"sequence {int(impossible[0])} is impossible: no segmentation has any weight"
            f"{f', and so are {len(impossible) - 1} more' if len(impossible) > 1 else ''}.\n"
            "  Look for frames of weight zero in every state, and for durations that cannot add up to the length."
        )
