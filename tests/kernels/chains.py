"""Chains of few states for the loops and kernels that run along their positions."""

from __future__ import annotations

import torch
from torch import Tensor

import rankfold


def draw(states: int, num: int, length: int, seed: int, dtype: torch.dtype, span: float) -> rankfold.ChainPotentials:
    """A ragged batch with weights of zero, impossible observations, and logarithms `span` nats apart."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=dtype)

    def some(*shape: int) -> Tensor:
        return torch.where(rand(*shape) < 0.1, float("-inf"), -span * rand(*shape))

    weight = torch.where(rand(states, states) < 0.2, 0.0, rand(states, states))
    lengths = torch.randint(1, length + 1, (num,), generator=generator)
    log_obs = some(num, length, states)
    for b, n in enumerate(lengths.tolist()):
        log_obs[b, n:] = float("nan")
    ends = some(states), some(num, states)
    tensors = [x.requires_grad_() for x in (ends[0], weight, log_obs, ends[1])]
    return rankfold.ChainPotentials(tensors[0], rankfold.Dense(tensors[1]), tensors[2], tensors[3], lengths)
