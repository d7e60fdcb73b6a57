"""The two passes of `linear_softmax` over a table: logits to distributions in place, and the gradient of the logits.

One program per row. Rows of up to WHOLE entries stay in registers; longer ones are read twice.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.rounding import half_product, to_half, to_tf32
from rankfold.numerics.precision import Products

WHOLE = 2**15  # entries of a row that 512 threads hold in registers, 64 each
PIECE = 2**13  # entries of a piece of a longer row
PIECE_OF_LOGITS = 2**26  # bytes of the gradient of the logits that are there at a time
MOST_PIECES = 8  # of a large table, whose pieces are larger instead


@triton.jit
def _stays(seed, row, start, dropout, SIZE: tl.constexpr):
    """Which entries of a row stay. Four random numbers per call of the generator; each row is a stream of its own."""
    at = start // 4 + tl.arange(0, SIZE // 4)
    a, b, c, d = tl.rand4x(seed + row, at)
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (SIZE,)) >= dropout


@triton.jit
def _logits(
    table, scale, bias, seed, row, start, num, dropout, HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, SIZE: tl.constexpr
):
    """A piece of a row; -inf beyond its end and where entries leave."""
    at = start + tl.arange(0, SIZE)
    x = tl.load(table + row * num + at, mask=at < num, other=0.0) * tl.load(scale)
    if HAS_BIAS:
        x += tl.load(bias + at, mask=at < num, other=0.0)
    if DROPS:
        x = tl.where(_stays(seed, row, start, dropout, SIZE), x, float("-inf"))
    return tl.where(at < num, x, float("-inf"))


@triton.jit
def _store(share, table, half, at, mask, ROUNDED: tl.constexpr, HALVED: tl.constexpr):
    """A piece of a row where it belongs, and its copy in bfloat16."""
    share = to_tf32(share) if ROUNDED else share
    tl.store(table + at, share, mask=mask)
    if HALVED:
        tl.store(half + at, share.to(tl.bfloat16), mask=mask)


@triton.jit
def _whole_row(
    table, half, scale, bias, log_total, seed, num, dropout,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, ROUNDED: tl.constexpr, HALVED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key = tl.load(seed) if DROPS else 0
    x = _logits(table, scale, bias, key, row, 0, num, dropout, HAS_BIAS, DROPS, SIZE)
    top = tl.max(x, 0)
    if DROPS:
        if top == float("-inf"):  # all would leave: none does
            x = _logits(table, scale, bias, key, row, 0, num, 0.0, HAS_BIAS, DROPS, SIZE)
            top = tl.max(x, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    x = tl.exp(x - shift)
    total = tl.sum(x, 0)
    share = x / total
    at = tl.arange(0, SIZE)
    _store(share, table, half, row * num + at, at < num, ROUNDED, HALVED)
    tl.store(log_total + row, tl.log(total) + shift)


@triton.jit
def _row_sum(
    table, scale, bias, key, row, num, dropout, HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, SIZE: tl.constexpr
):
    """The maximum of a row and the sum of exp(x - maximum), piece by piece."""
    best = tl.full((SIZE,), float("-inf"), tl.float32)
    sums = tl.zeros((SIZE,), tl.float32)
    for start in range(0, num, SIZE):
        x = _logits(table, scale, bias, key, row, start, num, dropout, HAS_BIAS, DROPS, SIZE)
        new = tl.maximum(best, x)
        shift = tl.where(new == float("-inf"), 0.0, new)
        sums = sums * tl.exp(best - shift) + tl.exp(x - shift)
        best = new
    top = tl.max(best, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.sum(sums * tl.exp(best - shift), 0)


@triton.jit
def _long_row(
    table, half, scale, bias, log_total, seed, num, dropout,
    HAS_BIAS: tl.constexpr, DROPS: tl.constexpr, ROUNDED: tl.constexpr, HALVED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key = tl.load(seed) if DROPS else 0
    top, total = _row_sum(table, scale, bias, key, row, num, dropout, HAS_BIAS, DROPS, SIZE)
    rate = tl.where(top == float("-inf"), 0.0, dropout)  # all would leave: none does
    if DROPS:
        if top == float("-inf"):
            top, total = _row_sum(table, scale, bias, key, row, num, 0.0, HAS_BIAS, DROPS, SIZE)
    shift = tl.where(top == float("-inf"), 0.0, top)
    for start in range(0, num, SIZE):
        x = _logits(table, scale, bias, key, row, start, num, rate, HAS_BIAS, DROPS, SIZE)
        at = start + tl.arange(0, SIZE)
        share = tl.exp(x - shift) / total
        _store(share, table, half, row * num + at, at < num, ROUNDED, HALVED)
    tl.store(log_total + row, tl.log(total) + shift)


@triton.jit
def _gradient_piece(table, grad, weight, mixed, base, start, num, MIXED: tl.constexpr, SIZE: tl.constexpr):
    """A piece of a row of the table and of its gradient, that of a mixture included."""
    at = start + tl.arange(0, SIZE)
    share = tl.load(table + base + at, mask=at < num, other=0.0)
    g = tl.load(grad + base + at, mask=at < num, other=0.0)
    if MIXED:
        g += weight * tl.load(mixed + at, mask=at < num, other=0.0)
    # A share of 0 is used by nobody, however large the gradient of one that were not 0.
    return share, tl.where((share == 0.0) & (tl.abs(g) == float("inf")), 0.0, g)


@triton.jit
def _gradient_row(
    table, grad, grad_total, weights, mixed, out, num, WHOLE_ROW: tl.constexpr, MIXED: tl.constexpr, SIZE: tl.constexpr
):
    """share (grad - share . grad + grad_total)"""
    row = tl.program_id(0).to(tl.int64)
    base = row * num
    weight = tl.load(weights + row) if MIXED else 0.0
    if WHOLE_ROW:
        at = tl.arange(0, SIZE)
        share, g = _gradient_piece(table, grad, weight, mixed, base, 0, num, MIXED, SIZE)
        level = tl.load(grad_total + row) - tl.sum(share * g, 0)
        tl.store(out + base + at, share * (g + level), mask=at < num)
    else:
        sums = tl.zeros((SIZE,), tl.float32)
        for start in range(0, num, SIZE):
            share, g = _gradient_piece(table, grad, weight, mixed, base, start, num, MIXED, SIZE)
            sums += share * g
        level = tl.load(grad_total + row) - tl.sum(sums, 0)
        for start in range(0, num, SIZE):
            share, g = _gradient_piece(table, grad, weight, mixed, base, start, num, MIXED, SIZE)
            at = start + tl.arange(0, SIZE)
            tl.store(out + base + at, share * (g + level), mask=at < num)


def shares(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    dropout: float,
    generator: torch.Generator | None,
    precision: Products,
) -> tuple[Tensor, Tensor, Tensor | None]:  # "m n", "m", "m n"
    """The table and the log-normalisers; "mixed" multiplies half-precision operands: TF32 would not round them less.

    There the table comes with its copy in bfloat16, which a pass of its own over the table would make otherwise.
    """
    if precision != "mixed":
        table = torch.mm(query, key.T)
        return *_normalised(table, None, bias, dropout, generator, rounded=precision == "tf32"), None
    q, k = to_half(query), to_half(key)
    table = half_product(q.half, k.half.T)
    half = torch.empty_like(table, dtype=torch.bfloat16) if table.is_cuda else None  # the interpreter has none
    return *_normalised(table, q.scale * k.scale, bias, dropout, generator, rounded=True, half=half), half


def _normalised(
    table: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    generator: torch.Generator | None,
    *,
    rounded: bool,
    half: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # "m n", "m"
    """Turn logits, times `scale`, into distributions where they lie, `rounded` as TF32 holds them; a copy in `half`."""
    drops = bool(dropout) and generator is not None
    seed = torch.randint(2**62, (1,), generator=generator, device=table.device) if drops else None
    scale = table.new_ones(1) if scale is None else scale
    log_total = table.new_empty(len(table))
    whole, size = _size(table)
    (_whole_row if whole else _long_row)[(len(table),)](
        table, half, scale, _in_a_row(bias), log_total, seed, table.shape[1], dropout,
        HAS_BIAS=bias is not None, DROPS=drops, ROUNDED=rounded, HALVED=half is not None, SIZE=size,
        num_warps=_warps(size),
    )  # fmt: skip
    return table, log_total


def gradients(
    query: Tensor,
    key: Tensor,
    table: Tensor,
    grad: Tensor,
    grad_total: Tensor,
    mixtures: list[tuple[Tensor, Tensor]],
    wanted: tuple[bool, ...],
    precision: Products,
) -> tuple[Tensor | None, ...]:
    """The gradients in query, key and bias, some rows at a time: the gradient of the logits is never all there.

    The bias rides along as one more column of the queries.
    """
    kind = torch.bfloat16 if precision == "mixed" else torch.float32
    columns = query.to(kind) if not wanted[2] else _with_ones(query, kind)
    keys, dim = key.to(kind), query.shape[1]
    grad = grad.contiguous()
    found: list[Tensor] = []
    both: Tensor | None = None
    height = max(1, PIECE_OF_LOGITS // (kind.itemsize * table.shape[1]), triton.cdiv(len(table), MOST_PIECES))
    for start in range(0, len(table), height):
        rows = slice(start, start + height)
        part = [(weights[rows], own) for weights, own in mixtures]
        logits = _logit_gradient(table[rows], grad[rows], grad_total[rows], part, kind)
        if wanted[0]:
            found.append(_product(logits, keys))
        if wanted[1] or wanted[2]:
            more = _product(logits.T, columns[rows])
            both = more if both is None else both.add_(more)
        del logits  # before the next piece is made
    grad_key = both[:, :dim] if wanted[1] else None
    grad_query = (found[0] if len(found) == 1 else torch.cat(found)) if wanted[0] else None
    return grad_query, grad_key, both[:, dim] if wanted[2] else None


def _with_ones(query: Tensor, kind: torch.dtype) -> Tensor:  # "m d" -> "m d+8"
    """The queries, a column of ones, and zeros up to a width that products like."""
    num, dim = query.shape
    out = torch.zeros(num, dim + 8, dtype=kind, device=query.device)
    out[:, :dim] = query
    out[:, dim] = 1.0
    return out


def _product(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.mm(x, y)
    return torch.mm(x, y, out_dtype=torch.float32) if x.is_cuda else x.float() @ y.float()


def _logit_gradient(
    table: Tensor, grad: Tensor, grad_total: Tensor, mixtures: list[tuple[Tensor, Tensor]], kind: torch.dtype
) -> Tensor:  # "m n", "m n", "m" -> "m n"
    """The gradient of the logits, given that of the distributions and of the log-normalisers."""
    for weights, own in mixtures[1:]:  # one is taken along, others are added
        grad = torch.addr(grad, weights, own)
    weights, mixed = mixtures[0] if mixtures else (None, None)
    out = torch.empty_like(grad, dtype=kind)
    whole, size = _size(table)
    _gradient_row[(len(table),)](
        table, grad, grad_total.contiguous(), _in_a_row(weights), _in_a_row(mixed), out, table.shape[1],
        WHOLE_ROW=whole, MIXED=bool(mixtures), SIZE=size, num_warps=_warps(size),
    )  # fmt: skip
    return out


def _in_a_row(x: Tensor | None) -> Tensor | None:
    """A contiguous tensor, as the kernels assume."""
    return None if x is None else x.contiguous()


def _size(table: Tensor) -> tuple[bool, int]:
    size = max(4, triton.next_power_of_2(table.shape[1]))
    return (True, size) if size <= WHOLE else (False, PIECE)


def _warps(size: int) -> int:
    return max(1, min(16, size // 512))
