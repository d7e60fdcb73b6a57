"""EM for models of words in free tables: steps over all sentences, or over the batches of an update.

Mini-batch EM keeps running expected counts and moves them towards those of each update (Cappe, Moulines 2009; with a
constant share it is the momentum of Liu et al. 2025). The M step is that of EM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.counts import expected_counts
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.block_hmm import BlockHMM
from rankfold.models.rank_hmm import RankHMM
from rankfold.models.sequence import HMM
from rankfold.numerics.precision import matmul_precision, parameter_precision
from rankfold.params.block_sparse import FreeBlockParts
from rankfold.params.dynamics.rank_factors import FreeRankFactors
from rankfold.params.observations.categorical import CategoricalObservation
from rankfold.params.prior import Prior, Table
from rankfold.training.config import Config
from rankfold.training.gradients import row_parts
from rankfold.training.memory_budget import Budget

Counts = tuple[Tensor, ...]


def mix(before: Counts, found: Counts, share: float) -> Counts:
    """Running counts, moved by a share of the way to new ones."""
    return tuple(torch.lerp(x, y, share) for x, y in zip(before, found, strict=True))


class Tables(Protocol):
    """The free tables of a model of words: how often they are used, and their maximum."""

    def count(self, batch: Batch, parts: Any) -> tuple[Tensor, Counts]: ...  # log Z "b", float64 counts
    def maximise(self, counts: Counts, prior: Prior) -> None: ...
    def as_counts(self, counts: Counts) -> Counts: ...  # the tables themselves, as if used as often as in these counts


class StateTables:
    """Of an HMM: start, transitions (dense, low-rank, banded), and the words of every state."""

    def __init__(self, model: HMM) -> None:
        self.model, self.dynamics = model, cast(Any, model.dynamics)
        self.observation = CategoricalObservation(model.emission)

    def count(self, batch: Batch, parts: Any) -> tuple[Tensor, Counts]:
        counts = expected_counts(self.model.potentials(batch, parts=parts))
        words = self.observation.count(batch.values.flatten(), counts.state.flatten(0, 1))
        return counts.log_z, (*self.dynamics.count(counts.initial, counts.transition), words)

    def maximise(self, counts: Counts, prior: Prior) -> None:
        self.dynamics.maximise(counts[:-1], prior)
        self.observation.maximise(counts[-1], prior)

    def as_counts(self, counts: Counts) -> Counts:
        return _as_counts((*self.dynamics.tables().values(), *self.observation.tables().values()), counts)


class RankTables:
    """Of a rank-space HMM: start, ranks given states, states given ranks, and the words of every rank."""

    def __init__(self, model: RankHMM) -> None:
        self.model, self.factors = model, cast(FreeRankFactors, model.factors)

    def count(self, batch: Batch, parts: Any) -> tuple[Tensor, Counts]:
        counts = expected_counts(self.model.potentials(batch, parts=parts))
        words = torch.zeros_like(self.factors.log_word, dtype=torch.float64)
        words.index_add_(1, batch.values.flatten(), counts.state.double().flatten(0, 1).mT)
        return counts.log_z, self.factors.count(counts.initial, counts.transition, words)

    def maximise(self, counts: Counts, prior: Prior) -> None:
        self.factors.maximise(counts, prior)

    def as_counts(self, counts: Counts) -> Counts:
        return _as_counts(tuple(self.factors.tables().values()), counts)


def _as_counts(tables: Sequence[Table], counts: Counts) -> Counts:
    """Distributions, each times the uses of all its entries."""
    return tuple(table.value * own.sum(table.axis, keepdim=True) for table, own in zip(tables, counts, strict=True))


class BlockTables:
    """Of an HMM with block-sparse emissions: a word is counted by the states of its cluster alone."""

    def __init__(self, model: BlockHMM) -> None:
        self.model, self.blocks = model, cast(FreeBlockParts, model.blocks)

    def count(self, batch: Batch, parts: Any) -> tuple[Tensor, Counts]:
        p = self.model.potentials(batch, parts=parts)
        counts, (num, size) = expected_counts(p), self.blocks.log_initial.shape
        initial = counts.initial.new_zeros(num, size, dtype=torch.float64)
        initial.index_add_(0, p.block[:, 0], counts.initial.double())
        pairs = initial.new_zeros(num * num, size, size)
        pairs.index_add_(
            0, (p.block[:, :-1] * num + p.block[:, 1:]).flatten(), counts.transition.double().flatten(0, 1)
        )
        transition = pairs.reshape(num, num, size, size).transpose(1, 2)  # "c k c k"
        words = initial.new_zeros(self.model.num_words, size)
        words.index_add_(0, batch.values.flatten(), counts.state.double().flatten(0, 1))
        return counts.log_z, (initial, transition, words)

    @torch.no_grad()
    def maximise(self, counts: Counts, prior: Prior) -> None:
        """The share of each use; states without any use stay as they are."""
        own = self.blocks.log_initial, self.blocks.log_transition, self.blocks.log_emission
        smoothed = tuple(x + prior.smoothing for x in counts)
        for table, x, total in zip(own, smoothed, self._totals(smoothed), strict=True):
            table.copy_(torch.where(total > 0, (x / torch.where(total > 0, total, 1.0)).log(), table.double()))

    def as_counts(self, counts: Counts) -> Counts:
        dynamics, emission = self.blocks()
        initial, transition = (x.detach().double().exp() for x in (dynamics.log_initial, dynamics.log_table))
        members = emission.log_table.detach().double().exp()  # "c m k"
        words = members[self.blocks.members.cluster, self.blocks.members.position]
        tables = initial, transition.transpose(1, 2), words
        return tuple(table * total for table, total in zip(tables, self._totals(counts), strict=True))

    def _totals(self, counts: Counts) -> Counts:
        """The uses of each distribution, in the shape of its entries."""
        initial, transition, words = counts
        cluster = self.blocks.members.cluster
        said = torch.zeros_like(initial).index_add_(0, cluster, words)  # "c k"
        return initial.sum().expand_as(initial), transition.sum((2, 3), keepdim=True), said[cluster]


def tables_of(model: HMM | RankHMM | BlockHMM) -> Tables:
    """The free tables of a model; raises where networks make them."""
    if model.config.neural:
        raise UnsupportedError(
            f'train.optimizer is "em", but networks make the tables of this model ("{model.config.family}"), which '
            'have no maximum in closed form.\n  Set model.neural=false, or train.optimizer="adamw".'
        )
    kinds: dict[str, Callable[[Any], Tables]] = {"block": BlockTables, "rank": RankTables}
    return kinds.get(model.config.family, StateTables)(model)


class BatchEM:
    """A step of EM for each update of a run: over its batches, and with momentum on running counts of all updates."""

    def __init__(
        self,
        model: HMM | RankHMM | BlockHMM,
        optimizer: torch.optim.Optimizer,
        config: Config,
        budget: Budget,
        not_finite: Callable[[list[Batch], str], DomainError],
        num_tokens: int,
    ) -> None:
        self.model, self.optimizer, self.config, self.not_finite = model, optimizer, config, not_finite
        self.tables = tables_of(model)
        self.prior, self.num_tokens, self.part_tokens = Prior(config.train.smoothing), num_tokens, budget.part_tokens
        self.carried: Counts | None = None  # running counts, of as many tokens as the training set has

    def carried_of(self, tensors: Sequence[Tensor]) -> Counts:
        """The running counts of a checkpoint."""
        return tuple(tensors)

    @torch.no_grad()
    def __call__(self, batches: list[Batch], tokens: int, update: int) -> tuple[float, float]:
        """The log-likelihood before the step; there is no gradient, and its norm is 0."""
        precision = parameter_precision(self.config.train.precision)
        total, counts = 0.0, None
        with matmul_precision(precision, self.model.device):
            parts = self.model.parts()
            for batch in batches:
                for rows in row_parts(batch, self.part_tokens):
                    log_z, own = self.tables.count(batch.rows(rows).to(self.model.device), parts)
                    if not bool(log_z.isfinite().all()):
                        raise self.not_finite([batch], f"its log-likelihood is {float(log_z.sum())}")
                    total += float(log_z.sum())
                    counts = own if counts is None else tuple(x + y for x, y in zip(counts, own, strict=True))
        assert counts is not None
        counts = tuple(x * (self.num_tokens / tokens) for x in counts)
        if self.config.train.momentum:
            before = self.tables.as_counts(counts) if self.carried is None else self.carried
            counts = self.carried = mix(before, counts, new_share(self.config, self.optimizer))
        self.tables.maximise(counts, self.prior)
        return total, 0.0


def new_share(config: Config, optimizer: torch.optim.Optimizer) -> float:
    """The share of an update's counts in the running ones: 1 - momentum, times what the schedule leaves of `lr`."""
    rate: float = optimizer.param_groups[0]["lr"]
    return (1 - config.train.momentum) * rate / config.train.lr
