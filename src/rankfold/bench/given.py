"""An HMM that is nothing but its tables: no softmax, no network, the gradient is in the tables themselves.

What libraries of circuits and of classical HMMs measure. Read next: `bench/cases.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.models.config import ModelConfig
from rankfold.numerics.precision import Precision
from rankfold.operators import Dense
from rankfold.planning import Plans, chain_plan
from rankfold.recursions import chain
from rankfold.recursions.chain.potentials import ChainPotentials


class GivenTables(nn.Module):
    """Potentials straight from an initial distribution, a dense transition and an emission table.

    Random tables of normalised rows; the emissions are laid out by word, as a batch reads them.
    Cost: b t z^2 for the scan and nothing else. Memory: the tables and their gradients.
    """

    def __init__(self, num_states: int, num_words: int, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def logits(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32)

        self.config = ModelConfig(family="hmm", num_states=num_states, neural=False)
        self.num_words = num_words
        self.log_initial = nn.Parameter(torch.log_softmax(logits(num_states), 0))  # "z"
        self.transition = nn.Parameter(torch.softmax(logits(num_states, num_states), 1))  # "z y"
        self.log_emission = nn.Parameter(torch.log_softmax(logits(num_words, num_states), 0))  # "v z"

    def potentials(self, batch: Batch, *, generator: torch.Generator | None = None) -> ChainPotentials:
        """The weights of all hidden paths; the generator has nothing to drop."""
        log_obs = embedding(batch.values, self.log_emission)
        return ChainPotentials(self.log_initial, Dense.unchecked(self.transition), log_obs, lengths=batch.lengths)

    def log_z(self, potentials: ChainPotentials, *, precision: Precision = "float32") -> Tensor:  # "b"   float64
        """The log-probability of each sequence."""
        return chain.log_z(potentials, precision=precision)

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """The plan of the softmax HMM without the parts that make its tables, and without what these hold."""
        params = sum(x.numel() for x in self.parameters())
        plans = chain_plan(self.config.num_states, None, 0, self.num_words, 0, batch, length, device, precision, params)
        ways = (
            way._replace(
                parts=tuple(x for x in way.parts if x.name.startswith("scan")),
                fixed_bytes=way.fixed_bytes - way.work_bytes,
                eval_fixed_bytes=0,
            )
            for way in plans.ways
        )
        return plans._replace(ways=tuple(ways))
