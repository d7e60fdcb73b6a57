"""Questions of a batch of block chains, whose positions have only the states of their word's cluster.

Read next: `recursions/blocks`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.decoding.blocks import block_entropy, block_posterior
from rankfold.errors import DomainError
from rankfold.queries.chain import best_of, expect_method, spread
from rankfold.recursions.blocks import BlockPotentials, log_z
from rankfold.recursions.blocks.paths import best_path, draw

BlockMethod = Literal["viterbi", "posterior"]


class BlockQuery:
    """The posterior over state paths. States are global: cluster * k + index; `marginals` is of a word's own k."""

    of = "states"

    def __init__(self, potentials: BlockPotentials, num_states: int) -> None:
        self.potentials, self.num_values = potentials, num_states

    @property
    def log_partition(self) -> Tensor:  # "b"   float64
        """The log-probability of each sequence, summed over all paths; differentiable."""
        return log_z(self.potentials)

    def log_prob(self) -> Tensor:  # "b"   float64
        """The same: the log-probability of each sequence."""
        return self.log_partition

    def marginals(self) -> Tensor:  # "b t k"
        """The posterior of each of a word's own states; all others have none. `states()` gives their numbers."""
        return block_posterior(self.potentials)

    def states(self) -> Tensor:  # "b t k"
        """The global number of each state in `marginals`."""
        size = self.potentials.log_obs.shape[-1]
        return self.potentials.block.unsqueeze(-1) * size + torch.arange(size, device=self.potentials.block.device)

    def argmax(self, method: BlockMethod = "viterbi", *, as_one_hot: bool = False) -> Tensor:  # "b t", or "b t z"
        """One path for each sequence, of global states; -1 beyond a length and for impossible sequences."""
        expect_method(method, get_args(BlockMethod))
        if method == "viterbi":
            path = best_path(self.potentials)[0]
        else:
            with torch.no_grad():
                index = best_of(self.marginals())
            size = self.potentials.log_obs.shape[-1]
            path = torch.where(index < 0, -1, self.potentials.block * size + index)
        return spread(path, self.num_values) if as_one_hot else path

    def sample(
        self, num_samples: int | None = None, *, generator: torch.Generator | None = None, as_one_hot: bool = False
    ) -> Tensor:  # "b t", or "n b t", or with a last axis "z"
        """Paths of global states drawn from the posterior, exact and independent."""
        if num_samples is not None and num_samples < 1:
            raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
        paths = draw(self.potentials, num_samples or 1, generator)
        paths = paths[0] if num_samples is None else paths
        return spread(paths, self.num_values) if as_one_hot else paths

    def entropy(self) -> Tensor:  # "b"   float64
        """The entropy of the posterior over paths, in nats."""
        return block_entropy(self.potentials)

    def __repr__(self) -> str:
        num_sequences, num_positions, size = self.potentials.log_obs.shape
        return (
            f"BlockQuery({num_sequences} sequences of up to {num_positions}, "
            f"over {size:,} states a word of {self.num_values:,} states)"
        )
