"""EM for models of words in free tables: steps over all sentences, or over the batches of an update.

Mini-batch EM keeps running expected counts and moves them towards those of each update (Cappe, Moulines 2009; with a
constant share it is the momentum of Liu et al. 2025). The M step is that of EM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.counts import ChainCounts, expected_counts
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.block_hmm import BlockHMM
from rankfold.models.rank_hmm import RankHMM
from rankfold.models.sequence import HMM
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.params.block_sparse import FreeBlockParts
from rankfold.params.dynamics.rank_factors import FreeRankFactors
from rankfold.params.observations.categorical import CategoricalObservation
from rankfold.params.prior import Prior, Table
from rankfold.training.config import Config
from rankfold.training.distributed import add_up, own_rows, shared_total, total_of
from rankfold.training.gradients import row_parts
from rankfold.training.graphs import Graphs, graphs_serve
from rankfold.training.memory_budget import Budget
from rankfold.training.shapes import Shapes, shapes_of

Counts = tuple[Tensor, ...]


def mix(before: Counts, found: Counts, share: float) -> Counts:
    """Running counts, moved by a share of the way to new ones."""
    return tuple(torch.lerp(x, y, share) for x, y in zip(before, found, strict=True))


class Tables(Protocol):
    """The free tables of a model of words: how often they are used, and their maximum."""

    def zeros(self) -> Counts: ...  # float64; the words' last
    def count(
        self, batch: Batch, parts: Any, sums: Counts, weight: Tensor | None = None, precision: Precision = "float32"
    ) -> Tensor:  # weight "b" -> log Z "b"
        """Add the expected counts of a batch to the sums, each sequence as often as its weight says."""

    def maximise(self, counts: Counts, prior: Prior) -> None: ...
    def as_counts(self, counts: Counts) -> Counts: ...  # the tables themselves, as if used as often as in these counts


class StateTables:
    """Of an HMM: start, transitions (dense, low-rank, banded), and the words of every state."""

    def __init__(self, model: HMM) -> None:
        self.model, self.dynamics = model, cast(Any, model.dynamics)
        self.observation = CategoricalObservation(cast(Any, model.emission))

    def _tables(self) -> list[Table]:
        return [*self.dynamics.tables().values(), *self.observation.tables().values()]

    def zeros(self) -> Counts:
        return _zeros(self._tables())

    def count(
        self, batch: Batch, parts: Any, sums: Counts, weight: Tensor | None = None, precision: Precision = "float32"
    ) -> Tensor:
        counts: ChainCounts = expected_counts(self.model.potentials(batch, parts=parts), precision, weight=weight)
        for own, new in zip(sums[:-1], self.dynamics.count(counts.initial, counts.transition), strict=True):
            own += new
        _add_words(sums[-1].mT, batch, counts.state)
        return counts.log_z

    def maximise(self, counts: Counts, prior: Prior) -> None:
        self.dynamics.maximise(counts[:-1], prior)
        self.observation.maximise(counts[-1], prior)

    def as_counts(self, counts: Counts) -> Counts:
        return _as_counts(self._tables(), counts)


class RankTables:
    """Of a rank-space HMM: start, ranks given states, states given ranks, and the words of every rank."""

    def __init__(self, model: RankHMM) -> None:
        self.model, self.factors = model, cast(FreeRankFactors, model.factors)

    def zeros(self) -> Counts:
        return _zeros([*self.factors.tables().values()])

    def count(
        self, batch: Batch, parts: Any, sums: Counts, weight: Tensor | None = None, precision: Precision = "float32"
    ) -> Tensor:
        counts = expected_counts(self.model.potentials(batch, parts=parts), precision, weight=weight)
        for own, new in zip(sums[:-1], self.factors.count(counts.initial, counts.transition), strict=True):
            own += new
        _add_words(sums[-1].mT, batch, counts.state)
        return counts.log_z

    def maximise(self, counts: Counts, prior: Prior) -> None:
        self.factors.maximise(counts, prior)

    def as_counts(self, counts: Counts) -> Counts:
        return _as_counts(tuple(self.factors.tables().values()), counts)


def _zeros(tables: Sequence[Table]) -> Counts:
    """No uses of any table; those of words lie word by word, as they are added."""
    *others, words = (x.value for x in tables)
    return (*(torch.zeros_like(x) for x in others), words.new_zeros(words.shape[::-1]).mT)


def _add_words(sums: Tensor, batch: Batch, state: Tensor) -> None:  # "v z", "b t z"
    """Add the posteriors of all positions to those of their words; by position, as the recursion lays them out."""
    sums.index_add_(0, batch.values.mT.flatten(), state.transpose(0, 1).flatten(0, 1).double())


def _as_counts(tables: Sequence[Table], counts: Counts) -> Counts:
    """Distributions, each times the uses of all its entries."""
    return tuple(table.value * own.sum(table.axis, keepdim=True) for table, own in zip(tables, counts, strict=True))


class BlockTables:
    """Of an HMM with block-sparse emissions: a word is counted by the states of its cluster alone."""

    def __init__(self, model: BlockHMM) -> None:
        self.model, self.blocks = model, cast(FreeBlockParts, model.blocks)

    def zeros(self) -> Counts:
        own = self.blocks.log_initial, self.blocks.log_transition, self.blocks.log_emission
        return tuple(torch.zeros_like(x, dtype=torch.float64) for x in own)

    def count(
        self, batch: Batch, parts: Any, sums: Counts, weight: Tensor | None = None, precision: Precision = "float32"
    ) -> Tensor:
        p = self.model.potentials(batch, parts=parts)
        counts, (initial, transition, words) = expected_counts(p, precision, weight=weight), sums
        initial.index_add_(0, p.block[:, 0], counts.initial.double())
        num, size = initial.shape
        pairs = initial.new_zeros(num * num, size, size)
        pairs.index_add_(
            0, (p.block[:, :-1] * num + p.block[:, 1:]).flatten(), counts.transition.double().flatten(0, 1)
        )
        transition += pairs.reshape(num, num, size, size).transpose(1, 2)  # "c k c k"
        _add_words(words, batch, counts.state)
        return counts.log_z

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


class GraphedCounts(Graphs):
    """Adds the expected counts of a batch to `sums`, shape by shape from a captured graph."""

    def __init__(
        self, model: Model[Any, Any], tables: Tables, sums: Counts, filled: Shapes, precision: Precision
    ) -> None:
        super().__init__(model, filled, precision)
        self.tables, self.sums = tables, sums
        self.shapes: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Batch, Tensor, Tensor]] = {}

    def __call__(self, batch: Batch, weight: float) -> Tensor:  # ""   float64
        """The log-likelihood, NaN where a graph cannot vouch for the counts; another call overwrites it."""
        shape = self.filled.of(batch)
        assert shape is not None, "takes() said no"
        if shape not in self.shapes:
            self.shapes[shape] = self._capture(shape, batch)
        graph, inputs, weights, log_likelihood = self.shapes[shape]
        self._write(batch, inputs, weights, weight)
        graph.replay()
        return log_likelihood

    def _capture(self, shape: tuple[int, int], like: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor, Tensor]:
        batch, weight = self._inputs(shape, like)

        def add() -> Tensor:
            with matmul_precision(parameter_precision(self.precision), self.model.device):
                parts = self.model.capturable_parts()
                log_z = self.tables.count(batch, parts, self.sums, weight, self.precision)
            # Posteriors in doubt are NaN in the start, too; uses of the transition may be too large.
            lost = ~torch.stack([x.sum() for x in self.sums[:-1]]).isfinite().all()
            return torch.where(weight > 0, log_z, 0.0).sum().masked_fill(lost, float("nan"))

        graph, log_likelihood = self._record(add, self.sums)
        return graph, batch, weight, log_likelihood


class BatchEM:
    """A step of EM for each update of a run: over its batches, and with momentum on running counts of all updates.

    On a GPU the counts come from captured graphs where they can. Distributions in linear space are computed in float64
    where float32 would lose a probability, which a graph cannot see: models that have some are counted without graphs.
    """

    def __init__(
        self,
        model: HMM | RankHMM | BlockHMM,
        optimizer: torch.optim.Optimizer,
        config: Config,
        budget: Budget,
        not_finite: Callable[[list[Batch], str], DomainError],
        num_tokens: int,
    ) -> None:
        self.model: Model[Any, Any] = model
        self.optimizer, self.config, self.not_finite = optimizer, config, not_finite
        self.tables = tables_of(model)
        self.prior, self.num_tokens, self.part_tokens = Prior(config.train.smoothing), num_tokens, budget.part_tokens
        self.sums = self.tables.zeros()  # the counts of an update, of as many tokens as the training set has
        self.carried: Counts | None = None  # running counts, of as many
        self.graphs: GraphedCounts | None = None
        if budget.graphs and graphs_serve(config, self.model.device.type) and not self._has_linear_shares():
            filled = shapes_of(config, self.part_tokens)
            self.graphs = GraphedCounts(self.model, self.tables, self.sums, filled, config.train.precision)

    @torch.no_grad()
    def _has_linear_shares(self) -> bool:
        return bool(self.model.shares(self.model.own_parts()).linear)

    def carried_of(self, tensors: Sequence[Tensor]) -> Counts:
        """The running counts of a checkpoint, laid out as the sums."""
        return tuple(torch.empty_like(own).copy_(x) for own, x in zip(self.sums, tensors, strict=True))

    def whole_carried(self) -> Counts | None:
        """The running counts, the same on every process."""
        return self.carried

    def own_carried(self, carried: Counts | None) -> Counts | None:
        """The same."""
        return carried

    @torch.no_grad()
    def __call__(self, batches: list[Batch], tokens: int, update: int) -> tuple[float, float]:
        """The log-likelihood before the step; there is no gradient, and its norm is 0."""
        weight = self.num_tokens / tokens
        batches = [own_rows(batch) for batch in batches]
        parts = [batch.rows(rows) for batch in batches for rows in self._rows(batch)]
        total = math.nan
        if self.graphs is not None:
            takes = all(map(self.graphs.takes, parts))
            (total,) = total_of([self._replayed(self.graphs, parts, weight) if takes else math.nan])
        if not math.isfinite(total):
            total = shared_total(lambda: self._counted(parts, weight))
        add_up(self.sums)
        counts = self.sums
        if self.config.train.momentum:
            if self.carried is None:
                self.carried = self.carried_of(self.tables.as_counts(counts))
            share = new_share(self.config, self.optimizer)
            for own, new in zip(self.carried, counts, strict=True):
                own.lerp_(new, share)
            counts = self.carried
        self.tables.maximise(counts, self.prior)
        return total, 0.0

    def _rows(self, batch: Batch) -> list[slice]:
        multiple = 1 if self.graphs is None else self.graphs.filled.multiple(batch.shape[1])
        return row_parts(batch, self.part_tokens, multiple)

    def _replayed(self, graphs: GraphedCounts, parts: Sequence[Batch], weight: float) -> float:
        """Set the sums to the counts of all parts, by graphs; their log-likelihood. The host waits once."""
        self._forget()
        total = torch.zeros((), dtype=torch.float64, device=self.model.device)
        for part in parts:
            total += graphs(part, weight)  # read before another replay writes it again
        return float(total)

    def _counted(self, parts: Sequence[Batch], weight: float) -> float:
        """The same without graphs, each sequence in the arithmetic it needs."""
        self._forget()
        device, precision, total = self.model.device, self.config.train.precision, 0.0
        with matmul_precision(parameter_precision(precision), device):
            made = self.model.parts()
            for part in parts:
                weights = torch.full((len(part.lengths),), weight, dtype=torch.float64, device=device)
                value = float(self.tables.count(part.to(device), made, self.sums, weights, precision).sum())
                if not math.isfinite(value):
                    raise self.not_finite([part], f"its log-likelihood is {value}")
                total += value
        return total

    def _forget(self) -> None:
        for x in self.sums:
            x.zero_()


def new_share(config: Config, optimizer: torch.optim.Optimizer) -> float:
    """The share of an update's counts in the running ones: 1 - momentum, times what the schedule leaves of `lr`."""
    rate: float = optimizer.param_groups[0]["lr"]
    return (1 - config.train.momentum) * rate / config.train.lr
