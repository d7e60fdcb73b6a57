"""Chains of blocks: log Z over all state paths when every position has only k states of its own.

| file | in it |
|---|---|
| `potentials` | `BlockPotentials`, and their validation |
| `steps` | forward-backward in logarithms, the one rung that blocks need |
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.numerics.log_space import pick
from rankfold.numerics.precision import Precision
from rankfold.recursions import ladder
from rankfold.recursions.blocks.potentials import BlockLike, BlockPotentials, validate
from rankfold.recursions.blocks.steps import BlockRung, filter_states, total
from rankfold.recursions.ladder import Arithmetic, Impossible, Ladder

__all__ = ["BlockPotentials", "advance", "best_path", "draw", "log_z", "validate"]


def log_z(
    p: BlockLike, arithmetic: Arithmetic = "scaled", precision: Precision = "float32", *, strict: bool = False
) -> Tensor:  # "b"   float64
    """Log-probability of each observed sequence, summed over all state paths inside the blocks.

        log Z = log  sum_{i_1..i_T}  exp(initial[i_1] + obs_1[i_1] + sum_{t>1} transition_t[i_{t-1}, i_t] + obs_t[i_t])

    Cost: one exponential for every entry of log_transition, b t k k, and as many in the backward pass; on a GPU three
    launches for all positions (`kernels/block_scan`), elsewhere seven calls per step. Memory: messages O(b t k),
    gradient of log_transition.
    Differentiable in log_initial, log_transition and log_obs, twice; d log Z / d log_obs is the posterior inside
    the block. An impossible sequence has -inf and zero gradients; `strict` raises instead. All in logarithms, so that
    no range is too wide, whatever `arithmetic` and `precision` permit.
    Source: Chiu and Rush 2020, where each word is emitted by the states of its own block alone.
    """
    hint = "Look for observations and transitions of weight zero in every state of a block."
    impossible = Impossible("sequence", "no state path has any weight", hint) if strict else None
    return ladder.log_z(validate(p), lambda c, both: Ladder(BlockRung(c)), arithmetic, precision, impossible)


def advance(p: BlockPotentials) -> tuple[Tensor, Tensor]:  # "b k", "b"
    """The log-distribution of the state after the last position, and log Z (float64), detached.

        log_filtered[i] = log p(i_T = i | x_1..T)

    Inside the block of the last position. Impossible sequences have -inf.
    """
    c = validate(p).detach()
    with torch.no_grad():
        messages, log_steps = filter_states(c)
        log_total = total(log_steps, c.inside())
        last = messages[c.lengths - 1, torch.arange(len(c.lengths), device=messages.device)]
        return torch.where(log_total[:, None] == float("-inf"), float("-inf"), last), log_total


def best_path(p: BlockPotentials) -> tuple[Tensor, Tensor]:  # "b t", "b"
    """The single most probable state path of each sequence, and its log-probability (float64).

        argmax_{i_1..i_T}  initial[i_1] + obs_1[i_1] + sum_{t>1} transition_t[i_{t-1}, i_t] + obs_t[i_t]

    States of the whole model, block * k + index; -1 beyond the length and throughout an impossible sequence.
    Ties go to the smallest index. Cost: b t k k additions in float64. Detached.
    """
    c = validate(p).detach()
    inside = c.inside()
    num_positions = inside.shape[1]
    score = c.log_initial.double() + c.log_obs[:, 0]
    pointers = []
    for t in range(1, num_positions):
        moved, came = (score.unsqueeze(-1) + c.log_transition[:, t - 1]).max(1)
        pointers.append(came)
        score = torch.where(inside[:, t, None], moved + c.log_obs[:, t], score)
    log_prob, index = score.max(-1)
    path = [index]
    for t in range(num_positions - 1, 0, -1):
        previous = pointers[t - 1].gather(1, index[:, None])[:, 0]
        index = torch.where(inside[:, t], previous, index)
        path.append(index)
    known = inside & (log_prob > float("-inf"))[:, None]
    return c.states(torch.stack(path[::-1], 1), known), log_prob


def draw(p: BlockPotentials, num_samples: int, generator: torch.Generator | None = None) -> Tensor:  # "n b t"
    """State paths drawn from their posterior p(i_1..i_T | x), independent and exact.

        i_T ~ p(i_T | x_1..T)        i_t ~ p(i_t | x_1..t) transition_t+1[i_t, i_t+1]

    States of the whole model, block * k + index; -1 beyond the length and throughout an impossible sequence.
    Cost: one forward pass and, for each position and sample, one column of the transition.
    """
    if not isinstance(num_samples, int) or num_samples < 1:
        raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
    c = validate(p).detach()
    inside = c.inside()
    with torch.no_grad():
        messages, log_steps = filter_states(c)
        possible = total(log_steps, inside) > float("-inf")
        index = pick(messages[-1].expand(num_samples, -1, -1), generator)  # "n b"
        path = [index]
        each = torch.arange(len(c.lengths), device=index.device)
        for t in range(inside.shape[1] - 1, 0, -1):
            column = c.log_transition[:, t - 1].mT[each, index]  # "n b k"
            column = torch.where(inside[:, t, None], column, 0.0)  # the last position has nothing after it
            index = pick(messages[t - 1] + column, generator)
            path.append(index)
    return c.states(torch.stack(path[::-1], -1), inside & possible[:, None])
