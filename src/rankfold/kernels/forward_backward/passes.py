"""The work before and after the scan, one pass each: the observations' weights; the messages' division by their
largest entries with the two sums that make a result sound; the posteriors with the transition's gradient's two sides.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.forward_backward.products import TINY

SIZE = 4096
LEAST = tl.constexpr(torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps)
# What a product may lose: a number, one for each entry, or sums of the second of two maps to be made one.
ONE, EACH, INNER = (tl.constexpr(i) for i in range(3))


@triton.jit
def _weights(log_obs, lengths, out, top, num, num_positions, width, SIZE: tl.constexpr):
    """exp(log_obs) over its largest entry, time first, and the log of that; 1 and 0 beyond a length."""
    row = tl.program_id(0).to(tl.int64)  # b * num_positions + t
    b, t = row // num_positions, row % num_positions
    inside = t < tl.load(lengths + b)
    best = tl.full((SIZE,), float("-inf"), tl.float32)
    for start in range(0, width, SIZE):
        at = start + tl.arange(0, SIZE)
        best = tl.maximum(best, tl.load(log_obs + row * width + at, mask=at < width, other=float("-inf")))
    largest = tl.max(best, 0)
    largest = tl.where(inside & (largest > float("-inf")), largest, 0.0)
    into = t * num + b
    for start in range(0, width, SIZE):
        at = start + tl.arange(0, SIZE)
        x = tl.exp(tl.load(log_obs + row * width + at, mask=at < width, other=float("-inf")) - largest)
        tl.store(out + into * width + at, tl.where(inside, x, 1.0), mask=at < width)
    tl.store(top + into, largest.to(tl.float64))


@triton.jit
def _divide(
    filtered, norm, future, future_norm, target, emission, column, loss, bounds, pull, log_initial, mass, short, behind,
    risk, num, width, rank, SIZE: tl.constexpr, LOSSES: tl.constexpr,
):  # fmt: skip
    """Messages over their norms; mass[t, b] = filtered . future; short[t, b]: how many entries of filtered may have
    lost digits; behind[t, b]: whether one of future may; risk[t, b]: the possible loss of filtered, by future.
    """
    row = tl.program_id(0).to(tl.int64)  # t * num + b
    base = row * width
    below = tl.maximum(tl.load(norm + row), TINY)
    ahead = tl.maximum(tl.load(future_norm + row), TINY)
    # What a step may lose in any entry by itself, as `recursions.chain.scaled.per_entry` says, of the step before.
    largest = tl.where(row < 2 * num, 2.0, 1.0 + tl.load(bounds))
    before = largest / tl.load(norm + row - num, mask=row >= num, other=1.0) + 1.0
    pulled = tl.load(pull) * LEAST
    sums, risks = tl.zeros((SIZE,), tl.float32), tl.zeros((SIZE,), tl.float32)
    unclear = tl.zeros((SIZE,), tl.int32)
    least = tl.full((SIZE,), float("inf"), tl.float32)
    for start in range(0, width, SIZE):
        at = start + tl.arange(0, SIZE)
        inside = at < width
        x = tl.load(filtered + base + at, mask=inside, other=0.0)
        y = tl.load(future + base + at, mask=inside, other=0.0)
        least = tl.minimum(least, tl.where(inside, y, float("inf")))
        y = y / ahead
        if row < num:  # nothing was pushed yet
            missing = tl.where(tl.load(log_initial + base + at, mask=inside, other=0.0) > float("-inf"), 1.0, 0.0)
        else:
            lost = tl.load(loss + at, mask=inside, other=0.0) if LOSSES == EACH else tl.load(loss)
            if LOSSES == INNER:
                lost = 2.0 * width * tl.load(loss + at, mask=inside, other=0.0) + rank + tl.load(bounds + 1)
            missing = before * tl.load(column + at, mask=inside, other=0.0) + lost
        missing = missing * tl.load(emission + base + at, mask=inside, other=0.0)
        unclear += tl.where((missing * LEAST <= x) | (at >= width), 0, 1)
        risks += missing * y
        x = x / below
        sums += x * y
        tl.store(filtered + base + at, x, mask=inside)
        tl.store(future + base + at, y, mask=inside)
        z = tl.load(target + base + at, mask=inside, other=0.0)
        tl.store(target + base + at, z / ahead, mask=inside)
    tl.store(mass + row, tl.sum(sums, 0))
    tl.store(short + row, tl.sum(unclear, 0))
    low = tl.min(least, 0)
    tl.store(behind + row, ((low < pulled) | (low < ahead * LEAST)).to(tl.int32))
    tl.store(risk + row, tl.sum(risks, 0))


@triton.jit
def _weigh(
    filtered, future, target, by_state, by_step, posterior, weighted, num, num_positions, width, SIZE: tl.constexpr
):
    """posterior[b, t] = by_state filtered future, and target[t, b] times by_step."""
    pieces = tl.cdiv(width, SIZE)
    at = tl.program_id(0) % pieces * SIZE + tl.arange(0, SIZE)
    row = (tl.program_id(0) // pieces).to(tl.int64)
    t, b = row // num, row % num
    inside = at < width
    x = tl.load(filtered + row * width + at, mask=inside, other=0.0)
    x = x * tl.load(future + row * width + at, mask=inside, other=0.0) * tl.load(by_state + row)
    tl.store(posterior + (b * num_positions + t) * width + at, x, mask=inside)
    y = tl.load(target + row * width + at, mask=inside, other=0.0) * tl.load(by_step + row)
    tl.store(weighted + row * width + at, y, mask=inside)


def weights(log_obs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # "b t z", "b" -> "t b z", "t b" float64
    """exp(log_obs) over its largest entry, and the log of that; 1 and 0 beyond a length."""
    num, num_positions, width = log_obs.shape
    log_obs = log_obs.contiguous()
    out = log_obs.new_empty(num_positions, num, width)
    top = torch.empty(num_positions, num, dtype=torch.float64, device=log_obs.device)
    size = min(SIZE, triton.next_power_of_2(width))
    _weights[(num * num_positions,)](log_obs, lengths, out, top, num, num_positions, width, SIZE=size, num_warps=8)
    return out, top


class Divided(NamedTuple):
    """By position and sequence, "t b"; in units of the smallest normal number over the round-off."""

    mass: Tensor  # filtered . future
    short: Tensor  # entries of filtered in which the possible loss could be seen: `soundness.far_from_underflow`
    behind: Tensor  # whether there is such an entry of future
    risk: Tensor  # the possible loss of filtered, before its division, times future


def divide(
    filtered: Tensor,
    norm: Tensor,
    future: Tensor,
    future_norm: Tensor,
    target: Tensor,
    emission: Tensor,
    column: Tensor,
    loss: Tensor,
    bounds: Tensor,
    pull: Tensor,
    log_initial: Tensor,
    rank: int = 0,
) -> Divided:  # "t b z", "t b", ..., "z", "z" or "1", "4", "", "b z"
    """Divide messages by their norms in place; return the results by position.

    With a `rank`, `loss` are the sums of the second of two maps. `pull` is the possible loss of all entries of a pulled
    vector together, hence also a bound for one of them.
    """
    num_positions, num, width = filtered.shape
    found = Divided(*(torch.empty_like(norm, dtype=kind) for kind in (None, torch.int32, torch.int32, None)))
    kind = INNER if rank else EACH if loss.numel() > 1 else ONE
    _divide[(num_positions * num,)](
        filtered, norm, future, future_norm, target, emission, column, loss, bounds, pull, log_initial.contiguous(),
        *found, num, width, rank, SIZE=min(SIZE, triton.next_power_of_2(width)), LOSSES=kind.value, num_warps=8,
    )  # fmt: skip
    return found


def weigh(
    filtered: Tensor, future: Tensor, target: Tensor, by_state: Tensor, by_step: Tensor
) -> tuple[Tensor, Tensor]:  # "t b z", "t b" -> "t b z", "t b z"
    """by_state filtered future, laid out sequence by sequence, and by_step target."""
    num_positions, num, width = filtered.shape
    posterior = filtered.new_empty(num, num_positions, width)
    weighted = torch.empty_like(target)
    size = min(SIZE, triton.next_power_of_2(width))
    _weigh[(triton.cdiv(width, size) * num_positions * num,)](
        filtered, future, target, by_state.contiguous(), by_step.contiguous(), posterior, weighted,
        num, num_positions, width, SIZE=size, num_warps=8,
    )  # fmt: skip
    return posterior.transpose(0, 1), weighted
