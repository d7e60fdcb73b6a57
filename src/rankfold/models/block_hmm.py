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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.query import PathQuery
from rankfold.models.base import Context
from rankfold.models.config import ModelConfig
from rankfold.models.sequence import SequenceModel
from rankfold.models.sharded import num_parameters_of
from rankfold.numerics.precision import Precision
from rankfold.numerics.shard import Shard
from rankfold.params.block_sparse import (
    BlockDynamics,
    BlockEmission,
    BlockParts,
    FreeBlockParts,
    TiedBlockParts,
    all_blocks,
)
from rankfold.params.dropout import kept_by_cluster, num_kept
from rankfold.planning.chains import block_plan
from rankfold.planning.cost import Plans
from rankfold.recursions import blocks
from rankfold.recursions.blocks import BlockPotentials, in_shards
from rankfold.recursions.blocks.in_shards import Places, ShardedBlockPotentials
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


class KeptShares(ShardedBlockPotentials):
    """The same of one process's clusters."""

    keep: Tensor | None = None  # "c k"   of its own clusters


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
        if keep is not None and self.shard is not None:
            keep = keep[self.shard.own]
        dynamics, emission = self.blocks(keep)
        return BlockModelParts(dynamics, emission, keep, config.reset_eos and generator is not None)

    def own_potentials(self, batch: Batch, parts: BlockModelParts, context: Context) -> BlockPotentials:
        dynamics, emission, carried = parts.dynamics, parts.emission, context.carried
        block = self.blocks.members.cluster[batch.values]
        if self.shard is not None:
            share: Any = self._share(self.shard, batch, parts, carried, block)
            return cast(BlockPotentials, share)
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

    def _share(
        self, shard: Shard, batch: Batch, parts: BlockModelParts, carried: BlockCarried | None, block: Tensor
    ) -> KeptShares:  # "b t"
        """The potentials of the positions whose clusters this process has."""
        dynamics, emission = parts.dynamics, parts.emission
        places = Places.of(block, batch.lengths, shard)
        first = block[:, 0][places.here[0]]
        if carried is None:
            log_initial = embedding(first - shard.start, dynamics.log_initial)
        else:
            log_initial = self._continued_share(shard, parts, carried, block[:, 0])[places.here[0]]
        at, of = places.leads.nonzero().unbind(1)
        source, target = block[of, at], block[of, at + 1]
        steps = dynamics.steps(source - shard.start, target)
        if parts.reset:
            ended = (batch.values[of, at] == Vocabulary.eos_id)[:, None, None]
            start = all_blocks(dynamics.log_initial.unsqueeze(-1), shard)[..., 0]
            steps = torch.where(ended, embedding(target, start).unsqueeze(-2), steps)
        words = batch.values.mT[places.here]
        potentials = KeptShares(log_initial, steps, emission.log_obs(words), places, shard, batch.lengths)
        potentials.keep = parts.keep
        return potentials

    def _continued_share(
        self, shard: Shard, parts: BlockModelParts, carried: BlockCarried, block: Tensor
    ) -> Tensor:  # "b" -> "b k"
        """As `_continued`: the process that has a stream's last cluster leaves it for the one that has the next."""
        states, log_filtered = (x[: len(block)] for x in carried)
        cluster = states[:, 0] // self.per_cluster
        own = shard.holds(cluster).nonzero()[:, 0]
        if parts.keep is None and states.shape[1] == self.per_cluster:
            step = parts.dynamics.steps(cluster[own, None] - shard.start, block[own, None])[:, 0]
        else:
            step = self.blocks.border(states[own] - shard.start * self.per_cluster, block[own], parts.keep)
        found = torch.logsumexp(log_filtered[own].unsqueeze(-1) + step, 1)
        return shard.sum(found.new_zeros(len(block), found.shape[1]).index_copy(0, own, found))

    def _continued(self, parts: BlockModelParts, carried: BlockCarried, block: Tensor) -> Tensor:  # "b" -> "b k"
        """The log-distribution of the state in each row's first block, given where its stream stood."""
        states, log_filtered = (x[: len(block)] for x in carried)
        if parts.keep is None and states.shape[1] == self.per_cluster:  # all are there, and so are their normalisers
            step = parts.dynamics.steps(states[:, :1] // self.per_cluster, block[:, None])[:, 0]
        else:
            step = self.blocks.border(states, block, parts.keep)
        return torch.logsumexp(log_filtered.unsqueeze(-1) + step, 1)

    def log_z(
        self,
        potentials: BlockPotentials,
        arithmetic: Arithmetic = "scaled",
        precision: Precision = "float32",
        *,
        wide: bool = False,
    ) -> Tensor:  # "b"
        """The log-probability of each sequence. Block chains always run in logarithms: "log" asks for float64."""
        if isinstance(potentials, ShardedBlockPotentials):
            found: Tensor = in_shards.log_z(potentials)
            return found
        if arithmetic == "log":
            log_initial, log_transition, log_obs = (x.double() for x in potentials[:3])
            potentials = potentials._replace(log_initial=log_initial, log_transition=log_transition, log_obs=log_obs)
        return super().log_z(potentials, arithmetic, precision, wide=wide)

    def carried_of(self, tensors: Sequence[Tensor]) -> BlockCarried:
        return BlockCarried(*tensors)

    def carry(self, potentials: BlockPotentials, parts: BlockModelParts | None = None) -> BlockCarried:
        keep = getattr(potentials, "keep", None)
        if isinstance(potentials, ShardedBlockPotentials):
            keep = None if keep is None else all_blocks(keep[..., None].double(), self.shard)[..., 0].long()
            block = _last_of(potentials.places.block, potentials.lengths)
            log_filtered = in_shards.advance(potentials)[0]
        else:
            block, log_filtered = _last_block(potentials), blocks.advance(potentials)[0]
        index = torch.arange(self.per_cluster, device=block.device)[None] if keep is None else keep[block]
        return BlockCarried(block[:, None] * self.per_cluster + index, log_filtered)

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

    def plan(
        self,
        batch: int = 8,
        length: int = 32,
        device: str = "cpu",
        precision: Precision = "float32",
        *,
        devices: int | None = None,
    ) -> Plans:
        """As of other models. `devices`: of one of so many that share the clusters; None: as the configuration says."""
        config = self.config
        devices = devices or config.shards
        size = num_kept(self.per_cluster, config.state_dropout)
        largest = self.blocks.members.words.shape[1]
        dim = config.dim if config.neural else 0
        params = num_parameters_of(self, devices)
        return block_plan(config.num_clusters, size, largest, dim, batch, length, device, precision, params, devices)


def _last_block(potentials: BlockPotentials) -> Tensor:  # "b"
    """The block of each sequence's last position."""
    return _last_of(potentials.block, potentials.lengths)


def _last_of(block: Tensor, lengths: Tensor | None) -> Tensor:  # "b t", "b" -> "b"
    last = torch.full_like(block[:, :1], block.shape[1]) - 1
    if lengths is not None:
        last = lengths[:, None] - 1
    return block.gather(1, last)[:, 0]
