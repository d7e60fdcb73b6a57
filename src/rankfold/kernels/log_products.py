"""Matrix products in log arithmetic, summed or maximised: blocks of the broadcast sum, at any range."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rankfold.numerics.function import Function

# Largest temporary, in entries: 2**22 float64 is 32 MiB, the last-level cache of a server CPU.
BLOCK = 2**22


def blocks(num_rows: int, num_sources: int, num_targets: int) -> list[tuple[slice, slice]]:
    """Slices of (rows, targets) whose broadcast over the sources has at most BLOCK entries."""
    cells = max(1, BLOCK // max(1, num_sources))
    height = max(1, min(num_rows, cells))
    width = max(1, min(num_targets, cells // height))
    return [
        (slice(i, min(i + height, num_rows)), slice(j, min(j + width, num_targets)))
        for i in range(0, num_rows, height)
        for j in range(0, num_targets, width)
    ]


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


@torch.no_grad()
def max_matmul(log_x: Tensor, log_w: Tensor) -> tuple[Tensor, Tensor]:  # "n z", "z y" -> "n y" twice
    """The best term of each sum and its index: max and argmax over z of log_x[n, z] + log_w[z, y].

    Ties go to the smallest index. Cost: n z y additions; temporaries of at most 2**22 entries.
    """
    best = torch.empty(
        log_x.shape[0], log_w.shape[1], dtype=torch.promote_types(log_x.dtype, log_w.dtype), device=log_x.device
    )
    where = torch.empty_like(best, dtype=torch.int64)
    by_target = log_w.mT
    for rows, targets in blocks(log_x.shape[0], log_x.shape[1], log_w.shape[1]):
        torch.max(
            log_x[rows, None, :] + by_target[None, targets, :], -1, out=(best[rows, targets], where[rows, targets])
        )
    return best, where
