"""Hidden Markov models drawn from a seed, and sequences drawn from them.

Read next: `cli/compare.py`, which compares two operators on them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError


class Tables(NamedTuple):
    """A low-rank hidden Markov model: p(y | z) = sum_r left[z, r] right[y, r]."""

    start: Tensor  # "z"
    left: Tensor  # "z r"      rows sum to 1
    right: Tensor  # "y r"     columns sum to 1
    emission: Tensor  # "z v"  rows sum to 1


class Sequences(NamedTuple):
    """What was drawn: the states are the truth a decoder tries to find."""

    words: Tensor  # "b t"
    states: Tensor  # "b t"


def draw_tables(num_states: int, rank: int, num_words: int, *, seed: int, sharpness: float = 3.0) -> Tables:
    """Softmax of Gaussian scores times `sharpness`: the larger, the nearer each distribution is to one choice."""
    for name, size in (("num_states", num_states), ("rank", rank), ("num_words", num_words)):
        if size < 1:
            raise DomainError(f"{name} is {size}, but must be at least 1.")
    generator = torch.Generator().manual_seed(seed)

    def scores(*shape: int) -> Tensor:
        return sharpness * torch.randn(*shape, generator=generator, dtype=torch.float32)

    return Tables(
        scores(num_states).softmax(0),
        scores(num_states, rank).softmax(1),
        scores(num_states, rank).softmax(0),
        scores(num_states, num_words).softmax(1),
    )


def draw_sequences(tables: Tables, num_sequences: int, num_positions: int, *, seed: int) -> Sequences:
    """Ancestral samples: a start state, then a rank, a state and a word at every step."""
    generator = torch.Generator().manual_seed(seed)

    def pick(weights: Tensor) -> Tensor:  # "b k" -> "b"
        return torch.multinomial(weights, 1, generator=generator)[:, 0]

    state = pick(tables.start.expand(num_sequences, -1))
    words, states = [], []
    for t in range(num_positions):
        if t:
            rank = pick(tables.left[state])
            state = pick(tables.right.T[rank])
        words.append(pick(tables.emission[state]))
        states.append(state)
    return Sequences(torch.stack(words, 1), torch.stack(states, 1))
