"""Both passes of a scaled chain through the same matrices, which are read once per step instead of twice.

With few sequences a step takes as long as reading the transition. The forward message needs x W, the backward message
W y, and neither waits for the other: so one kernel multiplies a tile of W from both sides while it holds it. A
transition of two factors, A = L R^T, is passed by the two messages in opposite order, half a step apart, so they always
meet. Messages are kept as they come out, and divided by their largest entry where they are read; `passes.py` divides
all of them at the end.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from rankfold.kernels.forward_backward.products import (
    BACKWARD,
    FORWARD,
    NOTHING,
    PLAIN,
    gather_both,
    product,
    round_table,
)
from rankfold.numerics.precision import Precision, Rounded

# Of an H200's 132 multiprocessors; sizes of a tile with up to 16 sequences: measured there, 2026-11-15.
PROGRAMS = {"tf32": 132, "bf16": 264}
COLS, WARPS, STAGES = 256, 8, 3
# Whose sums a program of four warps adds up at once: more, beyond 32,768 states, would leave its registers.
STRIPS = 128
ROWS = {16: 64, 32: 16, 64: 16}  # by the padded number of sequences: tiles of 32 rows take 25 times as long


class TwoWay(NamedTuple):
    """Time first; as the loops of `recursions/chain/scaled` leave them, not yet divided by their largest entries."""

    filtered: Tensor  # "t b z"
    norm: Tensor  # "t b"         its largest entries
    future: Tensor  # "t b z"
    target: Tensor  # "t b z"     emission * future
    future_norm: Tensor  # "t b"  the largest entries of future
    inner: tuple[Tensor, Tensor] | None  # "s b r" each: filtered after the first of two maps; target before it


class _Map(NamedTuple):
    """A matrix "k n" as its rows lie in memory, or its transpose (flipped)."""

    weight: Tensor
    flipped: bool


class _Out(NamedTuple):
    """The output of one side of a step, and the operations on it."""

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
    rounded: Sequence[Rounded | None] = (),
) -> tuple[TwoWay, Sums]:  # maps "z z" or "z r", "r z"; "b z", "t b z", "b z", "t b"
    """Filtered and future messages of all positions.

        filtered_t = emission_t * (filtered_t-1 A)        future_t = A (emission_t+1 * future_t+1)

    `maps` multiply to A: one matrix, or two. Where `ends` is true, the future is `final`; None: at the last position
    only. Cost: t readings of A for both passes, of half the bytes in "bf16", for which `rounded` copies of the maps are
    taken where there are some. Float32; the sums too.
    """
    num_positions, num, _ = emission.shape
    copies = rounded or [None] * len(maps)
    tables = [_operand(x, copy, half=precision == "bf16") for x, copy in zip(maps, copies, strict=True)]
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
    """Both products with a map, and the memory for their sums over strips."""

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
        """x W to `forward` and W y to `backward`; messages come with their divisors."""
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
        product[columns, strips](
            weight, left, left_norm, right, right_norm, self.x_parts, self.y_parts, self.num, *weight.shape,
            per_program, HALF=self.half, HAS_X=x is not None, HAS_Y=y is not None, X_DIVIDED=left_norm is not None,
            Y_DIVIDED=right_norm is not None, BATCH=self.batch, ROWS=self.rows, COLS=COLS,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip

    def _gather(
        self, x_side: tuple[Tensor, int, int], y_side: tuple[Tensor, int, int], forward: _Out, backward: _Out
    ) -> None:
        """The sums over strips, to where they belong."""
        x_strips, y_strips = (min(STRIPS, triton.next_power_of_2(side[1])) for side in (x_side, y_side))
        x_size, y_size = (max(64, min(512, 2**13 // strips)) for strips in (x_strips, y_strips))
        x_blocks = triton.cdiv(x_side[2], x_size) if forward is not _NOWHERE else 0
        y_blocks = triton.cdiv(y_side[2], y_size) if backward is not _NOWHERE else 0
        gather_both[x_blocks + y_blocks, self.num](
            x_side[0], x_side[1], forward.out, forward.emission, forward.top, x_side[2], x_blocks,
            y_side[0], y_side[1], backward.out, backward.emission, backward.weighted, backward.top, y_side[2],
            self.final, backward.ends, self.num,
            X_KIND=forward.kind, Y_KIND=backward.kind, RAGGED=backward.ends is not None,
            X_PARTS=x_strips, Y_PARTS=y_strips, X_MANY=x_side[1] > x_strips, Y_MANY=y_side[1] > y_strips,
            X_SIZE=x_size, Y_SIZE=y_size, num_warps=4,
        )  # fmt: skip


_NOWHERE = _Out(NOTHING.value, None)


def _operand(x: Tensor, copy: Rounded | None = None, *, half: bool) -> _Map:
    """A copy with its entries rounded once, as the product would round them."""
    flipped = x.stride(0) == 1 and x.stride(1) != 1
    taken = copy.take(x) if half and copy is not None else None
    if taken is not None:
        return _Map(taken.T if flipped else taken, flipped)
    x = (x.T if flipped else x).contiguous()
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    round_table[(triton.cdiv(x.numel(), 4096),)](x, out, x.numel(), HALF=half, SIZE=4096, num_warps=8)
    return _Map(out, flipped)
