"""The hidden Markov model that every library gets: the same parameters, the same tokens.

Its transition is a product of two thin factors, so that the low-rank and the dense form are one model.
Read next: `peers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

NUM_SYMBOLS = 1000
NUM_SEQUENCES = 4
NUM_TOKENS = 64
# From here on parameters are drawn in float32: in float64 the largest would not leave room for a library.
LARGE = 4096


@dataclass(frozen=True)
class Hmm:
    """A categorical HMM and its data."""

    initial: Tensor  # "z"
    left: Tensor  # "z r"         rows sum to 1
    right: Tensor  # "y r"        columns sum to 1
    emission: Tensor  # "z v"     rows sum to 1
    tokens: Tensor  # "b t"       int64

    @property
    def num_states(self) -> int:
        return self.left.shape[0]

    def transition(self) -> Tensor:  # "z y"
        """The dense transition, rows summing to 1 again after rounding."""
        dense = self.left @ self.right.mT
        return dense.div_(dense.sum(1, keepdim=True))

    def to(self, dtype: torch.dtype) -> Hmm:
        """The same model in another dtype."""
        return replace(
            self,
            initial=self.initial.to(dtype),
            left=self.left.to(dtype),
            right=self.right.to(dtype),
            emission=self.emission.to(dtype),
        )


def random_hmm(num_states: int, num_tokens: int = NUM_TOKENS, num_symbols: int = NUM_SYMBOLS, seed: int = 0) -> Hmm:
    """A model of rank states / 8 with every distribution drawn uniformly from its simplex."""
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if num_states >= LARGE else torch.float64
    rank = max(1, num_states // 8)

    def draw(rows: int, columns: int) -> Tensor:
        weights = torch.rand(rows, columns, generator=generator, dtype=dtype).clamp_(min=1e-6).log_().neg_()
        return weights.div_(weights.sum(1, keepdim=True))

    return Hmm(
        initial=draw(1, num_states)[0],
        left=draw(num_states, rank),
        right=draw(rank, num_states).mT.contiguous(),
        emission=draw(num_states, num_symbols),
        tokens=torch.randint(num_symbols, (NUM_SEQUENCES, num_tokens), generator=generator),
    )
