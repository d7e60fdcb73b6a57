"""The results of a scan once its messages are divided: log Z, whether nothing was lost, and the posteriors' weights.

Numbers of every position and sequence only, so one small kernel instead of a hundred: on a GPU each of those takes
longer to start than to run.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.forward_backward import Verdict
from rankfold.kernels.forward_backward.passes import Divided

INFO = torch.finfo(torch.float32)
LEAST = tl.constexpr(INFO.tiny / INFO.eps)
LEAST_MASS = tl.constexpr(INFO.tiny**0.75)
ROUND_OFF = tl.constexpr(2.0**-52)
LARGEST, AHEAD, BEHIND, PULL = (tl.constexpr(i) for i in range(4))  # where `bounds` leaves what


@triton.jit
def _bounds(column, ahead, behind, out, width, rank, INNER: tl.constexpr, SIZE: tl.constexpr):
    """The largest entry of `column`; with two maps, the sums between them and the possible loss of a pulled vector."""
    at = tl.arange(0, SIZE)
    best = tl.zeros((SIZE,), tl.float32)
    for start in range(0, width, SIZE):
        best = tl.maximum(best, tl.load(column + start + at, mask=start + at < width, other=0.0))
    tl.store(out + LARGEST, tl.max(best, 0))
    if INNER:
        left, right, both = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
        for start in range(0, rank, SIZE):
            x = tl.load(ahead + start + at, mask=start + at < rank, other=0.0)
            y = tl.load(behind + start + at, mask=start + at < rank, other=0.0)
            left += x
            right += y
            both += x * y
        a, b = tl.sum(left, 0), tl.sum(right, 0)
        tl.store(out + AHEAD, a)
        tl.store(out + BEHIND, b)
        tl.store(out + PULL, 2.0 * tl.sum(both, 0) + width * (2.0 * a + rank + b))


@triton.jit
def _judge(
    norm, future_norm, mass, short, behind, risk, shift, lengths, first, final_top, bounds, pull,
    log_z, log_scale, sound, trusted, by_state, by_step,
    num_positions, num, width, tolerance, refused, POSITIONS: tl.constexpr,
):  # fmt: skip
    """One program per sequence, its positions along one vector."""
    b = tl.program_id(0)
    t = tl.arange(0, POSITIONS)
    here = t < num_positions
    at = t * num + b
    length = tl.load(lengths + b).to(tl.int32)
    inside, last = t < length, t == length - 1
    top = tl.load(final_top + b).to(tl.float64)
    scale = tl.load(norm + at, mask=here, other=1.0)
    ahead = tl.load(future_norm + at, mask=here, other=1.0)
    share = tl.load(mass + at, mask=here, other=1.0)
    grown = tl.where(here, tl.log(scale.to(tl.float64)) + tl.load(shift + at, mask=here, other=0.0), 0.0)
    total = tl.cumsum(grown, 0) + tl.load(first + b).to(tl.float64)
    whole = tl.log(share.to(tl.float64)) + total + top
    value = tl.sum(tl.where(last, whole, 0.0), 0)

    # The forward pass: what may be missing at every step, and at the end. Either no entry can be seen to miss it, or it
    # does not count for log Z, which messages from behind tell that are themselves sound in every entry.
    each = tl.where(t > 0, 1.0 + tl.load(bounds + LARGEST), 2.0) / scale + 1.0
    missing = (each + 1.0) * (width * LEAST)
    short_at = tl.load(short + at, mask=here & inside, other=0)
    lost = tl.sum(tl.where(inside & (short_at != 0), 1, 0), 0) + tl.sum(tl.where(last & ~(missing <= share), 1, 0), 0)
    dim = tl.sum(tl.where(inside & (tl.load(behind + at, mask=here, other=0) != 0), 1, 0), 0)
    risk_at = tl.load(risk + at, mask=here & inside, other=0.0).to(tl.float64)
    noise = risk_at * LEAST / (scale.to(tl.float64) * share) + tl.where(last, missing / share, 0.0)
    noise = tl.sum(tl.where(inside, noise, 0.0), 0)
    sound_at = (lost == 0) | ((dim == 0) & (noise <= 1.0))

    # The backward pass: filtered times future is Z at every position.
    step = tl.where(inside & ~last, tl.log(ahead.to(tl.float64)), 0.0)
    step += tl.load(shift + at + num, mask=t + 1 < length, other=0.0)
    future = tl.cumsum(step, 0, reverse=True) + top
    gap = tl.abs(total + tl.log(share.to(tl.float64)) + future - value)
    allowed = tolerance + (num_positions + 8) * ROUND_OFF * (tl.abs(total) + tl.abs(future))
    least = tl.maximum(tl.load(pull) * LEAST, LEAST_MASS)
    fine = (gap <= allowed) & (tl.where(last, share, ahead * share) > least)
    off = tl.sum(tl.where(inside & ~fine, 1, 0), 0)

    tl.store(log_z + b, value)
    tl.store(sound + b, sound_at.to(tl.int8))
    tl.store(trusted + b, (off == 0).to(tl.int8))
    tl.store(log_scale + at, total, mask=here)
    weight = tl.where(off == 0, 1.0 / share, refused)
    tl.store(by_state + at, tl.where(inside, weight, 0.0), mask=here)
    used = tl.where(off == 0, weight / ahead, refused)
    tl.store(by_step + (t + 1) % num_positions * num + b, tl.where(inside & ~last, used, 0.0), mask=here)


def bounds(column: Tensor, ahead: Tensor | None, behind: Tensor | None) -> Tensor:  # "1 z", "r", "r" -> "4"
    """The largest entry of `column`; with two maps also the sums of `ahead` and `behind`, and the loss of a pull."""
    out = column.new_zeros(4)
    inner = ahead is not None
    _bounds[(1,)](
        column, ahead, behind, out, column.numel(), len(ahead) if inner else 0, INNER=inner, SIZE=4096, num_warps=8
    )
    return out


def judge(
    norm: Tensor,
    future_norm: Tensor,
    divided: Divided,
    shift: Tensor,
    lengths: Tensor,
    first: Tensor,
    final_top: Tensor,
    bounds: Tensor,
    pull: Tensor,
    width: int,
    tolerance: float,
    *,
    may_repeat: bool,
) -> Verdict:  # "t b", shift float64; "b", "b", "b", "4", ""
    """The verdict on a scan. `shift` is the log-scale of each step's emissions and transition; what can neither be
    trusted nor repeated gets NaN for weights.
    """
    num_positions, num = norm.shape
    log_z, log_scale = shift.new_empty(num), torch.empty_like(shift)
    sound, trusted = (torch.empty(num, dtype=torch.int8, device=norm.device) for _ in range(2))
    by_state, by_step = torch.empty_like(norm), torch.empty_like(norm)
    _judge[(num,)](
        norm, future_norm, *divided, shift, lengths, first, final_top, bounds, pull,
        log_z, log_scale, sound, trusted, by_state, by_step,
        num_positions, num, width, tolerance, 0.0 if may_repeat else float("nan"),
        POSITIONS=triton.next_power_of_2(num_positions), num_warps=4,
    )  # fmt: skip
    return Verdict(log_z, log_scale, sound.bool(), trusted.bool(), by_state, by_step)
