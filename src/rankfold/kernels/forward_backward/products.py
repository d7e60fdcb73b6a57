"""The kernels of a step: a tile of W multiplied from both sides, and the sums over strips with their epilogues."""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl

from rankfold.kernels.rounding import to_tf32

TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
NOTHING, PLAIN, FORWARD, BACKWARD = (tl.constexpr(i) for i in range(4))  # what becomes of a side


@triton.jit
def _rounded(x, HALF: tl.constexpr):
    """Operands of a product: bfloat16, or float32 with the ten fraction bits of TF32, to nearest."""
    if HALF:
        out = x.to(tl.bfloat16)
    else:
        out = to_tf32(x)
    return out


@triton.jit
def round_table(x, out, num, HALF: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, _rounded(tl.load(x + at, mask=at < num), HALF), mask=at < num)


@triton.jit
def _message(x, norm, b, at, num, width, HALF: tl.constexpr, DIVIDED: tl.constexpr):
    """A piece of the messages of all sequences, divided by their largest entries."""
    mask = (b < num)[:, None] & (at < width)[None, :]
    piece = tl.load(x + b[:, None] * width + at[None, :], mask=mask, other=0.0)
    if DIVIDED:
        piece = piece / tl.maximum(tl.load(norm + b, mask=b < num, other=1.0), TINY)[:, None]
    return _rounded(piece, HALF)


@triton.jit
def product(
    weight, x, x_norm, y, y_norm, x_parts, y_parts, num, num_rows, num_cols, per_program,
    HALF: tl.constexpr, HAS_X: tl.constexpr, HAS_Y: tl.constexpr, X_DIVIDED: tl.constexpr, Y_DIVIDED: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """x W for a strip of rows, and W y for a strip of columns; sums over strips are left to `gather_both`."""
    b = tl.arange(0, BATCH)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    begin = tl.program_id(1) * per_program
    end = tl.minimum(begin + per_program, num_rows)
    acc = tl.zeros((BATCH, COLS), tl.float32)
    if HAS_Y:
        right = tl.trans(_message(y, y_norm, b, cols, num, num_cols, HALF, Y_DIVIDED))
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = rows.to(tl.int64)[:, None] * num_cols + cols[None, :]
        tile = tl.load(weight + at, mask=(rows < end)[:, None] & (cols < num_cols)[None, :], other=0.0)
        if HAS_X:
            left = _message(x, x_norm, b, rows, num, num_rows, HALF, X_DIVIDED)
            # Added here, rounded: tensor cores cut their own running sums off.
            acc += tl.dot(left, tile, max_num_imprecise_acc=1)
        if HAS_Y:
            pulled = tl.dot(tile, right)  # "rows b": the tile is not turned
            into = (tl.program_id(0) * num + b)[None, :].to(tl.int64) * num_rows + rows[:, None]
            tl.store(y_parts + into, pulled, mask=(b < num)[None, :] & (rows < end)[:, None])
    if HAS_X:
        into = (tl.program_id(1) * num + b)[:, None].to(tl.int64) * num_cols + cols[None, :]
        tl.store(x_parts + into, acc, mask=(b < num)[:, None] & (cols < num_cols)[None, :])


@triton.jit
def _strips(parts, first, num_parts, b, at, num, width, PARTS: tl.constexpr):
    """The sum of PARTS strips from `first` on."""
    strip = first + tl.arange(0, PARTS)
    where = (strip * num + b)[:, None].to(tl.int64) * width + at[None, :]
    mask = (strip < num_parts)[:, None] & (at < width)[None, :]
    return tl.sum(tl.load(parts + where, mask=mask, other=0.0), 0)


@triton.jit
def _gather(
    parts, num_parts, out, emission, weighted, top, final, ends, num, width, block,
    KIND: tl.constexpr, RAGGED: tl.constexpr, PARTS: tl.constexpr, MANY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The sum of the strips; times the emission (FORWARD), or replaced by `final` where a sequence ends (BACKWARD)."""
    b = tl.program_id(1)
    at = block * SIZE + tl.arange(0, SIZE)
    inside = at < width
    total = _strips(parts, 0, num_parts, b, at, num, width, PARTS)
    if MANY:
        for first in range(PARTS, num_parts, PARTS):
            total += _strips(parts, first, num_parts, b, at, num, width, PARTS)
    here = b * width + at
    if KIND == FORWARD:
        total *= tl.load(emission + here, mask=inside, other=0.0)
    if KIND == BACKWARD:
        if RAGGED:
            if tl.load(ends + b) != 0:
                total = tl.load(final + here, mask=inside, other=0.0)
        tl.store(weighted + here, total * tl.load(emission + here, mask=inside, other=0.0), mask=inside)
    tl.store(out + here, total, mask=inside)
    if KIND != PLAIN:
        tl.atomic_max(top + b, tl.max(total, 0))


@triton.jit
def gather_both(
    x_parts, num_x_parts, x_out, x_emission, x_top, x_width, x_blocks,
    y_parts, num_y_parts, y_out, y_emission, y_weighted, y_top, y_width, final, ends, num,
    X_KIND: tl.constexpr, Y_KIND: tl.constexpr, RAGGED: tl.constexpr,
    X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr, X_MANY: tl.constexpr, Y_MANY: tl.constexpr,
    X_SIZE: tl.constexpr, Y_SIZE: tl.constexpr,
):  # fmt: skip
    """Both sides of a step in one launch: the first `x_blocks` programs of a sequence are the forward side's."""
    block = tl.program_id(0)
    if block < x_blocks:
        if X_KIND != NOTHING:
            _gather(
                x_parts, num_x_parts, x_out, x_emission, x_out, x_top, final, ends, num, x_width, block,
                X_KIND, False, X_PARTS, X_MANY, X_SIZE,
            )  # fmt: skip
    else:
        if Y_KIND != NOTHING:
            _gather(
                y_parts, num_y_parts, y_out, y_emission, y_weighted, y_top, final, ends, num, y_width, block - x_blocks,
                Y_KIND, RAGGED, Y_PARTS, Y_MANY, Y_SIZE,
            )  # fmt: skip
