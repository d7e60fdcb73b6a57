"""Both passes of a scaled chain through the same matrices, which are read once a step instead of twice.

With few sequences a step takes as long as reading the transition. The forward message needs x W, the backward message
W y, and neither waits for the other: so one kernel multiplies a tile of W from both sides while it holds it. A
transition of two factors, A = L R^T, is passed by the two messages in opposite order, half a step apart, so they always
meet. Messages are kept as they come out, and divided by their largest entry where they are read; `passes.py` divides
all of them at the end.
Read next: `recursions/chain_scaled.py`.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.numerics.precision import Precision

# Of an H200's 132 multiprocessors; sizes of a tile with up to 16 sequences: measured there, 2026-11-15.
PROGRAMS = {"tf32": 132, "bf16": 264}
COLS, WARPS, STAGES = 256, 8, 3
ROWS = {16: 64, 32: 16, 64: 16}  # by the padded number of sequences: tiles of 32 rows are thirty times slower
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
NOTHING, PLAIN, FORWARD, BACKWARD = (tl.constexpr(i) for i in range(4))


class TwoWay(NamedTuple):
    """Time first; as the two loops of `chain_scaled` leave them, but not yet divided by their largest entries."""

    filtered: Tensor  # "t b z"
    norm: Tensor  # "t b"         its largest entries
    future: Tensor  # "t b z"
    target: Tensor  # "t b z"     emission * future
    future_norm: Tensor  # "t b"  the largest entries of future
    inner: tuple[Tensor, Tensor] | None  # "s b r" each: filtered after the first of two maps; target before it


@triton.jit
def _rounded(x, HALF: tl.constexpr):
    """Operands of a product: bfloat16, or float32 with the ten fraction bits of TF32, to nearest."""
    if HALF:
        out = x.to(tl.bfloat16)
    else:
        out = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return out


@triton.jit
def _round_table(x, out, num, HALF: tl.constexpr, SIZE: tl.constexpr):
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
def _product(
    weight, x, x_norm, y, y_norm, x_parts, y_parts, num, num_rows, num_cols, per_program,
    HALF: tl.constexpr, HAS_X: tl.constexpr, HAS_Y: tl.constexpr, X_DIVIDED: tl.constexpr, Y_DIVIDED: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """x W for a strip of rows, and W y for a strip of columns; sums over strips are left to `_gather`."""
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
            acc += tl.dot(left, tile)  # added here, rounded: tensor cores cut their own running sums off
        if HAS_Y:
            pulled = tl.dot(tile, right)  # "rows b": the tile is not turned
            into = (tl.program_id(0) * num + b)[None, :].to(tl.int64) * num_rows + rows[:, None]
            tl.store(y_parts + into, pulled, mask=(b < num)[None, :] & (rows < end)[:, None])
    if HAS_X:
        into = (tl.program_id(1) * num + b)[:, None].to(tl.int64) * num_cols + cols[None, :]
        tl.store(x_parts + into, acc, mask=(b < num)[:, None] & (cols < num_cols)[None, :])


@triton.jit
def _gather(
    parts, num_parts, out, emission, weighted, top, final, ends, num, width, block,
    KIND: tl.constexpr, RAGGED: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The sum of the strips; times the emission (FORWARD), or replaced by `final` where a sequence ends (BACKWARD)."""
    b = tl.program_id(1)
    at = block * SIZE + tl.arange(0, SIZE)
    inside = at < width
    strip = tl.arange(0, PARTS)
    where = (strip * num + b)[:, None].to(tl.int64) * width + at[None, :]
    total = tl.sum(tl.load(parts + where, mask=(strip < num_parts)[:, None] & inside[None, :], other=0.0), 0)
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
def _gather_both(
    x_parts, num_x_parts, x_out, x_emission, x_top, x_width, x_blocks,
    y_parts, num_y_parts, y_out, y_emission, y_weighted, y_top, y_width, final, ends, num,
    X_KIND: tl.constexpr, Y_KIND: tl.constexpr, RAGGED: tl.constexpr,
    X_PARTS: tl.constexpr, Y_PARTS: tl.constexpr, X_SIZE: tl.constexpr, Y_SIZE: tl.constexpr,
):  # fmt: skip
    """Both sides of a step in one launch: the first `x_blocks` programs of a sequence are the forward side's."""
    block = tl.program_id(0)
    if block < x_blocks:
        if X_KIND != NOTHING:
            _gather(
                x_parts, num_x_parts, x_out, x_emission, x_out, x_top, final, ends, num, x_width, block,
                X_KIND, False, X_PARTS, X_SIZE,
            )  # fmt: skip
    else:
        if Y_KIND != NOTHING:
            _gather(
                y_parts, num_y_parts, y_out, y_emission, y_weighted, y_top, final, ends, num, y_width, block - x_blocks,
                Y_KIND, RAGGED, Y_PARTS, Y_SIZE,
            )  # fmt: skip


