"""Operands of products as tensor cores take them: rounded to TF32, or to float16 after division by the largest entry.

float16 has the ten fraction bits of TF32 and twice its speed; the division keeps the five bits of its exponent from
mattering: losses lie 2**-24 below the largest entry. Sums are float32.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 4096


class Half(NamedTuple):
    """x = half * scale, to the rounding of float16."""

    half: Tensor  # float16
    scale: Tensor  # "1"   float32, 0 for a tensor of zeros


@triton.jit
def to_tf32(x):
    """x as TF32 holds it, float32 with ten fraction bits, to nearest: tensor cores would cut the others off, downwards.

    NaN apart: a GPU's has every bit set, to which no more can be added without becoming -0.
    """
    rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x != x, x, rounded)


@triton.jit
def _largest(x, weight, top, num, dim, WEIGHTED: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < num, other=0.0)
    if WEIGHTED:
        value *= tl.load(weight + at // dim, mask=at < num, other=0.0)
    tl.atomic_max(top, tl.max(tl.abs(value), 0))


@triton.jit
def _halve(x, weight, top, out, num, dim, WEIGHTED: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < num, other=0.0)
    if WEIGHTED:
        value *= tl.load(weight + at // dim, mask=at < num, other=0.0)
    scale = tl.load(top)
    value = value / tl.where(scale == 0.0, 1.0, scale)  # 0 stays 0, and NaN stays NaN
    tl.store(out + at, value.to(tl.float16), mask=at < num)


def to_half(x: Tensor, weight: Tensor | None = None) -> Half:  # "z d", "z"
    """A float32 matrix in half precision, its rows times `weight` if there is one. Nothing waits for the device."""
    x = x.contiguous()
    top = x.new_zeros(1)
    out = torch.empty_like(x, dtype=torch.float16)
    grid = (triton.cdiv(x.numel(), SIZE),)
    for kernel, rest in ((_largest, (top,)), (_halve, (top, out))):
        kernel[grid](x, weight, *rest, x.numel(), x.shape[1], WEIGHTED=weight is not None, SIZE=SIZE, num_warps=8)
    return Half(out, top)


def half_product(x: Tensor, y: Tensor, more: Tensor | None = None) -> Tensor:  # "m k", "k n" float16, "m n" -> "m n"
    """One product, summed in float32; added to `more`, where that lies, if it is given."""
    if not x.is_cuda:
        found = x.float() @ y.float()
        return found if more is None else more.add_(found)
    if more is None:
        return torch.mm(x, y, out_dtype=torch.float32)
    return torch.addmm(more, x, y, out_dtype=torch.float32, out=more)
