"""Logarithms and sums in log space that stay finite in the backward pass where there is no weight.

`torch.logsumexp` of terms that are all -inf has NaN gradients; here the gradient is 0, its value for
every term that has no weight.
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


def log_weights(x: Tensor) -> Tensor:
    """log x for weights; -inf where x is 0, with gradient 0 there (the true one is infinite); NaN stays NaN."""
    return torch.where(x == 0, float("-inf"), torch.log(torch.where(x == 0, 1.0, x)))


def x_log_x(x: Tensor) -> Tensor:
    """x log x; 0 where x is 0, with gradient 0 there (the true one is infinite)."""
    return x * torch.log(torch.where(x == 0, 1.0, x))


def pick(logits: Tensor, generator: torch.Generator | None) -> Tensor:  # "... z" -> "..."
    """One draw from each distribution, given as unnormalised logarithms."""
    top = logits.amax(-1, keepdim=True)
    # Beyond a length, or in an impossible sequence, nothing may have weight; what is drawn there is not used.
    weights = torch.where(top > float("-inf"), torch.exp(logits - top), 1.0)
    return torch.multinomial(weights.flatten(0, -2), 1, generator=generator).reshape(logits.shape[:-1])


def pick_at(logits: Tensor, uniform: Tensor) -> Tensor:  # "... z", "..." -> "..."
    """The same by a number in [0, 1) for each: the first whose weight, added to those before, is above its share."""
    top = logits.amax(-1, keepdim=True)
    total = torch.where(top > float("-inf"), torch.exp(logits - top), 1.0).cumsum(-1)
    return (total <= uniform.unsqueeze(-1) * total[..., -1:]).sum(-1)