class _Map(NamedTuple):
    """A matrix "k n" as its rows lie in memory, or its transpose (flipped)."""

    weight: Tensor
    flipped: bool


class _Out(NamedTuple):
    """Where one side of a step goes, and what becomes of it."""

    kind: int
    out: Tensor  # "b z"
    top: Tensor | None = None  # "b"        its largest entries
    emission: Tensor | None = None  # "b z"
    weighted: Tensor | None = None  # "b z"   times the emission (BACKWARD)
    ends: Tensor | None = None  # "b"       where `final` takes its place (BACKWARD)


class Sums(NamedTuple):
    """Sums of the maps over their axes, for bounds: through both maps, through the second, and between them."""

    column: Tensor  # "1 z"           ones A
    second: Tensor | None  # "z"      ones R^T
    ahead: Tensor | None  # "r"       ones L
    behind: Tensor | None  # "r"      ones R


def two_way(
    maps: Sequence[Tensor],
    first: Tensor,
    emission: Tensor,
    final: Tensor,
    ends: Tensor | None,
    precision: Precision,
) -> tuple[TwoWay, Sums]:  # maps "z z" or "z r", "r z"; "b z", "t b z", "b z", "t b"
    """Filtered and future messages of all positions.

        filtered_t = emission_t * (filtered_t-1 A)        future_t = A (emission_t+1 * future_t+1)

    `maps` multiply to A: one matrix, or two. Where `ends` is true, the future is `final`; None: at the last position
    only. Cost: t readings of A for both passes, of half the bytes in "bf16". Float32; the sums too.
    """
    num_positions, num, _ = emission.shape
    tables = [_operand(x, half=precision == "bf16") for x in maps]
    filtered, future, target = (torch.empty_like(emission) for _ in range(3))
    norm, future_norm = (emission.new_zeros(num_positions, num) for _ in range(2))
    torch.mul(first, emission[0], out=filtered[0])
    torch.amax(filtered[0], -1, out=norm[0])
    future[-1] = final
    torch.mul(final, emission[-1], out=target[-1])
    future_norm[-1] = 1.0
    final = final.contiguous()
    ends = None if ends is None else ends.to(torch.int32).contiguous()  # it may be a transposed view
    last, two = num_positions - 1, len(maps) == 2
    step = _Step(tables, num, final)
    inner = tuple(emission.new_empty(last, num, maps[0].shape[1]) for _ in range(2)) if two else None

    def forward(i: int) -> _Out:
        return _Out(FORWARD.value, filtered[i], norm[i], emission[i])

    def backward(i: int) -> _Out:
        end = None if ends is None else ends[i]
        return _Out(BACKWARD.value, future[i], future_norm[i], emission[i], target[i], end)

    for i in range(last):
        j = last - i  # the backward message goes from j to j - 1
        x, y = (filtered[i], norm[i]), (target[j], future_norm[j])
        if inner is None:
            step(0, x, y, forward(i + 1), backward(j - 1))
            continue
        # The backward message is half a step behind: it enters the first map where the forward message does.
        behind = None if i == 0 else (inner[1][j], None)
        step(0, x, behind, _Out(PLAIN.value, inner[0][i]), backward(j) if i else None)
        step(1, (inner[0][i], None), y, forward(i + 1), _Out(PLAIN.value, inner[1][j - 1]))
    if inner is not None and last:
        step(0, None, (inner[1][0], None), None, backward(0))
    return TwoWay(filtered, norm, future, target, future_norm, inner), _sums(tables, emission)


def _sums(tables: Sequence[_Map], like: Tensor) -> Sums:
    """One reading of each map."""
    width = like.shape[-1]
    step = _Step(tables, 2, like)
    ones, column = like.new_ones(2, width), like.new_empty(2, width)
    if len(tables) == 1:
        step(0, (ones, None), None, _Out(PLAIN.value, column), None)
        return Sums(column[:1], None, None, None)
    weight, flipped = tables[0]
    rank = weight.shape[0] if flipped else weight.shape[1]
    ahead, behind = like.new_empty(2, rank), like.new_empty(2, rank)
    step(0, (ones, None), None, _Out(PLAIN.value, ahead), None)
    total = ahead[0].clone()
    ahead[1] = 1.0
    step(1, (ahead, None), (ones, None), _Out(PLAIN.value, column), _Out(PLAIN.value, behind))
    return Sums(column[:1], column[1], total, behind[0])


