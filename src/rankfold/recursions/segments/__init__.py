"""Segments: log Z over all segmentations and labels, its messages, and the state carried onwards.

| file | in it |
|---|---|
| `potentials` | `SegmentPotentials`, and their validation |
| `rungs` | the arithmetics in which segments are solved, for the ladder |
| `sweep` | the loop over frames that both directions share, call by call or in one launch |
| `passes` | the forward and the backward pass, and the gradients |
| `soundness` | the bound on what underflow took |
| `stretches` | long sequences, piece by piece |
| `plain` | log Z as a plain loop for second derivatives |
| `paths` | best and sampled segmentations |
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.numerics.precision import Precision
from rankfold.recursions import ladder
from rankfold.recursions.ladder import Arithmetic, Impossible
from rankfold.recursions.segments.potentials import SegmentLike, SegmentPotentials, survival, validate
from rankfold.recursions.segments.rungs import solve
from rankfold.recursions.segments.stretches import open_segments, solve_long

__all__ = ["Messages", "SegmentPotentials", "carry", "log_z", "messages", "solve", "survival", "validate"]


class Messages(NamedTuple):
    """The messages of each frame, from its past and from its future: logarithms, float64, -inf beyond a length."""

    opened: Tensor  # "b t z"   log p(x_1..t-1, a segment of z begins at t)
    closed: Tensor  # "b t z"   log p(x_1..t, a segment of z ends at t)
    begun: Tensor  # "b t z"    log p(x_t..T | a segment of z begins at t)
    after: Tensor  # "b t z"    log p(x_t+1..T | a segment of z ends at t), log_final included


def log_z(
    p: SegmentLike,
    arithmetic: Arithmetic = "scaled",
    precision: Precision = "float32",
    *,
    strict: bool = False,
    stretch: int | None = None,
) -> Tensor:  # "b"   float64
    """Log-weight of each observed sequence, summed over all segmentations and labels.

        log Z = log sum_{K, z_1..K, d_1..K}  initial[z_1]  prod_k duration[z_k, d_k] prod_{t in k} obs_t[z_k]
                                             prod_k A[z_k, z_k+1]  final[z_K],        d_1 + .. + d_K = T

    Cost: O(b t d z) additions and exponentials and one `push` per frame, O(b t z r) for a low-rank transition.
    Memory O(b t z) and a few windows "b d z". With `stretch`, messages of so many frames at a time and a window for
    each of these stretches: log_obs and its gradient are then all that is as long as the sequence, for one more
    forward pass in float64. By default batches of more than 2^23 entries "b t z" are cut, others are not.
    Differentiable in every field, twice; d log Z / d log_obs is the state posterior, d log Z / d log_duration the
    expected number of uses of each duration. Not the best segmentation: see `viterbi`. Always float64;
    products are as exact as their dtype, whatever `precision` permits.

    Open segments are kept in logarithms. The product with the transition is linear, on scaled vectors; what
    underflow could have taken is bounded, and sequences that fail are repeated in float64, then in
    logarithms, which `arithmetic="log"` asks for at once: worth it where frames differ by hundreds of nats
    and many transitions are forbidden. An impossible sequence has -inf and zero gradients; `strict` raises
    instead. While a CUDA graph is captured nothing can be repeated: such sequences are NaN, never wrong.
    Source: the papers' HSMM (Chiu, Deng, Rush 2021, app. D), with low-rank products and without its
    tensor of all durations and transitions.
    """
    if stretch is not None and (not isinstance(stretch, int) or stretch < 1):
        raise DomainError(f"stretch is {stretch!r}, but must be a number of frames, at least 1.")
    hint = "Look for frames of weight zero in every state, and for durations that cannot add up to the length."
    impossible = Impossible("sequence", "no segmentation has any weight", hint) if strict else None
    return ladder.log_z(
        validate(p), lambda c, both: solve_long(c, arithmetic, stretch), arithmetic, precision, impossible
    )


def messages(p: SegmentPotentials) -> Messages:
    """The messages of every frame, from its past and from its future, in logarithms, detached; exact at any range.

        p(a segment of z begins at t | x) = exp(opened_t[z] + begun_t[z] - log Z)
        p(a segment of z ends at t | x)   = exp(closed_t[z] + after_t[z] - log Z)

    Cost: one pass in each direction in log arithmetic.
    """
    c = validate(p).detach()
    with torch.no_grad():
        rung = solve(c, "log").rung
        run, uses = rung.run, rung.uses()
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
    captured, sequences that would have to be repeated carry NaN.
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
        return open_segments(c)[0].to(p.log_obs.dtype)
