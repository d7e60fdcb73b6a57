"""Best paths and sampled paths of a chain of blocks, as states of the whole model."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.numerics.log_space import pick
from rankfold.recursions.blocks.potentials import BlockPotentials, validate
from rankfold.recursions.blocks.steps import filter_states, total


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
