"""The loops over the positions of a chain of few states on a GPU, in one launch, and a long sequence in chunks at once.

A sequence is cut into chunks. The matrices of all chunks, products of their steps, are built at the same time; a short
loop over them gives the message at every border; and from there all chunks run at the same time. A message that
arrives at a border by steps must be the one that the matrices gave, entry by entry, to the rounding of the steps;
otherwise its sequence runs in one piece. Twins: the loops of `recursions/chain/scaled.py` and `soundness.py`.
"""

# mypy: ignore-errors
from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankfold.errors import may_look

# States up to which the matrix of a chunk stays in the registers of a program.
CHUNKED = {torch.float32: 64, torch.float64: 16}
# A step of a product takes about as long as three of a message. Below SHORT positions one piece is faster.
SHORT, STEPS_PER_CHUNK = 512, 3
MOST = 4096  # programs that run at the same time, at most


@triton.jit
def _exponent(x):
    """Of the power of two at or below x, within those of normal numbers whose inverses are normal."""
    if x.dtype == tl.float32:
        found = tl.minimum(tl.maximum(((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127, -126), 126)
    else:
        wide = ((x.to(tl.int64, bitcast=True) >> 52) & 2047) - 1023
        found = tl.minimum(tl.maximum(wide, -1022), 1022).to(tl.int32)
    return found


@triton.jit
def _power(n, like):
    """2^n, 0 below the smallest normal number."""
    if like.dtype == tl.float32:
        bits = (tl.minimum(tl.maximum(n, -126), 127) + 127) << 23
        found = tl.where(n < -126, 0.0, bits.to(tl.float32, bitcast=True))
    else:
        wide = (tl.minimum(tl.maximum(n, -1022), 1023) + 1023).to(tl.int64) << 52
        found = tl.where(n < -1022, 0.0, wide.to(tl.float64, bitcast=True))
    return found


@triton.jit
def _largest(x):
    """The largest entry; NaN if one is, as torch has it."""
    return tl.where(tl.max((x != x).to(tl.int32), 0) > 0, float("nan"), tl.max(x, 0))


@triton.jit
def _divisor(top):
    """The largest entry; above zero, so that a vector of zeros stays one."""
    # Written here: a number given to a kernel arrives in float32, where the smallest of float64 is 0.
    if top.dtype == tl.float32:
        tiny = tl.full((), 8388608, tl.int32).to(tl.float32, bitcast=True)
    else:
        tiny = tl.full((), 4503599627370496, tl.int64).to(tl.float64, bitcast=True)
    return tl.where((top > tiny) | (top != top), top, tiny)


@triton.jit
def _matrix(weight, z, Z: tl.constexpr):
    row, col = tl.arange(0, Z)[:, None], tl.arange(0, Z)[None, :]
    return tl.load(weight + row * z + col, mask=(row < z) & (col < z), other=0.0)


@triton.jit
def multiply_chunks(
    weight, emission, ends, matrix, exponent, num_positions, num, z, size, num_chunks,
    Z: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The product of the steps of each chunk: rows with exponents of their own, so that none is lost to another."""
    b, k = tl.program_id(0), tl.program_id(1).to(tl.int64)  # sequences may be more than a grid's second axis has
    row, col = tl.arange(0, Z)[:, None], tl.arange(0, Z)[None, :]
    at = tl.arange(0, Z)
    step = _matrix(weight, z, Z)
    found = ((row == col) & (row < z)).to(step.dtype)
    total = tl.zeros((Z,), tl.int32)
    stop = tl.minimum(tl.minimum((k + 1) * size, num_positions), tl.load(ends + b) + 1)
    for t in range(tl.maximum(k * size, 1), stop):
        e = tl.load(emission + (t * num + b) * z + at, mask=at < z, other=0.0)
        if DOT:
            found = tl.dot(found, step, input_precision="ieee")
        else:
            found = tl.sum(found[:, :, None] * step[None, :, :], 1)
        found = found * e[None, :]
        grown = _exponent(tl.max(found, 1))
        found = found * _power(-grown, found)[:, None]
        total += grown
    where = (k * num + b) * z
    tl.store(matrix + (where + row) * z + col, found, mask=(row < z) & (col < z))
    tl.store(exponent + where + at, total, mask=at < z)


@triton.jit
def start_chunks(start, emission, matrix, exponent, starts, num, z, num_chunks, Z: tl.constexpr):
    """The message before each chunk but the first, largest entry 1."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, Z)
    x = tl.load(start + b * z + at, mask=at < z, other=0.0) * tl.load(emission + b * z + at, mask=at < z, other=0.0)
    x = x / _divisor(_largest(x))
    for k in range(num_chunks - 1):
        where = (k * num + b) * z
        grown = tl.load(exponent + where + at, mask=at < z, other=0)
        top = tl.max(tl.where(x > 0, grown + _exponent(x), -(2**30)), 0)
        x = x * _power(grown - top, x)
        x = tl.sum(x[:, None] * _matrix(matrix + where * z, z, Z), 0)
        x = x / _divisor(_largest(x))
        tl.store(starts + (((k + 1) * num + b) * z + at), x, mask=at < z)


@triton.jit
def end_chunks(final, matrix, exponent, stops, num, z, num_chunks, Z: tl.constexpr):
    """The future at the last position of each chunk but the last, largest entry 1."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, Z)
    x = tl.load(final + b * z + at, mask=at < z, other=0.0)
    for i in range(num_chunks - 1):
        k = num_chunks - 1 - i
        where = (k * num + b) * z
        grown = tl.load(exponent + where + at, mask=at < z, other=0)
        x = tl.sum(x[None, :] * _matrix(matrix + where * z, z, Z), 1)
        top = tl.max(tl.where(x > 0, grown + _exponent(x), -(2**30)), 0)
        x = x * _power(grown - top, x)
        x = x / _divisor(_largest(x))
        tl.store(stops + ((k - 1) * num + b) * z + at, x, mask=at < z)


@triton.jit
def run_forward(
    weight, start, starts, emission, filtered, norm, num_positions, num, z, size, Z: tl.constexpr
):  # fmt: skip
    """The filtered messages of a chunk, and the divisor of each."""
    b, k = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = tl.arange(0, Z)
    step = _matrix(weight, z, Z)
    first = tl.load(start + b * z + at, mask=at < z, other=0.0)
    x = tl.load(starts + (k * num + b) * z + at, mask=(at < z) & (k > 0), other=0.0)
    for t in range(k * size, tl.minimum((k + 1) * size, num_positions)):
        x = tl.where(t == 0, first, tl.sum(x[:, None] * step, 0))
        x = x * tl.load(emission + (t * num + b) * z + at, mask=at < z, other=0.0)
        top = _largest(x)
        x = x / _divisor(top)
        tl.store(filtered + (t * num + b) * z + at, x, mask=at < z)
        tl.store(norm + t * num + b, top)


@triton.jit
def run_backward(
    weight, final, stops, emission, ends, future, target, norm, num_positions, num, z, size, num_chunks,
    Z: tl.constexpr,
):  # fmt: skip
    """The future of the positions of a chunk, its products with the emissions, and the divisor of each."""
    b, k = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = tl.arange(0, Z)
    step = _matrix(weight, z, Z)
    last = tl.load(final + b * z + at, mask=at < z, other=0.0)
    x = tl.load(stops + (k * num + b) * z + at, mask=(at < z) & (k < num_chunks - 1), other=0.0)
    end = tl.load(ends + b)
    stop = tl.minimum((k + 1) * size, num_positions)
    for i in range(stop - k * size):
        t = stop - 1 - i
        top = tl.full((), 1.0, x.dtype)
        if i > 0:
            x = tl.sum(step * x[None, :], 1)
            top = _largest(x)
            x = x / _divisor(top)
        if t >= end:
            x = last
            top = tl.full((), 1.0, x.dtype)
        tl.store(future + (t * num + b) * z + at, x, mask=at < z)
        tl.store(norm + t * num + b, top)
        x = x * tl.load(emission + (t * num + b) * z + at, mask=at < z, other=0.0)
        tl.store(target + (t * num + b) * z + at, x, mask=at < z)


@triton.jit
def run_noise(
    weight, noise, loss, log_obs, emission, norm, each, ends, num, z, Z: tl.constexpr
):  # fmt: skip
    """What may be missing from the last message of a sequence, in smallest normal numbers."""
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, Z)
    step = _matrix(weight, z, Z)
    x = tl.load(noise + b * z + at, mask=at < z, other=0.0)
    more = tl.load(loss + at, mask=at < z, other=0.0)
    for t in range(tl.load(ends + b) + 1):
        if t > 0:
            x = tl.sum(x[:, None] * step, 0) + more
        here = (t * num + b) * z + at
        x = x * tl.load(emission + here, mask=at < z, other=0.0) / tl.load(norm + t * num + b)
        x = x + tl.load(each + t * num + b)
        # An observation of weight zero leaves nothing behind, so nothing can be missing there.
        x = tl.where(tl.load(log_obs + here, mask=at < z, other=float("-inf")) > float("-inf"), x, 0.0)
    tl.store(noise + b * z + at, x, mask=at < z)


def filter_messages(weight: Tensor, start: Tensor, emission: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The filtered messages "t b z" and their divisors "t b"; weight "z y", start "b z", emission "t b z"."""

    def run(start: Tensor, emission: Tensor, lengths: Tensor, num_chunks: int) -> tuple[Tensor, Tensor]:
        return _filter(weight.contiguous(), start.contiguous(), emission, lengths - 1, num_chunks)

    found = run(start, emission, lengths, _chunks(emission))
    return _again(found, lambda b: run(start[b], emission[:, b].contiguous(), lengths[b], 1))


def future_messages(weight: Tensor, emission: Tensor, final: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The future messages and their products with the emissions "t b z", and the divisors "t b"."""

    def run(emission: Tensor, final: Tensor, lengths: Tensor, num_chunks: int) -> tuple[Tensor, Tensor, Tensor]:
        return _ahead(weight.contiguous(), emission, final.contiguous(), lengths - 1, num_chunks)

    found = run(emission, final, lengths, _chunks(emission))
    return _again(found, lambda b: run(emission[:, b].contiguous(), final[b], lengths[b], 1))


def last_noise(
    weight: Tensor, noise: Tensor, loss: Tensor, log_obs: Tensor, emission: Tensor, norm: Tensor, each: Tensor,
    lengths: Tensor,
) -> Tensor:  # "b z"  # fmt: skip
    """The bound on what is missing from each sequence's last message; log_obs "t b z"."""
    num, z = noise.shape
    noise = noise.clone(memory_format=torch.contiguous_format)
    run_noise[(num,)](
        weight.contiguous(), noise, loss.contiguous(), log_obs.contiguous(), emission.contiguous(), norm.contiguous(),
        each.contiguous(), lengths - 1, num, z, **_shape(z),
    )  # fmt: skip
    return noise


def _chunks(emission: Tensor) -> int:
    """Into how many chunks the sequences are cut: borders are passed one by one, steps of all chunks together."""
    num_positions, num, z = emission.shape
    if num_positions < SHORT or z > CHUNKED[emission.dtype]:
        return 1
    return max(1, min(int((STEPS_PER_CHUNK * num_positions) ** 0.5), MOST // num))


def _filter(weight: Tensor, start: Tensor, emission: Tensor, ends: Tensor, num_chunks: int) -> tuple[Tensor, Tensor]:
    num_positions, num, z = emission.shape
    size = -(-num_positions // num_chunks)
    num_chunks = -(-num_positions // size)
    filtered, norm = torch.empty_like(emission), emission.new_empty(num_positions, num)
    starts = start
    if num_chunks > 1:
        matrix, exponent = _matrices(weight, emission, ends, size, num_chunks)
        starts = emission.new_empty(num_chunks, num, z)
        start_chunks[(num,)](start, emission, matrix, exponent, starts, num, z, num_chunks, **_shape(z))
    run_forward[num, num_chunks](
        weight, start, starts, emission, filtered, norm, num_positions, num, z, size, **_shape(z)
    )
    if num_chunks > 1:
        borders = torch.arange(1, num_chunks, device=ends.device) * size  # the first position of each chunk
        same = _agree(filtered[borders - 1], starts[1:], size) | (borders[:, None] > ends)
        norm = norm.masked_fill(~same.all(0), float("nan"))
    return filtered, norm


def _ahead(
    weight: Tensor, emission: Tensor, final: Tensor, ends: Tensor, num_chunks: int
) -> tuple[Tensor, Tensor, Tensor]:
    num_positions, num, z = emission.shape
    size = -(-num_positions // num_chunks)
    num_chunks = -(-num_positions // size)
    future, target = torch.empty_like(emission), torch.empty_like(emission)
    norm = emission.new_empty(num_positions, num)
    stops = final
    if num_chunks > 1:
        matrix, exponent = _matrices(weight, emission, ends, size, num_chunks)
        stops = emission.new_empty(num_chunks, num, z)
        end_chunks[(num,)](final, matrix, exponent, stops, num, z, num_chunks, **_shape(z))
    run_backward[num, num_chunks](
        weight, final, stops, emission, ends, future, target, norm, num_positions, num, z, size, num_chunks,
        **_shape(z),
    )  # fmt: skip
    if num_chunks > 1:
        borders = torch.arange(1, num_chunks, device=ends.device) * size
        x = (target[borders].unsqueeze(-2) * weight).sum(-1)
        top = x.amax(-1)
        inside = borders[:, None] <= ends
        tiny = torch.finfo(x.dtype).tiny
        same = _agree(x / top.clamp(min=tiny).unsqueeze(-1), future[borders - 1], size) | ~inside
        norm[borders - 1] = torch.where(inside, top, 1.0)
        norm = norm.masked_fill(~same.all(0), float("nan"))
    return future, target, norm


def _matrices(weight: Tensor, emission: Tensor, ends: Tensor, size: int, num_chunks: int) -> tuple[Tensor, Tensor]:
    num_positions, num, z = emission.shape
    matrix = emission.new_empty(num_chunks, num, z, z)
    exponent = torch.empty(num_chunks, num, z, dtype=torch.int32, device=emission.device)
    shape = _shape(max(z, 16))
    multiply_chunks[num, num_chunks](
        weight, emission, ends, matrix, exponent, num_positions, num, z, size, num_chunks,
        DOT=emission.dtype == torch.float32, **shape,
    )  # fmt: skip
    return matrix, exponent


def _agree(x: Tensor, y: Tensor, size: int) -> Tensor:  # "k b z" -> "k b"
    """Whether two messages differ by the rounding of two ways over a chunk, at most, in every entry."""
    steps = (size + 2) * (x.shape[-1] + 4) * torch.finfo(x.dtype).eps
    return ((x - y).abs() <= steps * torch.maximum(x, y)).all(-1)


def _again(found: tuple[Tensor, ...], run: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Run the sequences whose chunks do not meet in one piece; their divisors, the last of `found`, are NaN."""
    apart = found[-1].isnan().all(0)
    if may_look(apart) and len(index := apart.nonzero()[:, 0]):
        for x, part in zip(found, run(index), strict=True):
            x[:, index] = part
    return found


def _shape(z: int) -> dict[str, int]:
    size = max(2, triton.next_power_of_2(z))
    return {"Z": size, "num_warps": max(1, min(8, size * size // 1024))}
