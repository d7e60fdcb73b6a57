"""Sums over ages of all segments of some steps at once: their weights, and how often each frame is covered."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

# Entries of a program, and ages whose loads are in flight at once.
TILE, AHEAD = 32, 8


@triton.jit
def _unroll(
    out, opened, frames, durations, closings, first, num, num_ages, num_states, width, of_age,
    CUT: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    here = entry < num * width
    step, column = first + entry // width, entry % width
    state = column % num_states
    total = tl.zeros((TILE,), out.dtype.element_ty)
    for start in range(0, num_ages, AHEAD):
        for ahead in tl.static_range(AHEAD):
            age = start + ahead
            known = here & (age < num_ages)
            begun = known & (step >= age)
            where = (step - age) * width + column
            total += tl.load(frames + where, mask=begun, other=0.0)
            weight = tl.load(durations + age * num_states + state, mask=begun, other=0.0)
            if CUT:
                cut = tl.load(closings + age * of_age + column, mask=begun & (step == age), other=0.0)
                weight = tl.where(step == age, cut, weight)
            found = tl.load(opened + where, mask=begun, other=float("-inf")) + total + weight
            tl.store(out + ((step - first) * num_ages + age) * width + column, found, mask=known)


@triton.jit
def _from_longest(share, starts, num, num_ages, width, TILE: tl.constexpr, AHEAD: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    here = entry < num * width
    at = entry // width * num_ages * width + entry % width
    covering = tl.zeros((TILE,), share.dtype.element_ty)
    for start in range(0, num_ages, AHEAD):
        for ahead in tl.static_range(AHEAD):
            age = num_ages - 1 - start - ahead
            known = here & (age >= 0)
            covering += tl.load(share + at + age * width, mask=known, other=0.0)
            tl.store(share + at + age * width, covering, mask=known)
    tl.store(starts + entry, covering, mask=here)


@triton.jit
def _cover(states, covering, first, begin, num, stop, num_ages, width, TILE: tl.constexpr, AHEAD: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    frame, column = begin + entry // width, entry % width
    here = frame < stop
    total = tl.zeros((TILE,), states.dtype.element_ty)
    for start in range(0, num_ages, AHEAD):
        for ahead in tl.static_range(AHEAD):
            age = start + ahead
            step = frame + age
            known = here & (age < num_ages) & (step >= first) & (step < stop)
            total += tl.load(covering + ((step - first) * num_ages + age) * width + column, mask=known, other=0.0)
    where = states + frame * width + column
    tl.store(where, tl.load(where, mask=here, other=0.0) + total, mask=here)


def unroll(
    out: Tensor,  # "s d b z"   written to
    first: int,
    opened: Tensor,  # "u b z"
    frames: Tensor,  # "u b z"
    durations: Tensor,  # "d z"
    closings: Tensor | None,  # "d b z"
) -> None:
    """out[i, d] = opened[u - d] + frames[u - d] + ... + frames[u] + durations[d] of step u = first + i, -inf before 0.

    Segments open from step 0 on close by `closings`. Cost: one launch; the frames are added up from the last backwards.
    """
    num, num_ages, num_sequences, num_states = out.shape
    width = num_sequences * num_states
    by_end = durations if closings is None else closings.contiguous()
    _unroll[(triton.cdiv(num * width, TILE),)](
        out, opened, frames, durations, by_end, first, num, num_ages, num_states, width, by_end.stride(0),
        CUT=closings is not None, TILE=TILE, AHEAD=AHEAD, num_warps=1,
    )  # fmt: skip


def cover(share: Tensor, first: int, states: Tensor, starts: Tensor) -> None:  # "s d b z", "u b z", "u b z"
    """Add shares of segments that close at the steps from `first` on to every step they cover; `share` is written to.

    starts[u] becomes the sum of all that close at u. Ages are added up from the longest down: nothing is subtracted.
    Cost: two launches.
    """
    num, num_ages = share.shape[:2]
    width, stop = starts[0].numel(), first + len(share)
    begin = max(0, first - num_ages + 1)
    _from_longest[(triton.cdiv(num * width, TILE),)](
        share, starts[first:], num, num_ages, width, TILE=TILE, AHEAD=AHEAD, num_warps=1
    )
    _cover[(triton.cdiv((stop - begin) * width, TILE),)](
        states, share, first, begin, num, stop, num_ages, width, TILE=TILE, AHEAD=AHEAD, num_warps=1
    )
