"""Chains of blocks: log Z over all state paths when every position has only k states of its own.

| file | in it |
|---|---|
| `potentials` | `BlockPotentials`, and their validation |
| `steps` | forward-backward in logarithms, the one rung that blocks need |
| `paths` | best and sampled state paths |
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.precision import Precision
from rankfold.recursions import ladder
from rankfold.recursions.blocks.paths import best_path, draw
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
