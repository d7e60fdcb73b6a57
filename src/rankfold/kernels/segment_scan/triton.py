"""One pass over the frames of a semi-Markov chain: one program per sequence, which runs along its frames.

A frame is an addition to the window of open segments, a sum over their ages, a product with one map or two, or with
blocks of states whose ranks meet those of all other blocks (`operators/without_diagonal.py`). The window
is a ring: a segment keeps its place until its last possible age is over. Threads exchange values
through memory, with a barrier in between.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels import segment_scan
from rankfold.kernels.segment_scan import team

# Entries of a tile of the window or of a map: 32 a thread at 8 warps.
TILE = 8192


@triton.jit
def _close(
    window, opened, obs, durations, closings, log_closed, step, change, num_ages, width, stride,
    AGES: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Add a frame to the window and sum over ages, tile by tile; the largest of the sums, of each place in a tile."""
    place = tl.arange(0, AGES)
    age = step % num_ages - place
    age = tl.where(age < 0, age + num_ages, age)
    best = tl.full((STATES,), float("-inf"), window.dtype.element_ty)
    for start in range(0, width, STATES):
        at = start + tl.arange(0, STATES)
        known = at < width
        inside = (place < num_ages)[:, None] & known[None, :]
        where = place[:, None] * width + at[None, :]
        x = tl.load(window + where, mask=inside, other=float("-inf"))
        fresh = tl.load(opened + at, mask=known, other=float("-inf"))
        frame = tl.load(obs + at, mask=known, other=0.0) - change
        x = tl.where((age == 0)[:, None], fresh[None, :], x) + frame[None, :]
        x = tl.where(inside, x, float("-inf"))
        tl.store(window + where, x, mask=inside)
        # Whatever has been open since the first step may close by weights of its own.
        by_age = tl.load(durations + age[:, None] * width + at[None, :], mask=inside, other=float("-inf"))
        cut = tl.load(closings + step * stride + at, mask=known & (step < num_ages), other=float("-inf"))
        x += tl.where((age == step)[:, None], cut[None, :], by_age)
        top = tl.max(x, 0)
        top = tl.where(top == float("-inf"), 0.0, top)
        closed = top + tl.log(tl.sum(tl.exp(x - top[None, :]), 0))
        tl.store(log_closed + at, closed, mask=known)
        best = tl.maximum(best, tl.where(known, closed, float("-inf")))
    return best


@triton.jit
def _multiply(
    x, weight, out, top, log_scale, missing, share, num_in, num_out, stride_in, stride_out,
    IN: tl.constexpr, OUT: tl.constexpr, FROM_LOG: tl.constexpr, TO_LOG: tl.constexpr, NOISE: tl.constexpr,
):  # fmt: skip
    """out = x weight + share missing; from the logarithm of x, less `top`; to the logarithm of out, with `top`."""
    for first in range(0, num_out, OUT):
        at = first + tl.arange(0, OUT)
        known = at < num_out
        sums = tl.zeros((IN, OUT), weight.dtype.element_ty)
        for start in range(0, num_in, IN):
            row = start + tl.arange(0, IN)
            there = row < num_in
            if FROM_LOG:
                entry = tl.exp(tl.load(x + row, mask=there, other=float("-inf")) - top)
            else:
                entry = tl.load(x + row, mask=there, other=0.0)
            where = row[:, None] * stride_in + at[None, :] * stride_out
            tile = tl.load(weight + where, mask=there[:, None] & known[None, :], other=0.0)
            sums += entry[:, None] * tile
        found = tl.sum(sums, 0)
        if NOISE:
            found += share * tl.load(missing + at, mask=known, other=0.0)
        if TO_LOG:
            found = tl.log(found) + (log_scale + top)
        tl.store(out + at, found, mask=known)


