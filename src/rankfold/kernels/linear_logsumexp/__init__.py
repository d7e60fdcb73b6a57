"""Reference of `linear_logsumexp`: blocks of query rows, each one product, one exponential and one sum.

The backward pass takes its softmax from a kept table where that is small, and makes it again where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.function import Function
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.precision import Products, current_precision, products_in

# Entries of a block of logits, by device type. Time of forward and backward against torch.logsumexp of the whole table,
# two cores of a server CPU, float32, z = 4096, v = 10000, d = 128: 0.87 at 2**18, 0.65 at 2**20, 0.64 at 2**21 and 0.66
# at 2**22 entries.
BLOCK = {"cpu": 2**21, "cuda": 2**26}

# Entries of a table that is kept for the backward pass whole, 32 MiB on a CPU and 1 GiB on a GPU. It saves one product
# in four and every second exponential: as above with z = 1024, v = 5000, 0.61 with it and 0.82 without; on an H200,
# z = 16384, v = 10000, d = 256 and tf32, 0.70 with it and 1.08 without (float32 0.88 and 1.27).
KEPT = {"cpu": 2**23, "cuda": 2**28}


def linear_logsumexp(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:  # "z d", "v d", "v" -> "z"
    """The log-normaliser of each query's softmax over all keys, exact at any range.

        out[z] = log sum_v exp(query[z] . key[v] + bias[v])

    Cost: z v d for the product, twice that for its gradients, and z v d once more where the table of logits is
    larger than KEPT and is made again. Memory: one block of logits of at most BLOCK entries (or one row), and
    the kept table; never z v. Twice differentiable, but the second derivative does write the table.
    A bias of -inf takes its key out of the sum; a row without any key is -inf, and its gradients are 0.

    Products are in the mode that is set when it is called (autocast in bfloat16, or tf32), in the backward pass
    too; sums are float32 at least, and so is the result under autocast. On a GPU below float32 a Triton kernel takes
    over, which keeps no logits and whose operands are float16 with a scale, as accurate as TF32.
    Nothing waits for the device: it may be captured in a CUDA graph.
    """
    if torch.is_autocast_enabled(query.device.type):  # layers before this one may have given half precision
        query, key = _single(query), _single(key)
        bias = None if bias is None else _single(bias)
    out: Tensor = _LinearLogSumExp.apply(query, key, bias, current_precision(query.device))
    return out


class _LinearLogSumExp(Function):
    """The normaliser with the softmax as its derivative."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, bias: Tensor | None, precision: Products) -> Tensor:
        ctx.precision, ctx.fused = precision, _fused(query, key, precision)
        if ctx.fused:
            from rankfold.kernels.linear_logsumexp.triton import log_normalisers
            from rankfold.kernels.rounding import to_half

            halves = to_half(query), to_half(key)
            out = log_normalisers(*halves, bias)
            ctx.save_for_backward(query, key, bias, out, *halves[0], *halves[1])
            return out
        num_rows, num_keys = len(query), len(key)
        keep = num_rows * num_keys <= KEPT.get(query.device.type, KEPT["cuda"])
        table = query.new_empty(num_rows if keep else _height(query, key), num_keys)
        shift, total = query.new_empty(num_rows), query.new_empty(num_rows)
        with products_in(precision, query.device):
            for rows in _blocks(query, key):
                share = table[rows] if keep else table[: rows.stop - rows.start]
                _logits(query[rows], key, bias, precision, share)
                top = share.amax(1)
                shift[rows] = torch.where(top.isinf(), 0.0, top)  # -inf is a row without keys, +inf stays +inf
                torch.sum(share.sub_(shift[rows, None]).exp_(), 1, out=total[rows])
        out = total.log() + shift
        ctx.save_for_backward(query, key, bias, out, *((table, total) if keep else ()))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        query, key, bias, out, *kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow.
            return _retraced((query, key, bias), wanted, grad, ctx.precision)
        if ctx.fused:
            from rankfold.kernels.linear_logsumexp.triton import gradients
            from rankfold.kernels.rounding import Half

            halves = Half(*kept[:2]), Half(*kept[2:])
            with products_in(ctx.precision, query.device):
                return (*gradients(query, key, bias, halves, out, grad, wanted), None)
        grad_query = torch.empty_like(query) if wanted[0] else None
        grad_key = torch.zeros_like(key) if wanted[1] else None
        grad_bias = torch.zeros_like(bias) if wanted[2] else None
        with products_in(ctx.precision, query.device):
            for rows, share, weight in _softmax(query, key, bias, out, kept, grad, ctx.precision):
                # Row weights go to the small side of each product, so that nothing more passes over the block.
                if grad_query is not None:
                    torch.mul(_product(share, key, ctx.precision), weight[:, None], out=grad_query[rows])
                if grad_key is not None:
                    _add_product(grad_key, share.T, query[rows] * weight[:, None], ctx.precision)
                if grad_bias is not None:
                    grad_bias.addmv_(share.T, weight)
        return grad_query, grad_key, grad_bias, None


