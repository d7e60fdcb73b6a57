"""The splits of all spans of a width in one launch, forward and backward, for charts over ranks.

Cells are packed: width by width, sentence by sentence, start by start. The ranks of a span, `raw`, are in units of
exp(top), and so is its row of `side`, its left vector and then its right one, the products of `raw` with both factors.
The largest entry of `raw`, its `norm`, is divided out by whoever reads it. A width is one product and two launches.
The small one writes the divisor and the log-scale, top + log norm + span, that all readers share.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.rounding import to_tf32


class Cells(NamedTuple):
    """What is known of all cells, packed; width 1 are the words."""

    top: Tensor  # "c"   float64   the scale that the splits of a span were brought to; of a word its own
    norm: Tensor  # "c"  float32   the largest entry of its ranks, 0 if there is none; of a word 1
    span: Tensor  # "c"  float64   the logarithm of its own weight
    scale: Tensor  # "c"  float64   top + log norm + span
    inverse: Tensor  # "c"  float32   1 / norm
    num: int  # sentences
    num_words: int

    def first(self, width: int) -> int:
        """The first cell of a width."""
        return self.num * ((width - 1) * (self.num_words + 1) - width * (width - 1) // 2)

    def of(self, width: int) -> slice:
        """The cells of a width."""
        return slice(self.first(width), self.first(width + 1))


@triton.jit
def _row(sentence, start, width, num, num_words):
    """The cell of a span."""
    before = (width - 1) * (num_words + 1) - width * (width - 1) // 2
    return num * before + sentence * (num_words - width + 1) + start


@triton.jit
def _finish(top, norm, span, scale, inverse, first, end, SIZE: tl.constexpr):
    """What readers of cells need, once their norms are known."""
    at = first + tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    there = at < end
    size = tl.load(norm + at, mask=there, other=1.0)
    size = tl.where(size == 0.0, 1.0, size)
    base = tl.load(top + at, mask=there, other=float("-inf")) + tl.load(span + at, mask=there, other=0.0)
    tl.store(scale + at, base + tl.log(size.to(tl.float64)), mask=there)
    tl.store(inverse + at, 1.0 / size, mask=there)


@triton.jit
def _scale(scale, at, known):
    """The log-scale of cells' vectors over their norm."""
    return tl.load(scale + at, mask=known, other=float("-inf"))


@triton.jit
def _rounded(x, ROUND: tl.constexpr):
    if ROUND:
        x = to_tf32(x)
    return x