class _Step:
    """Both products with a map, and the room for their sums over strips."""

    def __init__(self, tables: Sequence[_Map], num: int, final: Tensor) -> None:
        self.tables, self.num, self.final = tables, num, final
        self.half = tables[0].weight.dtype == torch.bfloat16
        self.batch = max(16, triton.next_power_of_2(num))
        self.rows = ROWS[self.batch]
        self.grids = [self._grid(table.weight) for table in tables]
        sizes = [
            (s * t.weight.shape[1], c * t.weight.shape[0]) for t, (c, s, _) in zip(tables, self.grids, strict=True)
        ]
        self.x_parts = final.new_empty(num * max(x for x, _ in sizes), dtype=torch.float32)
        self.y_parts = final.new_empty(num * max(y for _, y in sizes), dtype=torch.float32)

    def _grid(self, weight: Tensor) -> tuple[int, int, int]:
        """Strips of columns, strips of rows, rows of a strip."""
        num_rows, num_cols = weight.shape
        columns = triton.cdiv(num_cols, COLS)
        strips = max(1, min(PROGRAMS["bf16" if self.half else "tf32"] // columns, triton.cdiv(num_rows, self.rows)))
        per_program = triton.cdiv(triton.cdiv(num_rows, strips), self.rows) * self.rows
        return columns, triton.cdiv(num_rows, per_program), per_program

    def __call__(
        self,
        which: int,
        x: tuple[Tensor, Tensor | None] | None,
        y: tuple[Tensor, Tensor | None] | None,
        forward: _Out | None,
        backward: _Out | None,
    ) -> None:
        """x W to `forward` and W y to `backward`; messages come with what they are to be divided by."""
        weight, flipped = self.tables[which]
        columns, strips, _ = self.grids[which]
        num_rows, num_cols = weight.shape
        self.multiply(which, *((y, x) if flipped else (x, y)))
        sides = (self.x_parts, strips, num_cols), (self.y_parts, columns, num_rows)
        self._gather(*(sides[::-1] if flipped else sides), forward or _NOWHERE, backward or _NOWHERE)

    def multiply(
        self, which: int, x: tuple[Tensor, Tensor | None] | None, y: tuple[Tensor, Tensor | None] | None
    ) -> None:
        """The two products with the map as it lies in memory, strip by strip."""
        weight = self.tables[which].weight
        columns, strips, per_program = self.grids[which]
        left, left_norm = x or (None, None)
        right, right_norm = y or (None, None)
        _product[columns, strips](
            weight, left, left_norm, right, right_norm, self.x_parts, self.y_parts, self.num, *weight.shape,
            per_program, HALF=self.half, HAS_X=x is not None, HAS_Y=y is not None, X_DIVIDED=left_norm is not None,
            Y_DIVIDED=right_norm is not None, BATCH=self.batch, ROWS=self.rows, COLS=COLS,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip

    def _gather(
        self, x_side: tuple[Tensor, int, int], y_side: tuple[Tensor, int, int], forward: _Out, backward: _Out
    ) -> None:
        """The sums over strips, to where they belong."""
        x_padded, y_padded = (triton.next_power_of_2(side[1]) for side in (x_side, y_side))
        x_size, y_size = (max(64, min(512, 2**13 // padded)) for padded in (x_padded, y_padded))
        x_blocks = triton.cdiv(x_side[2], x_size) if forward is not _NOWHERE else 0
        y_blocks = triton.cdiv(y_side[2], y_size) if backward is not _NOWHERE else 0
        _gather_both[x_blocks + y_blocks, self.num](
            x_side[0], x_side[1], forward.out, forward.emission, forward.top, x_side[2], x_blocks,
            y_side[0], y_side[1], backward.out, backward.emission, backward.weighted, backward.top, y_side[2],
            self.final, backward.ends, self.num,
            X_KIND=forward.kind, Y_KIND=backward.kind, RAGGED=backward.ends is not None,
            X_PARTS=x_padded, Y_PARTS=y_padded, X_SIZE=x_size, Y_SIZE=y_size, num_warps=4,
        )  # fmt: skip


_NOWHERE = _Out(NOTHING.value, None)


def _operand(x: Tensor, *, half: bool) -> _Map:
    """A copy with its entries rounded, once, to what the product would make of them."""
    flipped = x.stride(0) == 1 and x.stride(1) != 1
    x = (x.T if flipped else x).contiguous()
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    _round_table[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), HALF=half, SIZE=4096, num_warps=8)
    return _Map(out, flipped)
