"""State paths of a chain: the best one, with a maximum in place of the sum, and paths drawn from their posterior.

Scores are float64 whatever the potentials are, ties go to the smallest state. Back-pointers are O(b t z).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold.kernels.dispatch import FEW_STATES, loops_serve
from rankfold.numerics.log_space import pick, pick_at
from rankfold.recursions.chain import in_chunks, in_shards
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.chain.rungs import solve
from rankfold.recursions.factor_gradients import to_double

# One step of the maximum: scores "b z" -> best "b y" and, for every y, what it came through.
PushMax = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]


def best_path(c: Chain, push_max: PushMax, follow: Callable[..., tuple[Tensor, ...]]) -> tuple[list[Tensor], Tensor]:
    """The states (and whatever else the steps chose) of the best path, and its log-probability.

        max_{z_1..z_T}  log initial[z_1] + sum_t log obs_t[z_t] + sum_{t>1} log A[z_{t-1}, z_t] + log final[z_T]

    `follow(pointers, state)` gives (previous state, other choices of the step...). Returns tensors "b t" for
    states and "b t-1" for the other choices; -1 beyond the length and for sequences without any path.
    """
    log_obs, lengths = c.log_obs, c.lengths
    num_positions = log_obs.shape[1]
    score = c.log_initial.double() + log_obs[:, 0]
    pointers = []
    for t in range(1, num_positions):
        moved, came = push_max(score)
        pointers.append(came)
        inside = (t < lengths)[:, None]
        score = torch.where(inside, moved + torch.where(inside, log_obs[:, t], 0.0), score)
    log_prob, state = (score + c.log_final).max(-1)
    steps: list[tuple[Tensor, ...]] = []
    for t in reversed(range(num_positions)):
        inside = (t < lengths) & (log_prob > float("-inf"))
        others: tuple[Tensor, ...] = ()
        here = torch.where(inside, state, -1)
        if t:
            previous, *rest = follow(pointers[t - 1], state)
            state = torch.where(t < lengths, previous, state)
            others = tuple(torch.where(inside, x, -1) for x in rest)
        steps.append((here, *others))
    steps.reverse()
    columns = [[step[0] for step in steps]] + [list(x) for x in zip(*(step[1:] for step in steps[1:]), strict=True)]
    return [torch.stack(column, 1) for column in columns], log_prob


def draw(c: Chain, num_samples: int, generator: torch.Generator | None) -> Tensor:  # "n b t"
    """Independent exact samples; -1 beyond the length and for impossible sequences.

    z_1 ~ initial obs_1 future_1        z_t+1 ~ A[z_t, :] obs_t+1 future_t+1
    """
    solution = solve(c, "scaled", "float32")
    log_ahead = c.observations().double() + solution.log_future()  # "t b z"
    num_positions, num_sequences, num_states = log_ahead.shape
    transition = to_double(c.transition)
    known = c.inside() & (solution.log_z > float("-inf"))[:, None]
    uniform: Tensor | None = None
    size = num_states if c.shard is None else c.shard.size
    if size <= FEW_STATES and not log_ahead.is_cuda:  # a seed draws the same paths, compiled or not, shared or not
        uniform = torch.rand(num_samples, num_sequences, num_positions, dtype=torch.float64, generator=generator)
    if c.shard is not None:
        return torch.where(
            known, in_shards.draw(c, transition, c.shard, log_ahead, num_samples, generator, uniform), -1
        )
    if uniform is not None and loops_serve(num_states, log_ahead):
        from rankfold.kernels.path_loops import drawn_states

        log_weight = transition.log_rows(torch.arange(num_states)).double()
        return torch.where(known, drawn_states(log_weight, c.log_initial.double(), log_ahead, c.lengths, uniform), -1)
    if in_chunks.chunks_serve(c):
        rows = transition.log_rows(torch.arange(num_states, device=c.lengths.device))
        drawn = [in_chunks.draw(c, rows, log_ahead, generator) for _ in range(num_samples)]
        return torch.where(known, torch.stack(drawn), -1)

    def chosen(t: int, logits: Tensor) -> Tensor:
        return pick(logits, generator) if uniform is None else pick_at(logits, uniform[..., t])

    state = chosen(0, (c.log_initial + log_ahead[0]).expand(num_samples, -1, -1))
    path = [state]
    for t in range(1, num_positions):
        log_row = transition.log_rows(state.reshape(-1)).reshape(num_samples, num_sequences, num_states)
        state = torch.where(t < c.lengths, chosen(t, log_row + log_ahead[t]), state)
        path.append(state)
    return torch.where(known, torch.stack(path, -1), -1)
