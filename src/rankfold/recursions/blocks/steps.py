"""Forward-backward of a chain of blocks, in log arithmetic: any range, one rung.

Where a Triton kernel serves, it takes all positions at once. Elsewhere a step is a handful of calls on tensors of b k k
entries, so its time is that of the calls: sums go through `log_softmax`, one fused call where a logsumexp is nine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.block_scan import LARGEST
from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import largest
from rankfold.recursions.blocks.potentials import BlockChain
from rankfold.recursions.ladder import Backward, LastRung


class BlockRung(LastRung):
    """A batch of block chains."""

    def __init__(self, c: BlockChain) -> None:
        self.problem, self.inside = c, c.inside()
        self.messages, log_steps = filter_states(c)
        self.log_z = total(log_steps, self.inside)

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            c, by = self.problem, weight.to(self.problem.log_obs.dtype)
            here = self.inside & (self.log_z > float("-inf"))[:, None]
            ahead = future(c.log_transition, c.log_obs, self.inside if c.ragged else None)
            states = _states(self.messages, ahead, here, by)
            pairs = (
                [_transition_posteriors(c.log_transition, c.log_obs, self.messages, ahead, here, by)]
                if of_factors
                else []
            )
            return [states[:, 0].clone(), states, *pairs]

        return Backward(None, gradients)

    def retrace(self, c: BlockChain, index: Tensor | None) -> Tensor:
        return plain(c)


def filter_states(c: BlockChain) -> tuple[Tensor, Tensor]:  # "t b k", "t b"
    """log p(i_t | x_1..t) and, in float64, log p(x_t | x_1..t-1), at every position.

    A sequence without any path has -inf at the first position it cannot reach and NaN after it; beyond a length
    both hold whatever lies there. Not differentiable.
    """
    log_initial, log_transition, log_obs = c.log_initial, c.log_transition, c.log_obs
    if kernel_serves(log_obs):
        from rankfold.kernels.block_scan import triton as kernel

        return kernel.filter_states(log_initial, log_transition, log_obs)
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
    if kernel_serves(log_obs):
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


def kernel_serves(log_obs: Tensor) -> bool:
    """Whether one kernel takes all positions: on a GPU, for blocks that fit a program of it."""
    return triton_serves(log_obs) and log_obs.dtype == torch.float32 and log_obs.shape[2] <= LARGEST


def _log_sum(log_x: Tensor, dim: int, zero: Tensor) -> Tensor:
    """log sum exp over one axis, -inf where every term is -inf; not differentiable.

    The largest entry of log_softmax is top - logsumexp, between -log k and 0 and exact there. Where nothing has
    weight it is NaN, which fmin passes over; a NaN among the terms comes back with `top`.
    """
    return log_x.amax(dim) - torch.fmin(torch.log_softmax(log_x, dim).amax(dim), zero)


def _states(messages: Tensor, ahead: Tensor, here: Tensor, weight: Tensor) -> Tensor:  # "t b k" -> "b t k"
    """weight times the posterior of every state; 0 where a sequence is not `here`."""
    posterior = torch.softmax((messages + ahead).transpose(0, 1), -1)
    return torch.where(here.unsqueeze(-1), posterior * weight[:, None, None], 0.0)


def _transition_posteriors(
    log_transition: Tensor, log_obs: Tensor, messages: Tensor, ahead: Tensor, here: Tensor, weight: Tensor
) -> Tensor:  # "b s k k"
    """weight times the posterior of every pair of neighbours, all positions in one go, each summing to 1 by itself."""
    if kernel_serves(log_obs):
        from rankfold.kernels.block_scan import triton as kernel

        return kernel.transition_posteriors(
            log_transition, log_obs, messages, ahead, torch.where(here, weight[:, None], 0.0)[:, 1:]
        )
    joint = log_transition + messages[:-1].transpose(0, 1).unsqueeze(-1)
    joint += (log_obs + ahead.transpose(0, 1))[:, 1:].unsqueeze(-2)
    pairs = torch.softmax(joint.flatten(-2), -1).reshape(joint.shape)
    return pairs.mul_(weight[:, None, None, None]).masked_fill_(~here[:, 1:, None, None], 0.0)


def plain(c: BlockChain) -> Tensor:  # "b"   float64
    """log Z as a loop that autograd can follow, any number of times."""
    inside = c.inside()
    obs = torch.where(inside.unsqueeze(-1), c.log_obs, 0.0)
    transition = torch.where(inside[:, 1:, None, None], c.log_transition, 0.0)
    message = c.log_initial + obs[:, 0]
    log_scale = torch.zeros(len(obs), dtype=torch.float64, device=obs.device)
    for t in range(1, obs.shape[1]):
        top = largest(message)
        log_scale = log_scale + top[:, 0].double()
        message = message - top
        moved = log_sum((message.unsqueeze(-1) + transition[:, t - 1]).mT) + obs[:, t]
        message = torch.where(inside[:, t, None], moved, message)
    return log_sum(message).double() + log_scale
