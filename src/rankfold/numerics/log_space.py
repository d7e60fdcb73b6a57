"""Sums in log space whose gradient is right when every term is zero.

`torch.logsumexp` returns -inf there with NaN gradients; here the gradient is 0, its value for every
term that has no weight. Read next: `kernels/log_matmul`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest


def log_sum(log_x: Tensor) -> Tensor:  # "... k" -> "..."
    """log sum_k exp(log_x), any range, -inf where every term is -inf."""
    top = largest(log_x)
    total = torch.exp(log_x - top).sum(-1)
    nothing = total == 0
    return torch.where(nothing, float("-inf"), torch.log(torch.where(nothing, 1.0, total))) + top[..., 0]


def x_log_x(log_x: Tensor) -> Tensor:
    """x log x from log x; 0 where x is 0, with gradient 0 there."""
    nothing = log_x == float("-inf")
    finite = torch.where(nothing, 0.0, log_x)
    return torch.where(nothing, 0.0, torch.exp(finite) * finite)
