"""The HMM with block-sparse emissions: a word is said only by the states of its cluster.

    p(x, z) as of `models.HMM`, with emission[z, x] = 0 unless z is one of the k states of x's cluster

So a position has k states instead of z, and a step is a k x k block of the transition. Only the blocks a text
visits are computed; the rows' normalisers run over all states, blocked.
Source: Chiu and Rush 2020 (SE-HMM, VL-HMM: some states of each cluster are dropped at random in training).

A stream with dropout carries its last states by their number in the whole model. The next step leaves them by their
own rows, also those it has dropped, normalised over the states it has kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.query import PathQuery
from rankfold.models.base import Context
from rankfold.models.config import ModelConfig
from rankfold.models.sequence import SequenceModel
from rankfold.numerics.precision import Precision
from rankfold.params.block_sparse import BlockDynamics, BlockEmission, BlockParts, FreeBlockParts, TiedBlockParts
from rankfold.params.dropout import kept_by_cluster, num_kept
from rankfold.planning.chains import block_plan
from rankfold.planning.cost import Plans
from rankfold.recursions import blocks
from rankfold.recursions.blocks import BlockPotentials
from rankfold.recursions.ladder import Arithmetic


class BlockModelParts(NamedTuple):
    """The distributions, over the states that are kept."""

    dynamics: BlockDynamics
    emission: BlockEmission
    keep: Tensor | None = None  # "c k"   which states of each cluster they are; None: all
    reset: bool = False  # whether the state after <eos> is drawn as a first one


class KeptPotentials(BlockPotentials):
    """Potentials that know which states of the whole model they are about, for `carry`."""

    keep: Tensor | None = None  # "c k"


class BlockCarried(NamedTuple):
    """Where a stream stands: the states the last word may have, numbered in the whole model, and their distribution."""

    states: Tensor  # "b k"   cluster * k + index, of one cluster a row
    log_filtered: Tensor  # "b k"


class BlockHMM(SequenceModel[BlockModelParts, BlockPotentials, BlockCarried]):
    """Family "block"."""

    def __init__(self, config: ModelConfig, blocks: BlockParts | FreeBlockParts | TiedBlockParts) -> None:
        super().__init__()
        self.config, self.blocks = config, blocks
        self.num_words = len(blocks.members.cluster)
        self.per_cluster = config.num_states // config.num_clusters

    def own_parts(self, generator: torch.Generator | None = None) -> BlockModelParts:
        config = self.config
        keep = kept_by_cluster(config.num_clusters, self.per_cluster, config.state_dropout, generator=generator)
        dynamics, emission = self.blocks(keep)
        return BlockModelParts(dynamics, emission, keep, config.reset_eos and generator is not None)

    def own_potentials(self, batch: Batch, parts: BlockModelParts, context: Context) -> BlockPotentials:
        dynamics, emission, carried = parts.dynamics, parts.emission, context.carried
        block = self.blocks.members.cluster[batch.values]
        if carried is None:
            log_initial = embedding(block[:, 0], dynamics.log_initial)
        else:
            log_initial = self._continued(parts, carried, block[:, 0])
        steps = dynamics.steps(block[:, :-1], block[:, 1:])
        if parts.reset:
            ended = (batch.values[:, :-1] == Vocabulary.eos_id)[..., None, None]
            steps = torch.where(ended, embedding(block[:, 1:], dynamics.log_initial).unsqueeze(-2), steps)
        potentials = KeptPotentials(log_initial, steps, emission.log_obs(batch.values), block, batch.lengths)
        potentials.keep = parts.keep
        return potentials

    def _continued(self, parts: BlockModelParts, carried: BlockCarried, block: Tensor) -> Tensor:  # "b" -> "b k"
        """The log-distribution of the state in each row's first block, given where its stream stood."""
        states, log_filtered = (x[: len(block)] for x in carried)
        if parts.keep is None and states.shape[1] == self.per_cluster:  # all are there, and so are their normalisers
            step = parts.dynamics.steps(states[:, :1] // self.per_cluster, block[:, None])[:, 0]
        else:
            step = self.blocks.border(states, block, parts.keep)
        return torch.logsumexp(log_filtered.unsqueeze(-1) + step, 1)

    def log_z(
        self, potentials: BlockPotentials, arithmetic: Arithmetic = "scaled", precision: Precision = "float32"
    ) -> Tensor:  # "b"
        """The log-probability of each sequence. Block chains always run in logarithms: "log" asks for float64."""
        if arithmetic == "log":
            log_initial, log_transition, log_obs = (x.double() for x in potentials[:3])
            potentials = potentials._replace(log_initial=log_initial, log_transition=log_transition, log_obs=log_obs)
        return super().log_z(potentials, arithmetic, precision)

    def carried_of(self, tensors: Sequence[Tensor]) -> BlockCarried:
        return BlockCarried(*tensors)

    def carry(self, potentials: BlockPotentials, parts: BlockModelParts | None = None) -> BlockCarried:
        block, keep = _last_block(potentials), getattr(potentials, "keep", None)
        index = torch.arange(self.per_cluster, device=block.device)[None] if keep is None else keep[block]
        return BlockCarried(block[:, None] * self.per_cluster + index, blocks.advance(potentials)[0])

    def log_next(self, parts: BlockModelParts, batch: Batch | None) -> Tensor:  # "b z"
        if batch is None:
            return parts.dynamics.log_initial.reshape(1, -1)
        potentials = self.potentials(batch, parts=parts)
        block, log_filtered = _last_block(potentials), blocks.advance(potentials)[0]
        size = log_filtered.shape[1]
        rows = []
        for own, weights in zip(block, log_filtered, strict=True):
            states = own * size + torch.arange(size, device=own.device)
            rows.append(torch.logsumexp(weights[:, None] + parts.dynamics.log_rows(states), 0))
        return torch.stack(rows)

    def transition_rows(self, parts: BlockModelParts, index: Tensor) -> Tensor:  # "k" -> "k z"
        return parts.dynamics.log_rows(index)

    def query(self, potentials: BlockPotentials) -> PathQuery:
        return PathQuery(potentials, self.config.num_clusters * potentials.log_obs.shape[-1])

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        config = self.config
        size = num_kept(self.per_cluster, config.state_dropout)
        largest = self.blocks.members.words.shape[1]
        dim = config.dim if config.neural else 0
        return block_plan(
            config.num_clusters, size, largest, dim, batch, length, device, precision, self.num_parameters
        )


def _last_block(potentials: BlockPotentials) -> Tensor:  # "b"
    """The block of each sequence's last position."""
    last = torch.full_like(potentials.block[:, :1], potentials.block.shape[1]) - 1
    if potentials.lengths is not None:
        last = potentials.lengths[:, None] - 1
    return potentials.block.gather(1, last)[:, 0]
