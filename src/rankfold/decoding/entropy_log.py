"""The entropy of the path posterior in log arithmetic, float64: any range, one exponential for every term.

The last resort of `entropy`. Read next: `recursions/chain/plain.py`, whose messages it takes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankfold.kernels.log_products import BLOCK, log_matmul
from rankfold.numerics.log_space import log_sum
from rankfold.operators import LowRank
from rankfold.recursions.chain import plain
from rankfold.recursions.chain.potentials import Chain


def in_logs(c: Chain, *, joint: bool) -> Tensor:  # "b"
    """H(z_1) + sum_t H(z_t+1 | z_t), of states and ranks `joint`ly or of states; 0 for impossible sequences.

    A difference of log Z and expected logarithms would lose the digits that both have in common.
    """
    filtered, total = plain.forward_in_logs(c)
    after = plain.future_in_logs(c)
    inside = (c.inside() & (total > float("-inf"))[:, None]).mT.unsqueeze(-1)
    log_joint = torch.where(inside, filtered + after, float("-inf"))  # "t b z"
    target = (c.observations() + after)[1:]
    first = _surprise(log_joint[0])
    here = torch.where(inside[1:], log_joint[:-1], float("-inf"))
    if joint and isinstance(c.transition, LowRank):
        log_left, log_right = c.transition.log_pair()
        ahead = log_matmul(filtered[:-1].flatten(0, 1), log_left).reshape(*target.shape[:2], log_left.shape[1])
        behind = log_matmul(target.flatten(0, 1), log_right).reshape(ahead.shape)
        ranks = torch.where(inside[1:], ahead + behind, float("-inf"))
        return first + _moves(here, log_left, behind) + _moves(ranks, log_right.mT, target)
    return first + _moves(here, c.transition.log_rows, target)


def _moves(log_state: Tensor, log_rows: Tensor | Callable[[Tensor], Tensor], log_target: Tensor) -> Tensor:
    """sum_t sum_z p(z) H(y | z), where p(y | z) is as weight[z, y] target[y]: "t b z", "z y", "t b y" -> "b"."""
    num_steps, num_sequences, num_states = log_state.shape
    state = _normalised(log_state).exp()
    height = max(1, BLOCK // (num_sequences * log_target.shape[-1]))
    total = log_state.new_zeros(num_sequences)
    for rows in torch.split(torch.arange(num_states, device=log_state.device), height):
        weight = log_rows[rows] if isinstance(log_rows, Tensor) else log_rows(rows)
        for t in range(num_steps):
            total = total + _recomputed(state[t][:, rows], weight, log_target[t])
    return total


def _recomputed(state: Tensor, log_weight: Tensor, log_target: Tensor) -> Tensor:  # "b z", "z y", "b y" -> "b"
    """A block's share; where autograd is watching it is computed again in the backward pass, not kept."""
    if not torch.is_grad_enabled():
        return _share(state, log_weight, log_target)
    found: Tensor = checkpoint(_share, state, log_weight, log_target, use_reentrant=False)
    return found


def _share(state: Tensor, log_weight: Tensor, log_target: Tensor) -> Tensor:
    return (state * _surprise(log_weight + log_target.unsqueeze(-2))).sum(-1)


def _surprise(log_x: Tensor) -> Tensor:  # "... z" -> "..."
    """The entropy of each distribution, given as unnormalised logarithms; 0 where nothing has weight."""
    log_p = _normalised(log_x)
    return -(log_p.exp() * torch.where(log_p > float("-inf"), log_p, 0.0)).sum(-1)


def _normalised(log_x: Tensor) -> Tensor:  # "... z" -> "... z"
    """log p = log x - log sum x; -inf throughout where nothing has weight."""
    total = log_sum(log_x)
    return log_x - torch.where(total > float("-inf"), total, 0.0).unsqueeze(-1)