@triton.jit
def _sum_blocks(
    x, weight, out, top, num_states, num_blocks, size, rank,
    BLOCKS: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """out[k, r] = sum over the states s of block k of x[s] weight[s, r], from the logarithm of x, less `top`."""
    r = tl.arange(0, RANK)
    for start in range(0, num_blocks, BLOCKS):
        k = start + tl.arange(0, BLOCKS)
        s = tl.arange(0, SIZE)
        state = k[:, None] * size + s[None, :]
        there = (s < size)[None, :] & (state < num_states)
        entry = tl.exp(tl.load(x + state, mask=there, other=float("-inf")) - top)
        known = there[:, :, None] & (r < rank)[None, None, :]
        tile = tl.load(weight + state[:, :, None] * rank + r[None, None, :], mask=known, other=0.0)
        found = tl.sum(entry[:, :, None] * tile, 1)
        tl.store(out + k[:, None] * rank + r[None, :], found, mask=(k < num_blocks)[:, None] & (r < rank)[None, :])


@triton.jit
def _spread_blocks(
    x, sums, weight, pairs, out, top, log_scale, missing, share, num_states, num_blocks, size, rank,
    BLOCKS: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr, OTHERS: tl.constexpr, NOISE: tl.constexpr,
):  # fmt: skip
    """log of out[y] = sum over other blocks' sums of weight[y, r], and over pairs of its own block; with `top`."""
    r = tl.arange(0, RANK)
    for start in range(0, num_blocks, BLOCKS):
        k = start + tl.arange(0, BLOCKS)
        s = tl.arange(0, SIZE)
        state = k[:, None] * size + s[None, :]
        there = (s < size)[None, :] & (state < num_states)
        others = tl.zeros((BLOCKS, RANK), weight.dtype.element_ty)
        for begin in range(0, num_blocks, OTHERS):
            o = begin + tl.arange(0, OTHERS)
            known = (o < num_blocks)[:, None] & (r < rank)[None, :]
            tile = tl.load(sums + o[:, None] * rank + r[None, :], mask=known, other=0.0)
            others += tl.sum(tl.where((o[None, :] != k[:, None])[:, :, None], tile[None, :, :], 0.0), 1)
        known = there[:, :, None] & (r < rank)[None, None, :]
        tile = tl.load(weight + state[:, :, None] * rank + r[None, None, :], mask=known, other=0.0)
        found = tl.sum(others[:, None, :] * tile, 2)
        entry = tl.exp(tl.load(x + state, mask=there, other=float("-inf")) - top)
        known = there[:, :, None] & (s < size)[None, None, :]
        tile = tl.load(pairs + state[:, :, None] * size + s[None, None, :], mask=known, other=0.0)
        found += tl.sum(entry[:, :, None] * tile, 1)
        if NOISE:
            found += share * tl.load(missing + state, mask=there, other=0.0)
        tl.store(out + state, tl.log(found) + (log_scale + top), mask=there)


@triton.jit
def _scan(
    window, opened, obs, durations, closings, log_closed, tops, changes, first, second, pairs, between, log_scale,
    missing, num_steps, num, num_ages, width, rank, num_blocks, size, of_age, of_sequence,
    in_first, out_first, in_second, out_second,
    AGES: tl.constexpr, STATES: tl.constexpr, NUM_MAPS: tl.constexpr, NOISE: tl.constexpr,
    IN_FIRST: tl.constexpr, OUT_FIRST: tl.constexpr, IN_SECOND: tl.constexpr, OUT_SECOND: tl.constexpr,
    BLOCKS: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr, OTHERS: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    window += b * num_ages * width
    between += b * num_blocks * rank
    closings += b * of_sequence
    scale = tl.load(log_scale)
    change = scale - scale  # 0 of the same type
    for step in range(0, num_steps):
        row = step * num + b  # in int64
        now, after = opened + row * width, opened + (row + num) * width
        closed = log_closed + row * width
        tl.store(changes + row, change)
        by_state = _close(
            window,
            now,
            obs + row * width,
            durations,
            closings,
            closed,
            step,
            change,
            num_ages,
            width,
            of_age,
            AGES,
            STATES,
        )
        if NOISE:
            top = tl.load(tops + row)
            best = top
            if top == LOWEST:  # the other pass had nothing to push, which may all be missing: it has a scale of its own
                best = tl.max(by_state, 0)
                best = tl.where(best == float("-inf"), LOWEST, best)
        else:
            best = tl.max(by_state, 0)
            best = tl.where(best == float("-inf"), LOWEST, best)
            top = best
            tl.store(tops + row, top)
        # Where nothing closes, nothing is pushed and nothing goes missing.
        share = tl.where(best == LOWEST, 0.0, 1.0)
        best = tl.where(best == LOWEST, 0.0, best)
        change = tl.where(top == LOWEST, 0.0, top)
        tl.debug_barrier()
        if step < num_steps - 1:
            if NUM_MAPS == 3:
                _sum_blocks(closed, first, between, best, width, num_blocks, size, rank, BLOCKS, SIZE, RANK)
                tl.debug_barrier()
                _spread_blocks(
                    closed, between, second, pairs, after, best, scale, missing, share, width, num_blocks, size, rank,
                    BLOCKS, SIZE, RANK, OTHERS, NOISE,
                )  # fmt: skip
            elif NUM_MAPS == 2:
                _multiply(
                    closed, first, between, best, scale, missing, share, width, rank, in_first, out_first,
                    IN_FIRST, OUT_FIRST, True, False, False,
                )  # fmt: skip
                tl.debug_barrier()
                _multiply(
                    between, second, after, best, scale, missing, share, rank, width, in_second, out_second,
                    IN_SECOND, OUT_SECOND, False, True, NOISE,
                )  # fmt: skip
            else:
                _multiply(
                    closed, first, after, best, scale, missing, share, width, width, in_first, out_first,
                    IN_FIRST, OUT_FIRST, True, True, NOISE,
                )  # fmt: skip
        tl.debug_barrier()


class Scan(NamedTuple):
    """The result of a pass, steps first; logarithms, lowered at every step by the largest that closed at the last."""

    opened: Tensor  # "s b z"       of all that lies behind a segment opening at this step; as low as the last step's
    log_closed: Tensor  # "s b z"   of all segments closing here
    top: Tensor  # "s b"            the largest of those, or minus the largest number where nothing closes
    change: Tensor  # "s b"         by how much this step's are lowered: the last step's top, or 0 where it had none


def scan(
    window: Tensor,  # "b d z"   written to: ages before the first step, youngest first, in places d - 1, d - 2, ...
    entry: Tensor,  # "b z"
    log_obs: Tensor,  # "s b z"
    durations: Tensor,  # "d z"
    closings: Tensor,  # "d b z"
    maps: tuple[Tensor, ...],
    log_scale: Tensor,  # ""     next to the maps
    noise: tuple[Tensor, Tensor] | None = None,  # "s b", "z"
) -> Scan:
    """All frames: add them to the window, sum over ages, multiply with the maps in order.

    Three maps are blocks: "k s r", "k s r" and "k s s", contiguous, 0 beyond the last state.
    With `noise` = (top, missing) the pass follows the possible loss of another pass, whose tops are given: every
    product of that pass may lack `missing`. Where that pass closes nothing, the possible loss still closes.
    Cost: one launch, d z exponentials and one product per frame and sequence, by one multiprocessor each.
    """
    num_steps, num, width = log_obs.shape
    num_ages = len(durations)
    by = None
    if segment_scan.shared(num_ages, width):
        by = team.team(maps, num, num_ages, width, team.multiprocessors(log_obs))
    if by is not None:
        return Scan(*team.scan(window, entry, log_obs, durations, closings, maps, log_scale, noise, by))
    first, second, pairs = (*maps, *maps, *maps)[:3] if len(maps) < 3 else maps
    num_blocks, size, rank = first.shape if len(maps) == 3 else (1, 1, first.shape[1])
    opened, log_closed = torch.empty_like(log_obs), torch.empty_like(log_obs)
    change = log_obs.new_empty(num_steps, num)
    top, missing = (torch.empty_like(change), change) if noise is None else (x.contiguous() for x in noise)
    opened[0] = entry
    ages = triton.next_power_of_2(num_ages)
    states = min(triton.next_power_of_2(width), max(16, TILE // ages))
    tiles = [_tile(*x.shape[-2:]) for x in (first, second)]
    blocks = _block_tile(num_blocks, size, rank)
    largest = max(ages * states, *(a * b for a, b in tiles), blocks[0] * blocks[1] * max(blocks[1:3]))
    _scan[(num,)](
        window, opened, log_obs, durations, closings, log_closed, top, change, first, second, pairs,
        log_obs.new_empty(num, num_blocks, rank), log_scale, missing, num_steps, num, num_ages, width, rank,
        num_blocks, size, *closings.stride()[:2], *first.stride()[-2:], *second.stride()[-2:],
        AGES=ages, STATES=states, NUM_MAPS=len(maps), NOISE=noise is not None,
        IN_FIRST=tiles[0][0], OUT_FIRST=tiles[0][1], IN_SECOND=tiles[1][0], OUT_SECOND=tiles[1][1],
        BLOCKS=blocks[0], SIZE=blocks[1], RANK=blocks[2], OTHERS=blocks[3],
        LOWEST=-torch.finfo(log_obs.dtype).max, num_warps=max(1, min(16, largest // 512)), num_stages=1,
    )  # fmt: skip
    return Scan(opened, log_closed, top, change)


def _tile(num_in: int, num_out: int) -> tuple[int, int]:
    """How much of a map is multiplied at once: as square as it is itself."""
    rows, columns = triton.next_power_of_2(num_in), triton.next_power_of_2(num_out)
    while rows * columns > TILE:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    return rows, columns


def _block_tile(num_blocks: int, size: int, rank: int) -> tuple[int, int, int, int]:
    """How many blocks are taken at once, with how many states and ranks, and how many others are summed at once."""
    num, states, ranks = (triton.next_power_of_2(x) for x in (num_blocks, size, rank))
    at_once = max(1, min(num, TILE // (states * max(states, ranks))))
    return at_once, states, ranks, max(1, min(num, TILE // (at_once * ranks)))
