"""Reference of `log_matmul`: blocks of the broadcast sum, recomputed in the backward pass.

Read next: `operators/dense.py`, which calls it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rankfold.kernels.blocks import blocks
from rankfold.numerics.function import Function


def log_matmul(log_x: Tensor, log_w: Tensor) -> Tensor:  # "... n z", "... z y" -> "... n y"
    """log(exp(log_x) @ exp(log_w)), exact at any range; leading axes must be equal.

        out[n, y] = log sum_z exp(log_x[n, z] + log_w[z, y])

    Cost: one exponential for every (n, z, y); temporaries of at most 2**22 entries (or one row of z).
    Twice differentiable; the gradient of a term without weight is 0. Not a tensor-core product: prefer
    `Scaled` arithmetic where the range allows it.
    """
    out: Tensor = _LogMatmul.apply(log_x, log_w)
    return out


def _block(log_x: Tensor, log_w: Tensor, at: tuple[slice, slice]) -> Tensor:  # -> "... n y z"
    rows, targets = at
    return log_x[..., rows, None, :] + log_w.mT[..., None, targets, :]


def _sizes(log_x: Tensor, log_w: Tensor) -> tuple[int, int, int]:
    lead = math.prod(log_x.shape[:-2])
    return log_x.shape[-2], log_x.shape[-1] * max(1, lead), log_w.shape[-1]


class _LogMatmul(Function):
    @staticmethod
    def forward(ctx: Any, log_x: Tensor, log_w: Tensor) -> Tensor:
        out = log_x.new_empty((*log_x.shape[:-1], log_w.shape[-1]))
        for at in blocks(*_sizes(log_x, log_w)):
            out[..., at[0], at[1]] = torch.logsumexp(_block(log_x, log_w, at), -1)
        ctx.save_for_backward(log_x, log_w, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        log_x, log_w, out = ctx.saved_tensors
        # Only saved inputs and the saved output enter below, so a second derivative finds its way.
        finite = torch.where(out > float("-inf"), out, 0.0)
        grad_x, grad_w = torch.zeros_like(log_x), torch.zeros_like(log_w)
        for rows, targets in blocks(*_sizes(log_x, log_w)):
            share = torch.exp(_block(log_x, log_w, (rows, targets)) - finite[..., rows, targets].unsqueeze(-1))
            flow = share * grad[..., rows, targets].unsqueeze(-1)  # "... n y z"
            grad_x = _add(grad_x, flow.sum(-2), (..., rows, slice(None)))
            grad_w = _add(grad_w, flow.sum(-3).mT, (..., slice(None), targets))
        return grad_x, grad_w


def _add(total: Tensor, part: Tensor, at: tuple[Any, ...]) -> Tensor:
    """`total` with `part` added at an index: in place, or as a new tensor where autograd is watching."""
    if not torch.is_grad_enabled():
        total[at] += part
        return total
    spread = torch.zeros_like(total)
    spread[at] = part
    return total + spread
