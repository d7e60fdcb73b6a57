"""State paths drawn from their posterior: backward messages first, then one row of A for every step.

Read next: `decoding/sample.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.chain_log import observations
from rankfold.recursions.chain_solve import solve
from rankfold.recursions.factors import doubled
from rankfold.recursions.potentials import Chain


def draw(c: Chain, num_samples: int, generator: torch.Generator | None) -> Tensor:  # "n b t"
    """Independent exact samples; -1 beyond the length and for impossible sequences.

    z_1 ~ initial obs_1 future_1        z_t+1 ~ A[z_t, :] obs_t+1 future_t+1
    """
    solution = solve(c, "scaled", "float32")
    log_ahead = observations(c).double() + solution.log_future()  # "t b z"
    num_positions, num_sequences, num_states = log_ahead.shape
    transition = doubled(c.transition)
    state = pick((c.log_initial + log_ahead[0]).expand(num_samples, -1, -1), generator)
    path = [state]
    for t in range(1, num_positions):
        log_row = transition.log_rows(state.reshape(-1)).reshape(num_samples, num_sequences, num_states)
        state = torch.where(t < c.lengths, pick(log_row + log_ahead[t], generator), state)
        path.append(state)
    known = c.inside() & (solution.log_z > float("-inf"))[:, None]
    return torch.where(known, torch.stack(path, -1), -1)


def pick(logits: Tensor, generator: torch.Generator | None) -> Tensor:  # "... z" -> "..."
    """One draw from each distribution, given as unnormalised logarithms."""
    top = logits.amax(-1, keepdim=True)
    # Beyond a length, or in an impossible sequence, nothing may have weight; what is drawn there is not used.
    weights = torch.where(top > float("-inf"), torch.exp(logits - top), 1.0)
    return torch.multinomial(weights.flatten(0, -2), 1, generator=generator).reshape(logits.shape[:-1])
