"""`linear_softmax`: a product whose rows become distributions where they lie, and a gradient that needs only those.

Autograd's own chain of product, sum, dropout and softmax keeps the logits besides the result and passes over the table
eight times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.function import Function
from rankfold.numerics.precision import Products, Rounded, current_precision, products_in

# Weights "m" of a mixture of rows and its gradient "n", by the backward pass that left them.
Mixtures = dict[int, list[tuple[Tensor, Tensor]]]


class SoftmaxTable(NamedTuple):
    """share[m, n] = softmax_n(query[m] . key[n] + bias[n]), and the log of each row's normaliser."""

    share: Tensor  # "m n"
    log_total: Tensor  # "m"
    mixtures: Mixtures | None = None  # whose gradients the table's own pass will take along; None: it has none
    rounded: Rounded | None = None  # the table in bfloat16, where it was made for a recursion in "bf16"

    def mix(self, weights: Tensor) -> Tensor:  # "m" -> "n"
        """weights share: a mixture of the rows. Its gradient costs no pass over the table of its own."""
        if self.mixtures is None:
            return weights @ self.share
        out: Tensor = _Mix.apply(weights, self.share, self.mixtures)
        return out


def linear_softmax(
    query: Tensor,
    key: Tensor,
    bias: Tensor | None = None,
    *,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> SoftmaxTable:  # "m d", "n d", "n" -> "m n", "m"
    """Each query's distribution over the keys, and the log of its normaliser.

        share[m, n]  = softmax_n(query[m] . key[n] + bias[n])
        log_total[m] = log sum_n exp(query[m] . key[n] + bias[n])

    With a generator, single entries leave the softmax with probability `dropout`; a row that would lose all of them is
    left whole. Cost: m n d, twice that for the gradients. Memory: the table, and in the backward pass its gradient and
    that of the logits, on a GPU in pieces; never the logits. Products in the mode that is set when it is called; on a
    GPU in "tf32" or "mixed" the table itself is rounded to the ten fraction bits of TF32, to nearest. Twice
    differentiable.
    """
    if generator is None:
        dropout = 0.0
    mixtures: Mixtures = {}
    halves: list[Tensor] = []  # no result: autograd would make it a gradient of zeros, as large as itself
    precision = current_precision(query.device)
    share, log_total = _LinearSoftmax.apply(query, key, bias, dropout, generator, precision, mixtures, halves)
    return SoftmaxTable(share, log_total, mixtures, Rounded(share, halves[0]) if halves else None)


class _LinearSoftmax(Function):
    """The table, with itself as all that its derivative needs."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        bias: Tensor | None,
        dropout: float,
        generator: torch.Generator | None,
        precision: Products,
        mixtures: Mixtures,
        halves: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        ctx.precision, ctx.mixtures = precision, mixtures
        ctx.fused = query.dtype == torch.float32 and triton_serves(query, key)
        with products_in(precision, query.device):
            if ctx.fused:
                from rankfold.kernels.linear_softmax.triton import shares

                table, log_total, half = shares(query, key, bias, dropout, generator, precision)
                halves += [] if half is None else [half]
            else:
                table = torch.mm(query, key.T)
                log_total = _normalise(table, bias, dropout, generator)
        ctx.save_for_backward(query, key, bias, table)
        return table, log_total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, bias, table = ctx.saved_tensors
        wanted, mixtures = ctx.needs_input_grad[:3], ctx.mixtures.pop(_this_pass(), [])
        ctx.mixtures.clear()  # of passes that did not reach the table
        with products_in(ctx.precision, query.device):
            if torch.is_grad_enabled():
                # The gradient will be differentiated: give autograd ordinary operations to follow.
                found = _retraced((query, key, bias), table, wanted, grads)
            elif ctx.fused:
                from rankfold.kernels.linear_softmax.triton import gradients

                found = gradients(query, key, table, grads[0], grads[1], mixtures, wanted, ctx.precision)
            else:
                grad = grads[0]
                for weights, own in mixtures:
                    grad = torch.addr(grad, weights, own)
                level = (grad * table).sum(1, keepdim=True)
                if not may_look(level) or not bool(level.isfinite().all()):
                    # A share of 0 is used by nobody, however large the gradient of one that were not 0.
                    grad = grad.masked_fill((table == 0) & grad.isinf(), 0.0)
                    level = (grad * table).sum(1, keepdim=True)
                logits = grad - level
                logits += grads[1][:, None]
                logits *= table
                found = (
                    torch.mm(logits, key) if wanted[0] else None,
                    torch.mm(logits.T, query) if wanted[1] else None,
                    logits.sum(0) if wanted[2] else None,
                )
        return (*found, None, None, None, None, None)


class _Mix(Function):
    """weights share, whose gradient in `share` is left with the table."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, share: Tensor, mixtures: Mixtures) -> Tensor:
        ctx.mixtures = mixtures
        ctx.save_for_backward(weights, share)
        return weights @ share

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        weights, share = ctx.saved_tensors
        if torch.is_grad_enabled():
            return share @ grad, torch.outer(weights, grad), None
        if ctx.needs_input_grad[1]:
            ctx.mixtures.setdefault(_this_pass(), []).append((weights, grad))
        return (share @ grad if ctx.needs_input_grad[0] else None), None, None


def _this_pass() -> int:
    """The number of the backward pass that is running."""
    number: int = torch._C._current_graph_task_id()
    return number


def _normalise(
    table: Tensor, bias: Tensor | None, dropout: float, generator: torch.Generator | None
) -> Tensor:  # "m n" -> "m"
    """Turn logits into distributions where they lie; the log-normaliser of each row."""
    if bias is not None:
        table += bias
    if dropout and generator is not None:
        gone = torch.rand(table.shape, generator=generator, device=table.device, dtype=torch.float32) < dropout
        gone &= ~gone.all(1, keepdim=True)
        table.masked_fill_(gone, float("-inf"))
    top = table.amax(1, keepdim=True)
    top = torch.where(top == float("-inf"), 0.0, top)
    total = table.sub_(top).exp_().sum(1, keepdim=True)
    table /= total
    return (total.log() + top)[:, 0]


def _retraced(
    inputs: tuple[Tensor, Tensor, Tensor | None], table: Tensor, wanted: tuple[bool, ...], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients as operations that autograd can follow again. An entry of 0 stays out, dropped or underflown."""
    # Views, because inputs may be made of one another: only the last step to each is asked for.
    query, key, bias = (None if x is None else x.view_as(x) for x in inputs)
    assert query is not None
    assert key is not None
    logits = query @ key.T
    logits = (logits if bias is None else logits + bias).masked_fill(table == 0, float("-inf"))
    asked = [x for x, want in zip((query, key, bias), wanted, strict=False) if want and x is not None]
    results = (torch.softmax(logits, 1), torch.logsumexp(logits, 1))
    found = iter(torch.autograd.grad(results, asked, grads, create_graph=True))
    return tuple(next(found) if want else None for want in wanted[:3])
