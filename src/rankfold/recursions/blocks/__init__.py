"""Chains of blocks: log Z over all state paths when every position has only k states of its own.

Forward-backward in log arithmetic, so any range; messages are normalised at every step and their scale adds
up in float64. `log_z` is one autograd function. Read next: `recursions/blocks/paths.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfold.errors import expect_plain
from rankfold.numerics.function import Function
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import largest
from rankfold.recursions.blocks.paths import best_path, draw
from rankfold.recursions.blocks.potentials import BlockChain, BlockPotentials, validate
from rankfold.recursions.blocks.steps import filtered, fused, future, total

__all__ = ["BlockPotentials", "advance", "best_path", "draw", "log_z", "validate"]


def log_z(p: BlockPotentials | BlockChain) -> Tensor:  # "b"   float64
    """Log-probability of each observed sequence, summed over all state paths inside the blocks.

        log Z = log  sum_{i_1..i_T}  exp(initial[i_1] + obs_1[i_1] + sum_{t>1} transition_t[i_{t-1}, i_t] + obs_t[i_t])

    Cost: one exponential for every entry of log_transition, b t k k, and as many in the backward pass; on a GPU three
    launches for all positions (`kernels/block_scan`), elsewhere seven calls a step. Memory: messages O(b t k),
    gradient of log_transition.
    Differentiable in log_initial, log_transition and log_obs, twice; d log Z / d log_obs is the posterior inside
    the block. An impossible sequence has -inf and zero gradients.
    Source: Chiu and Rush 2020, where each word is emitted by the states of its own block alone.
    """
    c = validate(p)
    out: Tensor = _LogZ.apply(c.inside(), c.ragged, *c.tensors())
    return out


def advance(p: BlockPotentials) -> tuple[Tensor, Tensor]:  # "b k", "b"
    """The log-distribution of the state after the last position, and log Z (float64), detached.

        log_filtered[i] = log p(i_T = i | x_1..T)

    Inside the block of the last position. Impossible sequences have -inf.
    """
    c = validate(p).detach()
    with torch.no_grad():
        messages, log_steps = filtered(*c.tensors())
        log_total = total(log_steps, c.inside())
        last = messages[c.lengths - 1, torch.arange(len(c.lengths), device=messages.device)]
        return torch.where(log_total[:, None] == float("-inf"), float("-inf"), last), log_total


class _LogZ(Function):
    """log Z with forward-backward as its derivative."""

    @staticmethod
    def forward(ctx: Any, inside: Tensor, ragged: bool, *tensors: Tensor) -> Tensor:
        messages, log_steps = filtered(*tensors)
        out = total(log_steps, inside)
        ctx.ragged = ragged
        ctx.save_for_backward(inside, messages, out, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        expect_plain(weight, name="the gradient of log_z")
        inside, messages, out, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow. Messages
            # stored in ctx would lose the second derivative without a word.
            # Views, because inputs may be made of one another: only the last step to each is asked for.
            tensors = [x.view_as(x) for x in tensors]
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            retraced = _plain(inside, *tensors)
            found = iter(torch.autograd.grad(retraced, asked, weight, create_graph=True, materialize_grads=True))
            return (None, None, *(next(found) if want else None for want in wanted))
        _, log_transition, log_obs = tensors
        here = inside & (out > float("-inf"))[:, None]
        ahead = future(log_transition, log_obs, inside if ctx.ragged else None)
        weight = weight.to(log_obs.dtype)
        states = _states(messages, ahead, here, weight)
        moves = _moves(log_transition, log_obs, messages, ahead, here, weight) if wanted[1] else None
        return None, None, states[:, 0].clone(), moves, states


def _states(messages: Tensor, ahead: Tensor, here: Tensor, weight: Tensor) -> Tensor:  # "t b k" -> "b t k"
    """weight times the posterior of every state; 0 where a sequence is not `here`."""
    posterior = torch.softmax((messages + ahead).transpose(0, 1), -1)
    return torch.where(here.unsqueeze(-1), posterior * weight[:, None, None], 0.0)


def _moves(
    log_transition: Tensor, log_obs: Tensor, messages: Tensor, ahead: Tensor, here: Tensor, weight: Tensor
) -> Tensor:  # "b s k k"
    """weight times the posterior of every pair of neighbours, all positions in one go, each summing to 1 by itself."""
    if fused(log_obs):
        from rankfold.kernels.block_scan import triton as kernel

        return kernel.moves(log_transition, log_obs, messages, ahead, torch.where(here, weight[:, None], 0.0)[:, 1:])
    joint = log_transition + messages[:-1].transpose(0, 1).unsqueeze(-1)
    joint += (log_obs + ahead.transpose(0, 1))[:, 1:].unsqueeze(-2)
    pairs = torch.softmax(joint.flatten(-2), -1).reshape(joint.shape)
    return pairs.mul_(weight[:, None, None, None]).masked_fill_(~here[:, 1:, None, None], 0.0)


def _plain(inside: Tensor, log_initial: Tensor, log_transition: Tensor, log_obs: Tensor) -> Tensor:  # "b"   float64
    """log Z as a loop that autograd can follow, any number of times."""
    obs = torch.where(inside.unsqueeze(-1), log_obs, 0.0)
    moves = torch.where(inside[:, 1:, None, None], log_transition, 0.0)
    message = log_initial + obs[:, 0]
    log_scale = torch.zeros(len(obs), dtype=torch.float64, device=obs.device)
    for t in range(1, obs.shape[1]):
        top = largest(message)
        log_scale = log_scale + top[:, 0].double()
        message = message - top
        moved = log_sum((message.unsqueeze(-1) + moves[:, t - 1]).mT) + obs[:, t]
        message = torch.where(inside[:, t, None], moved, message)
    return log_sum(message).double() + log_scale
