"""What follows the scan, one pass over its messages each: the division by their largest entries with the two sums that
make a result sound, and the posteriors with the two sides of the transition's gradient.

Read next: `recursions/underflow.py` and `recursions/chain_scaled.py`, which say what is computed and why.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.two_way.products import TINY

SIZE = 4096
LEAST = tl.constexpr(torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps)


@triton.jit
def _divide(
    filtered, norm, future, future_norm, target, emission, column, loss, per_entry, mass, short, num, width,
    SIZE: tl.constexpr, LOSSES: tl.constexpr,
):  # fmt: skip
    """Messages over their norms; mass[t, b] = filtered . future; short[t, b]: how many entries may have lost digits."""
    row = tl.program_id(0).to(tl.int64)  # t * num + b
    base = row * width
    below = tl.maximum(tl.load(norm + row), TINY)
    ahead = tl.maximum(tl.load(future_norm + row), TINY)
    before = tl.load(per_entry + row - num, mask=row >= num, other=0.0)
    sums = tl.zeros((SIZE,), tl.float32)
    unclear = tl.zeros((SIZE,), tl.int32)
    for start in range(0, width, SIZE):
        at = start + tl.arange(0, SIZE)
        inside = at < width
        x = tl.load(filtered + base + at, mask=inside, other=0.0)
        y = tl.load(future + base + at, mask=inside, other=0.0) / ahead
        lost = tl.load(loss + at, mask=inside, other=0.0) if LOSSES else tl.load(loss)
        missing = before * tl.load(column + at, mask=inside, other=0.0) + lost
        missing = missing * tl.load(emission + base + at, mask=inside, other=0.0) * LEAST
        unclear += tl.where((missing <= x) | (at >= width), 0, 1)
        x = x / below
        sums += x * y
        tl.store(filtered + base + at, x, mask=inside)
        tl.store(future + base + at, y, mask=inside)
        z = tl.load(target + base + at, mask=inside, other=0.0)
        tl.store(target + base + at, z / ahead, mask=inside)
    tl.store(mass + row, tl.sum(sums, 0))
    tl.store(short + row, tl.sum(unclear, 0))


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


def divide(
    filtered: Tensor,
    norm: Tensor,
    future: Tensor,
    future_norm: Tensor,
    target: Tensor,
    emission: Tensor,
    column: Tensor,
    loss: Tensor,
    per_entry: Tensor,
) -> tuple[Tensor, Tensor]:  # "t b z", "t b", ..., "z", "z" or "1", "t b" -> "t b", "t b"
    """Divide messages by their norms where they lie; the mass of each position, and whether nothing is missing there.

    The second is the comparison of `underflow.far_from_underflow` from the second position on.
    """
    num_positions, num, width = filtered.shape
    mass = torch.empty_like(norm)
    short = torch.empty_like(norm, dtype=torch.int32)
    _divide[(num_positions * num,)](
        filtered, norm, future, future_norm, target, emission, column, loss, per_entry, mass, short, num, width,
        SIZE=min(SIZE, triton.next_power_of_2(width)), LOSSES=loss.numel() > 1, num_warps=8,
    )  # fmt: skip
    return mass, short == 0


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
