"""The HMM with block-sparse emissions: a word is said only by the states of its cluster.

    p(x, z) as in `models/hmm.py`, with emission[z, x] = 0 unless z is one of the k states of x's cluster

So a position has k states instead of z, and a step is a k x k block of the transition. Only the blocks a text
visits are computed; the rows' normalisers run over all states, blocked. Read next: `params/block_parts.py`.
Source: Chiu and Rush 2020 (SE-HMM; with k states a cluster dropped at random in training, VL-HMM).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.models.base import WordModel
from rankfold.models.config import ModelConfig
from rankfold.numerics.precision import Precision, check_precision
from rankfold.params.block_parts import BlockDynamics, BlockEmission, BlockParts, FreeBlockParts
from rankfold.params.dropout import kept_by_cluster, num_kept
from rankfold.planning import Plans, block_plan
from rankfold.queries.blocks import BlockQuery
from rankfold.recursions import chain_blocks
from rankfold.recursions.chain_blocks import BlockChainPotentials
from rankfold.recursions.chain_solve import Arithmetic


class BlockModelParts(NamedTuple):
    """The distributions, over the states that are kept."""

    dynamics: BlockDynamics
    emission: BlockEmission


class BlockCarried(NamedTuple):
    """Where a stream stands: the block of the last word, and the distribution of its states."""

    block: Tensor  # "b"
    log_filtered: Tensor  # "b k"


class BlockHMM(WordModel[BlockModelParts, BlockChainPotentials, BlockCarried]):
    """Family "block"."""

    def __init__(self, config: ModelConfig, blocks: BlockParts | FreeBlockParts) -> None:
        super().__init__()
        self.config, self.blocks = config, blocks
        self.num_words = len(blocks.members.cluster)

    def parts(self, generator: torch.Generator | None = None) -> BlockModelParts:
        num, config = self.config.num_clusters, self.config
        keep = kept_by_cluster(num, config.num_states // num, config.state_dropout, generator=generator)
        return BlockModelParts(*self.blocks(keep))

    def potentials(
        self,
        batch: Batch,
        *,
        parts: BlockModelParts | None = None,
        carried: BlockCarried | None = None,
        generator: torch.Generator | None = None,
    ) -> BlockChainPotentials:
        dynamics, emission = self.parts(generator) if parts is None else parts
        block = self.blocks.members.cluster[batch.words]
        if carried is None:
            log_initial = embedding(block[:, 0], dynamics.log_initial)
        else:
            before = BlockCarried(*(x[: len(block)] for x in carried))
            step = dynamics.steps(before.block[:, None], block[:, :1])[:, 0]
            log_initial = torch.logsumexp(before.log_filtered.unsqueeze(-1) + step, 1)
        steps = dynamics.steps(block[:, :-1], block[:, 1:])
        return BlockChainPotentials(log_initial, steps, emission.log_obs(batch.words), block, batch.lengths)

    def log_z(
        self, potentials: BlockChainPotentials, arithmetic: Arithmetic = "scaled", precision: Precision = "float32"
    ) -> Tensor:  # "b"
        """The log-probability of each sequence. Block chains always run in logarithms: "log" asks for float64."""
        check_precision(precision)
        if arithmetic == "log":
            log_initial, log_transition, log_obs = (x.double() for x in potentials[:3])
            potentials = potentials._replace(log_initial=log_initial, log_transition=log_transition, log_obs=log_obs)
        return chain_blocks.log_z(potentials)

    def carry(self, potentials: BlockChainPotentials) -> BlockCarried:
        last = torch.full_like(potentials.block[:, :1], potentials.block.shape[1]) - 1
        if potentials.lengths is not None:
            last = potentials.lengths[:, None] - 1
        return BlockCarried(potentials.block.gather(1, last)[:, 0], chain_blocks.advance(potentials)[0])

    def log_next(self, parts: BlockModelParts, batch: Batch | None) -> Tensor:  # "b z"
        if batch is None:
            return parts.dynamics.log_initial.reshape(1, -1)
        block, log_filtered = self.carry(self.potentials(batch, parts=parts))
        size = log_filtered.shape[1]
        rows = []
        for own, weights in zip(block, log_filtered, strict=True):
            states = own * size + torch.arange(size, device=own.device)
            rows.append(torch.logsumexp(weights[:, None] + parts.dynamics.log_rows(states), 0))
        return torch.stack(rows)

    def transition_rows(self, parts: BlockModelParts, index: Tensor) -> Tensor:  # "k" -> "k z"
        return parts.dynamics.log_rows(index)

    def query(self, potentials: BlockChainPotentials) -> BlockQuery:
        return BlockQuery(potentials, self.config.num_clusters * potentials.log_obs.shape[-1])

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        config = self.config
        size = num_kept(config.num_states // config.num_clusters, config.state_dropout)
        largest = self.blocks.members.words.shape[1]
        dim = config.dim if config.neural else 0
        return block_plan(
            config.num_clusters, size, largest, dim, batch, length, device, precision, self.num_parameters
        )
