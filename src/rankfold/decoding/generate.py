"""Sentences drawn from a model of words, from the beginning or from where a prefix left off.

Ancestral sampling, exact: a state, a word of it, the next state, until the end symbol. Read next: `models/base.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold.numerics.log_space import pick


def generate(
    log_next: Tensor,  # "b z"   the distribution of the next state
    log_transition_rows: Callable[[Tensor], Tensor],  # "k" -> "k z"
    log_emission_rows: Callable[[Tensor], Tensor],  # "k" -> "k v"
    *,
    end: int,
    max_length: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """A continuation for each row of `log_next`, `end` left out; cut after `max_length` words without one.

    Cost: one row of the transition and one of the emissions a word.
    """
    out: list[list[int]] = [[] for _ in log_next]
    with torch.no_grad():
        alive = torch.arange(len(log_next), device=log_next.device)
        for _ in range(max_length):
            state = pick(log_next, generator)
            word = pick(log_emission_rows(state), generator)
            for i, w in zip(alive.tolist(), word.tolist(), strict=True):
                if w != end:
                    out[i].append(w)
            going = word != end
            alive, state = alive[going], state[going]
            if not len(alive):
                break
            log_next = log_transition_rows(state)
    return out
