"""The loops over positions of a chain of blocks, forward and backward, in log arithmetic.

Where a Triton kernel serves, it takes all positions at once. Elsewhere a step is a handful of calls on tensors of b k k
entries, so calls are what it costs: sums go through `log_softmax`, one fused call where a logsumexp is nine. No call
waits for the device. Read next: `recursions/blocks`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.block_scan import LARGEST
from rankfold.kernels.dispatch import triton_serves


def filtered(log_initial: Tensor, log_transition: Tensor, log_obs: Tensor) -> tuple[Tensor, Tensor]:  # "t b k", "t b"
    """log p(i_t | x_1..t) and, in float64, log p(x_t | x_1..t-1), at every position.

    A sequence without any path has -inf at the first position it cannot reach and NaN after it; beyond a length
    both hold whatever lies there. Not differentiable.
    """
    if fused(log_obs):
        from rankfold.kernels.block_scan import triton as kernel

        return kernel.filtered(log_initial, log_transition, log_obs)
    zero = log_obs.new_zeros(())
    joint = log_initial + log_obs[:, 0]
    joints, messages = [joint], [torch.log_softmax(joint, -1)]
    for t in range(1, log_obs.shape[1]):
        joint = _log_sum(messages[-1].unsqueeze(-1) + log_transition[:, t - 1], 1, zero) + log_obs[:, t]
        joints.append(joint)
        messages.append(torch.log_softmax(joint, -1))
    stacked = torch.stack(messages)
    top = torch.stack(joints).amax(-1).double()
    return stacked, torch.where(top == float("-inf"), top, top - stacked.amax(-1).double())


def total(log_steps: Tensor, inside: Tensor) -> Tensor:  # "t b", "b t" -> "b"
    """log Z, the sum of log p(x_t | x_1..t-1) up to each length; -inf where there is a step of -inf."""
    steps = torch.where(inside.mT, log_steps, 0.0)
    return torch.where((steps == float("-inf")).any(0), float("-inf"), steps.sum(0))


def future(log_transition: Tensor, log_obs: Tensor, inside: Tensor | None) -> Tensor:  # "t b k"
    """log p(x_t+1..T | i_t) up to a constant of each position; 0 at the last position and beyond.

    `inside` "b t" is None where all lengths are equal. NaN in an impossible sequence.
    """
    if fused(log_obs):
        from rankfold.kernels.block_scan import triton as kernel

        full = log_obs.shape[1]
        lengths = torch.full_like(log_obs[:, 0, 0], full).long() if inside is None else inside.sum(1)
        return kernel.future(log_transition, log_obs, lengths)
    zero = log_obs.new_zeros(())
    message = torch.zeros_like(log_obs[:, 0])
    messages = [message]
    for t in range(log_obs.shape[1] - 1, 0, -1):
        ahead = log_transition[:, t - 1] + (log_obs[:, t] + message).unsqueeze(-2)
        message = torch.log_softmax(_log_sum(ahead, 2, zero), -1)
        if inside is not None:
            message = torch.where(inside[:, t, None], message, zero)
        messages.append(message)
    return torch.stack(messages[::-1])


def fused(log_obs: Tensor) -> bool:
    """Whether one kernel takes all positions: on a GPU, for blocks that fit a program of it."""
    return triton_serves(log_obs) and log_obs.dtype == torch.float32 and log_obs.shape[2] <= LARGEST


def _log_sum(log_x: Tensor, dim: int, zero: Tensor) -> Tensor:
    """log sum exp over one axis, -inf where every term is -inf; not differentiable.

    The largest entry of log_softmax is top - logsumexp, between -log k and 0 and exact there. Where nothing has
    weight it is NaN, which fmin passes over; a NaN among the terms comes back with `top`.
    """
    return log_x.amax(dim) - torch.fmin(torch.log_softmax(log_x, dim).amax(dim), zero)
