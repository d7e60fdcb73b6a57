"""The loops of a chain whose states several processes hold: one message a position and direction, nothing else.

A message is divided by a number that follows from what all have received, not by its largest entry, which nobody knows:
`Sharded.push_scaled` finds one that no entry exceeds.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from rankfold.numerics.log_space import pick_at
from rankfold.numerics.shard import Shard
from rankfold.operators.protocol import Operator
from rankfold.operators.sharded import Sharded
from rankfold.recursions.chain.potentials import Chain


def filtered(transition: Operator, x: Tensor, emission: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Forward messages "t b z" of its own states, their divisors "t b", and the messages between two factors "s b r".

    Divided before the emissions: entries are at most 1, and as far below as the emissions of all states are.
    """
    operator = cast(Sharded, transition)
    found, norm, inner = torch.empty_like(emission), emission.new_ones(emission.shape[:2]), []
    torch.mul(x, emission[0], out=found[0])
    for t in range(1, len(emission)):
        step = operator.push_scaled(found[t - 1])
        torch.mul(step.message, emission[t], out=found[t])
        norm[t] = step.norm[:, 0]
        inner.append(step.inner)
    return found, norm, _stacked(inner)


def future(
    transition: Operator, emission: Tensor, final: Tensor, last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Backward messages, emission times message, divisors, and the messages between two factors."""
    operator = cast(Sharded, transition)
    num_positions = len(emission)
    ahead, target, norm = torch.empty_like(emission), torch.empty_like(emission), emission.new_ones(emission.shape[:2])
    inner: list[Any] = []
    ahead[-1] = final
    for t in reversed(range(num_positions)):
        if t < num_positions - 1:
            step = operator.pull_scaled(target[t + 1])
            ahead[t] = torch.where(last[t].unsqueeze(-1), final, step.message)
            norm[t] = step.norm[:, 0]
            inner.append(step.inner)
        torch.mul(emission[t], ahead[t], out=target[t])
    return ahead, target, norm, _stacked(inner[::-1])


def _stacked(steps: list[Any]) -> Tensor | None:
    return torch.stack(steps) if steps and steps[0] is not None else None


def draw(
    c: Chain,
    transition: Operator,
    shard: Shard,
    log_ahead: Tensor,
    num_samples: int,
    generator: torch.Generator | None,
    uniform: Tensor | None,
) -> Tensor:  # "t b z", "n b t" -> "n b t"
    """As `paths.draw`: states of all processes, the same on each; of few states by the numbers in `uniform`."""
    num_positions, num_sequences, num_states = log_ahead.shape

    def chosen(t: int, logits: Tensor) -> Tensor:
        return pick(logits, shard, generator) if uniform is None else pick_at(shard.gather(logits), uniform[..., t])

    state = chosen(0, (c.log_initial + log_ahead[0]).expand(num_samples, -1, -1))
    path = [state]
    for t in range(1, num_positions):
        log_row = transition.log_rows(state.reshape(-1)).reshape(num_samples, num_sequences, num_states)
        state = torch.where(t < c.lengths, chosen(t, log_row + log_ahead[t]), state)
        path.append(state)
    return torch.stack(path, -1)


def pick(logits: Tensor, shard: Shard, generator: torch.Generator | None) -> Tensor:  # "... z" -> "..."
    """One draw from each distribution over all states, given as unnormalised logarithms of its own.

    The state whose weight over an exponential variable is largest is drawn with its probability. All processes draw
    the variables of all states from the same seed, so the draws are those of one process; two numbers of each are sent.
    """
    top = shard.most(logits.amax(-1, keepdim=True))
    weights = torch.where(top > float("-inf"), torch.exp(logits - top), 1.0)
    race = torch.empty(*logits.shape[:-1], shard.size, dtype=weights.dtype, device=weights.device)
    best, state = (weights / race.exponential_(1, generator=generator)[..., shard.own]).max(-1)
    draws = shard.like(shard.num, what="draws")
    all_best, all_states = (draws.gather(x[..., None]) for x in (best, state + shard.start))
    return all_states.gather(-1, all_best.argmax(-1, keepdim=True))[..., 0]
