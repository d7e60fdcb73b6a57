"""One pass over the frames of a semi-Markov chain by several programs a sequence, each with states of its own.

A program keeps the window of its states in registers. Frames need all programs: what closes, or its sums over ranks,
goes through memory, and all programs of a sequence wait for each other once a frame. They run at the same time: a
cooperative launch, or an error.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Entries of a tile that a program holds.
TILE = 8192


class Team(NamedTuple):
    """How the states of a sequence are divided."""

    size: int  # programs a sequence
    states: int  # of a program


def multiprocessors(x: Tensor) -> int:
    """How many programs surely run at the same time."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1


def team(maps: tuple[Tensor, ...], num: int, num_ages: int, width: int, most: int) -> Team | None:
    """The smallest parts of the states that `most` programs can take, all sequences at once; None if there are none."""
    ages = triton.next_power_of_2(num_ages)
    if 2 * num > most:
        return None
    if len(maps) == 3:
        size, states, rank = maps[0].shape
        held = triton.next_power_of_2(states)
        ranks = triton.next_power_of_2(rank)
        fits = held * max(ages, held, ranks) <= TILE and triton.next_power_of_2(size) * ranks <= 2 * TILE
        return Team(size, states) if fits and size >= 2 and size * num <= most else None
    rank = triton.next_power_of_2(maps[0].shape[1])
    states = max(1, min(8, 1024 // ages))
    while -(-width // states) * num > most:
        states *= 2
    size = -(-width // states)
    fits = states * max(ages, rank) <= TILE and (len(maps) == 1 or triton.next_power_of_2(size) * rank <= 2 * TILE)
    return Team(size, states) if fits and size >= 2 else None


@triton.jit
def _scan(
    window, opened, obs, durations, closings, log_closed, tops, first, second, pairs, sums, mine, parts, arrived,
    log_scale, missing, begin, stop, num, num_ages, width, rank, team, size, of_duration, of_state, of_age, of_sequence,
    in_first, out_first, in_second, out_second,
    AGES: tl.constexpr, STATES: tl.constexpr, RANK: tl.constexpr, TEAM: tl.constexpr, NUM_MAPS: tl.constexpr,
    NOISE: tl.constexpr, LOWEST: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    s, r, q = tl.arange(0, STATES), tl.arange(0, RANK), tl.arange(0, TEAM)
    at = p * size + s
    known = (s < size) & (at < width)
    place = tl.arange(0, AGES)
    inside = (place < num_ages)[:, None] & known[None, :]
    where = b * num_ages * width + place[:, None] * width + at[None, :]
    x = tl.load(window + where, mask=inside, other=float("-inf"))
    scale = tl.load(log_scale)
    # The maps of these states, held for all frames.
    if NUM_MAPS == 1:
        into = tl.load(
            first + r[:, None] * in_first + at[None, :] * out_first,
            mask=(r < width)[:, None] & known[None, :], other=0.0,
        )  # fmt: skip
    else:
        there = known[:, None] & (r < rank)[None, :]
        out_of = tl.load(first + at[:, None] * in_first + r[None, :] * out_first, mask=there, other=0.0)
        into = tl.load(
            second + r[:, None] * in_second + at[None, :] * out_second,
            mask=(r < rank)[:, None] & known[None, :], other=0.0,
        )  # fmt: skip
    if NUM_MAPS == 3:
        own = tl.load(
            pairs + at[:, None] * size + s[None, :], mask=known[:, None] & (s < size)[None, :], other=0.0
        )  # fmt: skip
    if NOISE:
        lost = tl.load(missing + at, mask=known, other=0.0)
    for step in range(begin, stop):
        row = step * num + b
        age = step % num_ages - place
        age = tl.where(age < 0, age + num_ages, age)
        frame = tl.load(obs + row * width + at, mask=known, other=0.0)
        by_age = tl.load(
            durations + age[:, None] * of_duration + at[None, :] * of_state, mask=inside, other=float("-inf")
        )  # fmt: skip
        cut = tl.load(
            closings + step * of_age + b * of_sequence + at, mask=known & (step < num_ages), other=float("-inf")
        )  # fmt: skip
        if step == 0:
            fresh = tl.load(opened + row * width + at, mask=known, other=float("-inf"))
            change = scale - scale  # 0 of the same type
        else:
            last = row - num
            if NUM_MAPS == 1:
                every = tl.load(
                    log_closed + last * width + r, mask=r < width, other=float("-inf"), cache_modifier=".cg"
                )
            else:
                every = tl.load(parts + last * team + q, mask=q < team, other=float("-inf"), cache_modifier=".cg")
            best = tl.max(every, 0)
            best = tl.where(best == float("-inf"), LOWEST, best)
            top = best
            if NOISE:
                top = tl.load(tops + last)
                best = tl.where(top == LOWEST, best, top)
            # Where nothing closes, nothing is pushed and nothing goes missing.
            share = tl.where(best == LOWEST, 0.0, 1.0)
            best = tl.where(best == LOWEST, 0.0, best)
            change = tl.where(top == LOWEST, 0.0, top)
            factor = tl.exp(every - best)
            if NUM_MAPS == 1:
                found = tl.sum(factor[:, None] * into, 0)
            else:
                base = sums + ((step + 1) % 2 * num + b) * team * rank
                part = tl.load(
                    base + q[:, None] * rank + r[None, :], mask=(q < team)[:, None] & (r < rank)[None, :], other=0.0,
                    cache_modifier=".cg",
                )  # fmt: skip
                if NUM_MAPS == 3:
                    between = tl.sum(tl.where((q == p)[:, None], 0.0, part * factor[:, None]), 0)
                else:
                    between = tl.sum(part * factor[:, None], 0)
                found = tl.sum(between[:, None] * into, 0)
            if NUM_MAPS == 3:
                of_self = tl.sum(tl.where(q == p, factor, 0.0), 0)
                found += of_self * tl.load(mine + b * width + at, mask=known, other=0.0, cache_modifier=".cg")
            if NOISE:
                found += share * lost
            fresh = tl.log(found) + (scale + best)
            tl.store(opened + row * width + at, fresh, mask=known)
        x = tl.where((age == 0)[:, None], fresh[None, :], x) + (frame - change)[None, :]
        x = tl.where(inside, x, float("-inf"))
        # Whatever has been open since the first step may close by weights of its own.
        y = x + tl.where((age == step)[:, None], cut[None, :], by_age)
        high = tl.max(y, 0)
        high = tl.where(high == float("-inf"), 0.0, high)
        closed = high + tl.log(tl.sum(tl.exp(y - high[None, :]), 0))
        tl.store(log_closed + row * width + at, closed, mask=known)
        if NUM_MAPS > 1:
            most = tl.max(tl.where(known, closed, float("-inf")), 0)
            tl.store(parts + row * team + p, most)
            entry = tl.exp(closed - tl.where(most == float("-inf"), 0.0, most))
            entry = tl.where(known, entry, 0.0)
            base = sums + (step % 2 * num + b) * team * rank + p * rank
            tl.store(base + r, tl.sum(entry[:, None] * out_of, 0), mask=r < rank)
            if NUM_MAPS == 3:
                tl.store(mine + b * width + at, tl.sum(entry[:, None] * own, 0), mask=known)
        if not ALONE:
            tl.debug_barrier()
            tl.atomic_add(arrived + b, 1, sem="release")
            while tl.atomic_add(arrived + b, 0, sem="acquire") < (step + 1) * team:
                pass
            tl.debug_barrier()
    tl.store(window + where, x, mask=inside)


def scan(
    window, entry, log_obs, durations, closings, maps, log_scale, noise, by: Team, *, alone: bool | None = None,
    warps: int | None = None, cooperative: bool = True,
):  # fmt: skip
    """As `triton.scan`: opened, log_closed "s b z", top "s b". `alone`: a launch for every step, none waits."""
    num_steps, num, width = log_obs.shape
    num_ages = len(durations)
    alone = not log_obs.is_cuda if alone is None else alone
    first, second, pairs = (*maps, *maps, *maps)[:3] if len(maps) < 3 else maps
    if len(maps) == 3:  # "k s r": by states; the second one from the ranks
        rank = first.shape[2]
        strides = (rank, 1, 1, rank)
    else:
        rank = first.shape[1]
        strides = (*first.stride(), *second.stride())
    opened, log_closed = torch.empty_like(log_obs), torch.empty_like(log_obs)
    opened[0] = entry
    parts = log_obs.new_empty(num_steps, num, by.size) if len(maps) > 1 else log_closed
    lowest = -torch.finfo(log_obs.dtype).max
    top, missing = (x.contiguous() for x in noise) if noise is not None else (log_closed, log_closed)
    ages, states = triton.next_power_of_2(num_ages), triton.next_power_of_2(by.states)
    ranks = triton.next_power_of_2(width if len(maps) == 1 else rank)
    members = triton.next_power_of_2(by.size)
    if num_ages > by.states:
        durations = durations.mT.contiguous().mT  # ages of a state side by side
    largest = max(ages * states, states * ranks, states * states, 0 if len(maps) == 1 else members * ranks)
    warps = warps or max(1, min(16, largest // 256))
    launches = range(num_steps) if alone else (0,)
    arrived = torch.zeros(num, dtype=torch.int32, device=log_obs.device)
    sums, mine = log_obs.new_empty(2, num, by.size, rank), log_obs.new_empty(num, width)
    for begin in launches:
        _scan[(by.size, num)](
            window, opened, log_obs, durations, closings, log_closed, top, first, second, pairs,
            sums, mine, parts, arrived, log_scale, missing, begin, begin + 1 if alone else num_steps, num, num_ages,
            width, rank, by.size, by.states, *durations.stride(), *closings.stride()[:2], *strides,
            AGES=ages, STATES=states, RANK=ranks, TEAM=members, NUM_MAPS=len(maps), NOISE=noise is not None,
            LOWEST=lowest, ALONE=alone, num_warps=warps, num_stages=1,
            **({} if alone or not cooperative else {"launch_cooperative_grid": True}),
        )  # fmt: skip
    if noise is None:
        top = parts.amax(-1)
        top = torch.where(top < lowest, lowest, top)
    change = torch.where(top == lowest, 0.0, top)
    change = torch.cat([torch.zeros_like(change[:1]), change[:-1]])
    return opened, log_closed, top, change
