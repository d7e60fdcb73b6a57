"""`linear_logsumexp` fused: logits live in registers only, whatever the number of states and words.

One kernel runs along the keys and keeps a maximum and a sum for every query; the backward pass makes the softmax again,
a block of rows at a time, for the products that use it.
Operands are half precision with a scale, as accurate as TF32.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.kernels.offsets import begin
from rankfold.kernels.rounding import Half, half_product, to_half

# Programs that keep an H200 (132 multiprocessors) busy: few queries share their keys out among several programs.
PROGRAMS = 264
# Entries of a block of the softmax in the backward pass, float16: 64 MiB. Smaller blocks would stay in the cache, but
# leave products too small to be fast.
BLOCK = 2**25
# The softmax is held as probability * LIFT in float16, whose largest number is 65504: so small ones keep their digits.
LIFT = tl.constexpr(2.0**15)
LOG2E = tl.constexpr(1.4426950408889634)
TILE = 128
ALIGNED = 64  # rows of the block begin where the GPU's products want them
WARPS, STAGES, STEP = 4, 3, 64
WIDE = 128  # keys of a tile


@triton.jit
def _logits(
    query, key, bias, scale, rows, first, num_rows, num_keys, DIM,
    STEP: tl.constexpr, HAS_BIAS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A tile of query . key scale + bias from key `first` on, in units of log 2; -inf beyond the last key."""
    own = tl.arange(0, COLS)
    cols = first + own
    key += begin(first, DIM)
    acc = tl.zeros((rows.shape[0], COLS), tl.float32)
    for start in range(0, DIM, STEP):
        at = start + tl.arange(0, STEP)
        inside = at < DIM
        q = tl.load(query + rows[:, None] * DIM + at, mask=(rows < num_rows)[:, None] & inside, other=0.0)
        k = tl.load(key + own[:, None] * DIM + at, mask=(cols < num_keys)[:, None] & inside, other=0.0)
        acc = tl.dot(q, k.T, acc)
    out = acc * (scale * LOG2E)
    if HAS_BIAS:
        out += tl.load(bias + cols, mask=cols < num_keys, other=0.0) * LOG2E
    return tl.where(cols < num_keys, out, float("-inf"))


@triton.jit
def _sums(
    query, key, bias, scale, top, total, num_rows, num_keys, per_program, DIM,
    STEP: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The maximum and the sum of 2^(logit - maximum) over a program's share of the keys."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    begin = tl.program_id(1) * per_program
    end = tl.minimum(begin + per_program, num_keys)
    factor = tl.load(scale)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    sums = tl.zeros((ROWS,), tl.float32)
    for start in range(begin, end, COLS):
        x = _logits(query, key, bias, factor, rows, start, num_rows, end, DIM, STEP, HAS_BIAS, COLS)
        new = tl.maximum(best, tl.max(x, 1))
        shift = tl.where(new == float("-inf"), 0.0, new)
        sums = sums * tl.exp2(best - shift) + tl.sum(tl.exp2(x - shift[:, None]), 1)
        best = new
    at = tl.program_id(1) * num_rows + rows
    tl.store(top + at, best, mask=rows < num_rows)
    tl.store(total + at, sums, mask=rows < num_rows)


@triton.jit
def _shares(
    query, key, bias, scale, log_norm, out, num_rows, num_keys, width, DIM,
    STEP: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """LIFT times the softmax of a tile, float16; 0 beyond the last key, up to the width of the block."""
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(0) * COLS
    x = _logits(query, key, bias, tl.load(scale), rows, first, num_rows, num_keys, DIM, STEP, HAS_BIAS, COLS)
    norm = tl.load(log_norm + rows, mask=rows < num_rows, other=float("inf")) * LOG2E
    share = tl.exp2(x - tl.where(norm == float("-inf"), 0.0, norm)[:, None]) * LIFT
    cols = first + tl.arange(0, COLS)
    mask = (rows < num_rows)[:, None] & (cols < width)
    tl.store(out + rows[:, None] * width + cols, share.to(tl.float16), mask=mask)


def log_normalisers(query: Half, key: Half, bias: Tensor | None) -> Tensor:  # "z d", "v d", "v" -> "z"
    """log sum_v exp(query . key + bias) in one pass."""
    (num_rows, dim), num_keys = query.half.shape, len(key.half)
    heights = triton.cdiv(num_rows, TILE)
    splits = min(max(1, PROGRAMS // heights), triton.cdiv(num_keys, TILE))
    per_program = triton.cdiv(triton.cdiv(num_keys, splits), TILE) * TILE
    splits = triton.cdiv(num_keys, per_program)
    top = query.scale.new_empty(splits, num_rows)
    total = torch.empty_like(top)
    _sums[heights, splits](
        query.half, key.half, _in_a_row(bias), query.scale * key.scale, top, total, num_rows, num_keys, per_program,
        dim, STEP=_step(dim), HAS_BIAS=bias is not None, ROWS=TILE, COLS=WIDE, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    best = top.amax(0)
    shift = torch.where(best == float("-inf"), 0.0, best)
    return (total * torch.exp2(top - shift)).sum(0).log() + shift * (1.0 / LOG2E.value)


def gradients(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    halves: tuple[Half, Half],
    out: Tensor,
    grad: Tensor,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of grad . out in query, key and bias; `halves` are query and key in half precision."""
    q, k = halves
    weighted = to_half(query, grad.contiguous()) if wanted[1] else None
    grad_query = torch.empty_like(query) if wanted[0] else None
    grad_bias = torch.zeros_like(bias) if wanted[2] else None
    (num_rows, dim), num_keys = query.shape, len(key)
    width = triton.cdiv(num_keys, ALIGNED) * ALIGNED
    grad_key = None
    keys = torch.nn.functional.pad(k.half, (0, 0, 0, width - num_keys))
    height = min(num_rows, max(TILE, BLOCK // width // TILE * TILE))
    block = torch.empty(height, width, dtype=torch.float16, device=query.device)
    scale, bias = q.scale * k.scale, _in_a_row(bias)
    weight = grad[:, None] * (k.scale / LIFT.value)
    for start in range(0, num_rows, height):
        rows = slice(start, min(start + height, num_rows))
        share = block[: rows.stop - start]
        _shares[triton.cdiv(width, WIDE), triton.cdiv(len(share), TILE)](
            q.half[rows], k.half, bias, scale, out[rows], share, len(share), num_keys, width, dim,
            STEP=_step(dim), HAS_BIAS=bias is not None, ROWS=TILE, COLS=WIDE, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        if grad_query is not None:
            torch.mul(half_product(share, keys), weight[rows], out=grad_query[rows])
        if weighted is not None:
            grad_key = half_product(share.T, weighted.half[rows], grad_key)
        if grad_bias is not None:
            grad_bias += (share.T.float() @ grad[rows])[:num_keys] / LIFT.value
    if weighted is not None:
        grad_key = grad_key[:num_keys] * (weighted.scale / LIFT.value)
    return grad_query, grad_key, grad_bias


def _in_a_row(bias: Tensor | None) -> Tensor | None:
    """A contiguous tensor, as the kernels assume."""
    return None if bias is None else bias.contiguous()


def _step(dim: int) -> int:
    """How much of the inner axis a program takes at once."""
    return min(STEP, max(16, triton.next_power_of_2(dim)))