def _fused(query: Tensor, key: Tensor, precision: Products) -> bool:
    """Whether the Triton kernel takes over: it rounds operands as TF32 does, so not in float32."""
    return precision != "float32" and query.dtype == torch.float32 and len(query) > 0 and triton_serves(query, key)


def _softmax(
    query: Tensor, key: Tensor, bias: Tensor | None, out: Tensor, kept: list[Tensor], grad: Tensor, precision: Products
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of (rows, share "z v", weight "z"): share * weight is the gradient of the block's logits."""
    if kept:
        table, total = kept
        yield slice(0, len(query)), table, torch.where(total == 0, 0.0, grad / total)
        return
    shift = torch.where(out.isinf(), 0.0, out)
    block = query.new_empty(_height(query, key), len(key))
    for rows in _blocks(query, key):
        share = block[: rows.stop - rows.start]
        _logits(query[rows], key, bias, precision, share)
        yield rows, share.sub_(shift[rows, None]).exp_(), grad[rows]


def _retraced(
    inputs: tuple[Tensor, Tensor, Tensor | None], wanted: tuple[bool, ...], grad: Tensor, precision: Products
) -> tuple[Tensor | None, ...]:
    """The gradients as operations that autograd can follow again; the table of logits is written whole."""
    # Views, because inputs may be made of one another: only the last step to each is asked for.
    query, key, bias = (None if x is None else x.view_as(x) for x in inputs)
    assert query is not None
    assert key is not None
    with products_in(precision, query.device):
        logits = query @ key.T
        out = log_sum(logits if bias is None else logits + bias)
        asked = [x for x, want in zip((query, key, bias), wanted, strict=False) if want and x is not None]
        found = iter(torch.autograd.grad(out, asked, grad, create_graph=True))
    return tuple(next(found) if want else None for want in wanted)


def _height(query: Tensor, key: Tensor) -> int:
    """How many queries make a block."""
    return max(1, min(len(query), BLOCK.get(query.device.type, BLOCK["cuda"]) // len(key)))


def _blocks(query: Tensor, key: Tensor) -> list[slice]:
    height = _height(query, key)
    return [slice(i, min(i + height, len(query))) for i in range(0, len(query), height)]


def _single(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _logits(x: Tensor, key: Tensor, bias: Tensor | None, precision: Products, out: Tensor) -> None:
    """x . key + bias, written into `out`."""
    if precision == "bf16" and x.dtype == torch.float32:
        torch.mm(x.bfloat16(), key.bfloat16().T, out_dtype=torch.float32, out=out)
        if bias is not None:
            out.add_(bias)
    elif bias is None:
        torch.mm(x, key.T, out=out)
    else:
        torch.addmm(bias, x, key.T, out=out)


def _product(x: Tensor, y: Tensor, precision: Products) -> Tensor:
    if precision == "bf16" and x.dtype == torch.float32:
        return torch.mm(x.bfloat16(), y.bfloat16(), out_dtype=torch.float32)
    return torch.mm(x, y)


def _add_product(total: Tensor, x: Tensor, y: Tensor, precision: Products) -> None:
    if precision == "bf16" and x.dtype == torch.float32:
        total.add_(_product(x, y, precision))
    else:
        total.addmm_(x, y)