@triton.jit
def _combine(
    side, top, norm, scale, inverse, raw, width, num, num_words, rank,
    ROUND: tl.constexpr, ALL: tl.constexpr, SOME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The ranks of a span: the sum over its splits of left times right, in units of the largest scale of a split."""
    count = num_words - width + 1
    sentence, start = tl.program_id(0) // count, tl.program_id(0) % count
    here = _row(sentence, start, width, num, num_words)
    every = 1 + tl.arange(0, ALL)
    there = every < width
    lefts = _row(sentence, start, every, num, num_words)
    rights = _row(sentence, start + every, width - every, num, num_words)
    scales = _scale(scale, lefts, there) + _scale(scale, rights, there)
    most = tl.max(tl.where(there, scales, float("-inf")), 0)
    unit = tl.where(most > float("-inf"), most, 0.0)
    if tl.program_id(1) == 0:
        tl.store(top + here, most)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((SOME, BLOCK), tl.float32)
    for first in range(1, width, SOME):
        split = first + tl.arange(0, SOME)
        known = split < width
        left = _row(sentence, start, split, num, num_words)
        right = _row(sentence, start + split, width - split, num, num_words)
        own = _scale(scale, left, known) + _scale(scale, right, known)
        share = tl.where(known, tl.exp(own - unit), 0.0).to(tl.float32)
        of_left = tl.load(inverse + left, mask=known, other=1.0) * share
        of_right = tl.load(inverse + right, mask=known, other=1.0)
        inside = known[:, None] & (at < rank)[None, :]
        one = tl.load(side + left.to(tl.int64)[:, None] * (2 * rank) + at[None, :], mask=inside, other=0.0)
        other = tl.load(side + right.to(tl.int64)[:, None] * (2 * rank) + rank + at[None, :], mask=inside, other=0.0)
        total += (one.to(tl.float32) * of_left[:, None]) * (other.to(tl.float32) * of_right[:, None])
    found = tl.sum(total, 0)
    tl.atomic_max(norm + here, tl.max(tl.where(at < rank, found, 0.0), 0))
    tl.store(raw + here.to(tl.int64) * rank + at, _rounded(found, ROUND).to(raw.dtype.element_ty), mask=at < rank)


@triton.jit
def _gather(
    side, top, scale, inverse, of_raw, of_side, width, num, num_words, rank,
    ROUND: tl.constexpr, SOME: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of a cell's left vector, from all spans that it begins; of the right one, from those it ends."""
    count = num_words - width + 1
    sentence, start = tl.program_id(0) // count, tl.program_id(0) % count
    stop, is_left = start + width, tl.program_id(2) == 0
    here = _row(sentence, start, width, num, num_words)
    own, divisor = tl.load(scale + here), tl.load(inverse + here)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.where(is_left, rank, 0)  # of the siblings' vectors
    total = tl.zeros((SOME, BLOCK), tl.float32)
    for first in range(0, tl.where(is_left, num_words - stop, start), SOME):
        one = first + tl.arange(0, SOME)
        begin, end = tl.where(is_left, start, one), tl.where(is_left, stop + 1 + one, stop)
        known = tl.where(is_left, end <= num_words, one < start)
        parent = _row(sentence, begin, end - begin, num, num_words)
        sibling = _row(
            sentence,
            tl.where(is_left, stop, begin),
            tl.where(is_left, end - stop, start - begin),
            num,
            num_words,
        )
        unit = tl.load(top + parent, mask=known, other=float("-inf"))
        whole = own + _scale(scale, sibling, known) - tl.where(unit > float("-inf"), unit, 0.0)
        weight = tl.where(known, tl.exp(whole), 0.0).to(tl.float32) * divisor
        weight *= tl.load(inverse + sibling, mask=known, other=1.0)
        inside = known[:, None] & (at < rank)[None, :]
        of = tl.load(of_raw + parent.to(tl.int64)[:, None] * rank + at[None, :], mask=inside, other=0.0)
        x = tl.load(side + sibling.to(tl.int64)[:, None] * (2 * rank) + column + at[None, :], mask=inside, other=0.0)
        total += (x.to(tl.float32) * weight[:, None]) * of
    found = _rounded(tl.sum(total, 0), ROUND).to(of_side.dtype.element_ty)
    tl.store(of_side + here.to(tl.int64) * (2 * rank) + (rank - column) + at, found, mask=at < rank)


@triton.jit
def _round(x, out, num, ROUND: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < num, other=0.0)
    tl.store(out + at, _rounded(value, ROUND).to(out.dtype.element_ty), mask=at < num)


SIZES = {"SOME": 8, "BLOCK": 256, "num_warps": 4}


def combine(side: Tensor, cells: Cells, raw: Tensor, width: int, *, rounded: bool) -> None:  # "c 2r", "c r"
    """Write `raw`, `top` and `norm` of a width, from 2; `norm` is 0 there before. `rounded`: to TF32.

    Widths come in their order: what readers need of the narrower one is written first.
    """
    rank, narrower = raw.shape[1], cells.of(width - 1)
    _finish[(triton.cdiv(narrower.stop - narrower.start, 256),)](
        cells.top, cells.norm, cells.span, cells.scale, cells.inverse, narrower.start, narrower.stop, SIZE=256,
    )  # fmt: skip
    grid = (cells.num * (cells.num_words - width + 1), triton.cdiv(rank, SIZES["BLOCK"]))
    _combine[grid](
        side, cells.top, cells.norm, cells.scale, cells.inverse, raw, width, cells.num, cells.num_words, rank,
        ROUND=rounded, ALL=triton.next_power_of_2(cells.num_words), **SIZES,
    )  # fmt: skip


def gather(
    side: Tensor, cells: Cells, of_raw: Tensor, of_side: Tensor, width: int, *, rounded: bool
) -> None:  # "c 2r", "c r", "c 2r"
    """Write `of_side` of a width, from `of_raw` of all wider spans."""
    rank = of_raw.shape[1]
    grid = (cells.num * (cells.num_words - width + 1), triton.cdiv(rank, SIZES["BLOCK"]), 2)
    _gather[grid](
        side, cells.top, cells.scale, cells.inverse, of_raw, of_side, width, cells.num, cells.num_words, rank,
        ROUND=rounded, **SIZES,
    )  # fmt: skip


def rounded_copy(x: Tensor, kind: torch.dtype, *, rounded: bool) -> Tensor:
    """A contiguous copy as operands of products are held: rounded to TF32, or in `kind`."""
    x = x.contiguous()
    if not rounded:
        return x.to(kind)
    out = torch.empty_like(x, dtype=kind)
    _round[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), ROUND=rounded, SIZE=4096, num_warps=8)
    return out
