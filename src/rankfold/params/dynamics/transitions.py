"""Transitions by networks: softmax, low-rank, and low-rank plus banded.

Every row sums to 1, over the states that are kept. Start and transitions share the embeddings of the target.
Dropped states leave by their index (`keep`: smaller tables) or by a mask (`stays`: all states keep their number, the
dropped ones are never a target). Weights below the dtype's smallest number become 0.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from rankfold.kernels.linear_softmax import SoftmaxTable, linear_softmax
from rankfold.numerics.log_space import log_weights
from rankfold.numerics.shard import Shard
from rankfold.operators import Banded, Dense, LowRank, Operator, Sum
from rankfold.operators.sharded import ShardedDense, ShardedLowRank
from rankfold.params.dynamics.factorial import FreeKronecker
from rankfold.params.dynamics.features import FeatureKind, FeatureMap, FreeFeatures
from rankfold.params.dynamics.free_tables import Dynamics, FreeDense, FreeLowRank, apart
from rankfold.params.dynamics.hierarchy import FreeHierarchy
from rankfold.params.dynamics.rank_dynamics import RankSpace
from rankfold.params.networks import InitKind, free_logits, residual_mlp, take_rows, xavier
from rankfold.params.prior import Prior, Table, log_shares, shares


class Start(nn.Module):
    """The vector that stands for "before the first state": f1(e), f1 a linear and `num_layers` residual layers."""

    def __init__(self, dim: int, num_layers: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(dim, generator=generator, dtype=torch.float32))
        self.mlp = residual_mlp(dim, num_layers, leading=True, generator=generator)

    def forward(self) -> Tensor:  # "d"
        out: Tensor = self.mlp(self.embedding)
        return out


class FreeStart(nn.Module):
    """The same without a network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.zeros(dim, dtype=torch.float32))

    def forward(self) -> Tensor:  # "d"
        return self.embedding


class SoftmaxTransition(nn.Module):
    """A[z, y] = softmax_y(u_z . v_y), initial[y] = softmax_y(f1(e) . v_y).   Cost: z^2 d multiply-adds, memory z^2.

    Source: Chiu, Deng, Rush 2021, the softmax HMM.
    """

    state_tables = ("source", "target")
    shard: Shard | None = None  # of the states, where other processes have the rest of them

    def __init__(self, num_states: int, dim: int, num_layers: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.start = Start(dim, num_layers, generator=generator)
        self.source = xavier(num_states, dim, generator=generator)
        self.target = xavier(num_states, dim, generator=generator)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        if self.shard is not None:
            return self._in_shards(self.shard, stays)
        transition = self.matrix(keep, keep_features, stays)
        logits = take_rows(self.target, keep) @ self.start()
        return Dynamics(torch.log_softmax(_masked(logits, stays), 0), transition)

    def _in_shards(self, shard: Shard, stays: Tensor | None) -> Dynamics:
        """The same of its own states: their rows need the targets of all, "z d" numbers, once."""
        logits = _masked(self.target @ self.start(), shard.cut(stays))
        bias = None if stays is None else torch.where(stays, 0.0, float("-inf"))
        table = linear_softmax(self.source, shard.gather(self.target.mT).mT.contiguous(), bias)
        return Dynamics(shard.log_softmax(logits), ShardedDense.unchecked(table.share, shard))

    def matrix(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dense:  # "z z"
        """The transition alone, for models whose start is their own."""
        bias = None if stays is None else torch.where(stays, 0.0, float("-inf"))
        table = linear_softmax(take_rows(self.source, keep), take_rows(self.target, keep), bias)
        return Dense.unchecked(table.share, table.rounded)


class RankedChoices(nn.Module):
    """EM of free features, in which a transition is two draws: z chooses a rank, or a cell of its band; a rank a state.

    The start chooses a rank, too. The rank is hidden, and its expected uses are counted: no step lowers the likelihood.
    """

    def logits(self) -> tuple[Tensor, Tensor, Tensor]:  # "r", "z c", "y r"
        """Unnormalised logarithms of the start's choice, of every state's (ranks, then cells), of every rank's."""
        raise NotImplementedError

    def set_logits(self, start: Tensor, choice: Tensor, target: Tensor) -> None:
        """Set all three, which are normalised."""
        raise NotImplementedError

    def outside(self) -> Tensor | None:  # "z k" bool
        """The cells of the band that lie outside the matrix; None without a band."""
        return None

    def tables(self) -> dict[str, Table]:
        """The three distributions, by name."""
        start, choice, target = (x.detach().double() for x in self.logits())
        return {
            "start": Table(start.softmax(0), 0),
            "choice": Table(choice.softmax(1), 1),
            "target": Table(target.softmax(0), 0),
        }

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "r", "z c", "y r"
        """The expected uses of the tables, from those of the first state and of the operator's factors."""
        left, right, *band = (x.double() for x in uses)
        start, target = (self.tables()[name].value for name in ("start", "target"))
        first = initial.double()[:, None] * shares(start * target)  # "y r"   the rank that chose the first state
        return first.sum(0), torch.cat([left, *band], 1), right + first

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The shares of all choices, with `smoothing` of each; those without any use stay as they are."""
        start, choice, target = (x + prior.smoothing for x in counts)
        if (cells := self.outside()) is not None:
            choice = torch.cat([choice[:, : -cells.shape[1]], choice[:, -cells.shape[1] :].masked_fill(cells, 0.0)], 1)
        before = [x.double().log_softmax(axis) for x, axis in zip(self.logits(), (0, 1, 0), strict=True)]
        found = zip((start, choice, target), before, (0, 1, 0), strict=True)
        self.set_logits(*(log_shares(*each) for each in found))


class LowRankTransition(RankedChoices):
    """A[z, y] = phi(u_z) . phi(v_y) / phi(u_z) . sum_y' phi(v_y'): the generalised softmax, of rank r.

    Normalised without ever writing A: with s_r = sum_y phi_r(v_y),

        left[z, r] = softmax_r(log phi_r(u_z) + log s_r)    right[y, r] = softmax_y(log phi_r(v_y))    A = left right^T

    so r is a hidden choice with p(r | z) and p(y | r). The first state likewise, from phi(f1(e)).
    Cost: 2 z d r multiply-adds for the factors. Source: Chiu, Deng, Rush 2021, eq. 10.
    """

    state_tables = ("source", "target")
    shard: Shard | None = None  # of the states, where other processes have the rest of them

    def __init__(
        self,
        num_states: int,
        rank: int,
        dim: int,
        num_layers: int,
        *,
        feature_map: FeatureKind = "exp",
        neural: bool = True,
        init: InitKind = "spread",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        size = dim if neural else rank
        self.start: Start | FreeStart = Start(dim, num_layers, generator=generator) if neural else FreeStart(size)
        draw = xavier if neural else partial(free_logits, init=init)
        self.source = draw(num_states, size, generator=generator)
        self.target = draw(num_states, size, generator=generator)
        self.features: FeatureMap | FreeFeatures = (
            FeatureMap(dim, rank, kind=feature_map, generator=generator) if neural else FreeFeatures()
        )

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        initial, right = self.targets(keep, keep_features, stays)
        left = self.features.by_state(take_rows(self.source, keep), right.log_total, keep_features)
        if self.shard is not None:
            return Dynamics(
                log_weights(initial), ShardedLowRank.unchecked(left.share, right.share.mT.contiguous(), self.shard)
            )
        rounded = left.rounded, right.rounded
        return Dynamics(log_weights(initial), LowRank.unchecked(left.share, right.share.mT, rounded))

    def matrix(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> LowRank:  # "z z"
        """The transition alone, for models whose start is their own."""
        table = self.features.by_rank(take_rows(self.target, keep), keep_features, stays)
        left = self.features.by_state(take_rows(self.source, keep), table.log_total, keep_features)
        return LowRank.unchecked(left.share, table.share.mT, (left.rounded, table.rounded))

    def targets(
        self, keep: Tensor | None, keep_features: Tensor | None, stays: Tensor | None = None
    ) -> tuple[Tensor, SoftmaxTable]:  # "y"; "r y", "r"
        """The first state's distribution; share[r, y] = p(y | r) and log s_r, the factor of a source's phi_r.

        Dropped states leave by their index (`keep`) or, where numbers or shapes must stay, by a mask (`stays`).
        """
        if self.shard is None:
            table = self.features.by_rank(take_rows(self.target, keep), keep_features, stays)
        else:
            log_phi = _masked(self.features(self.target, keep_features).mT, self.shard.cut(stays))
            table = SoftmaxTable(*self.shard.softmax(log_phi))
        logits = self.features(self.start(), keep_features) + table.log_total
        # In float64: one row of float32 is left to a single warp of a GPU, which takes four times as long.
        start = torch.softmax(logits.double(), 0).to(logits.dtype)
        return table.mix(start), table

    def logits(self) -> tuple[Tensor, Tensor, Tensor]:  # "r", "z r", "y r"
        log_total = torch.logsumexp(self.target, 0)
        return self.start() + log_total, self.source + log_total, self.target

    def set_logits(self, start: Tensor, choice: Tensor, target: Tensor) -> None:
        for own, x in ((self.start.embedding, start), (self.source, choice), (self.target, target)):
            own.copy_(x)


class BandedTransition(RankedChoices):
    """A[z, y] proportional to phi(u_z) . phi(v_y) + exp(theta[z, y - z]) for |y - z| <= band.

    Neighbours in the numbering get weights of their own, which no low rank can give. Cells outside the matrix have
    no weight, so rows near the edges are normalised over fewer cells. A kept subset of states is masked before
    rows are normalised: neighbours stay neighbours, dropped states have no weight and no mass.
    Cost: the low-rank transition's, plus z (2 band + 1). Source: Chiu, Deng, Rush 2021, App. I.
    """

    @property
    def source(self) -> nn.Parameter:  # "z d"
        """The embeddings of states as sources."""
        return self.low_rank.source

    def __init__(
        self,
        num_states: int,
        rank: int,
        dim: int,
        num_layers: int,
        *,
        band: int,
        band_init: float | None = None,
        feature_map: FeatureKind = "exp",
        neural: bool = True,
        init: InitKind = "spread",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.low_rank = LowRankTransition(
            num_states, rank, dim, num_layers, feature_map=feature_map, neural=neural, init=init, generator=generator
        )
        self.reach = min(band, num_states - 1)
        width = 2 * self.reach + 1
        # By default band and low rank begin with about the same mass: phi . phi is about r, and a row has z of them.
        level = math.log(rank * num_states / width) if band_init is None else band_init
        self.log_band = nn.Parameter(xavier(num_states, width, generator=generator).data + level)
        column = torch.arange(num_states)[:, None] - self.reach + torch.arange(width)
        self.column: Tensor
        self.register_buffer("column", column, persistent=False)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        num_states = len(self.log_band)
        allowed = ~self.outside()
        if keep is not None:
            stays = torch.zeros(num_states, dtype=torch.bool, device=allowed.device).index_fill(0, keep, True)
        if stays is not None:
            # Dropped targets leave the low-rank sums and the band; dropped sources are never reached.
            allowed &= stays[self.column.clamp(0, num_states - 1)]
        initial, right = self.low_rank.targets(None, keep_features, stays)
        log_left = self.low_rank.features(self.low_rank.source, keep_features) + right.log_total  # "z r"
        log_band = self.log_band.masked_fill(~allowed, float("-inf"))
        log_row = torch.logsumexp(torch.cat([log_left, log_band], 1), 1, keepdim=True)
        terms: list[Operator] = [
            LowRank.unchecked(torch.exp(log_left - log_row), right.share.mT),
            Banded.unchecked(torch.exp(log_band - log_row), -self.reach),
        ]
        return Dynamics(log_weights(initial), Sum(terms))

    def logits(self) -> tuple[Tensor, Tensor, Tensor]:  # "r", "z (r k)", "y r"
        start, choice, target = self.low_rank.logits()
        return start, torch.cat([choice, self.log_band.masked_fill(self.outside(), float("-inf"))], 1), target

    def outside(self) -> Tensor:  # "z k" bool
        return (self.column < 0) | (self.column >= len(self.log_band))

    def set_logits(self, start: Tensor, choice: Tensor, target: Tensor) -> None:
        rank = target.shape[1]
        self.low_rank.set_logits(start, choice[:, :rank], target)
        self.log_band.copy_(choice[:, rank:])


class NeuralDynamics(nn.Module):
    """The transitions of the models of words, softmax or low-rank; the start their own or a free vector."""

    def __init__(
        self,
        transition: SoftmaxTransition | LowRankTransition,
        log_initial: Tensor | None,
        *,
        self_transitions: bool,
    ) -> None:  # "z"
        super().__init__()
        self.transition, self.self_transitions = transition, self_transitions
        self.log_initial = None if log_initial is None else nn.Parameter(log_initial)
        if log_initial is not None:
            del transition.start  # nobody asks for it, and parameters without a gradient would say that somebody does

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        if self.log_initial is None:
            log_initial, transition = self.transition(keep, keep_features, stays)
        else:
            log_initial = take_rows(self.log_initial, keep)
            if stays is not None:
                log_initial = log_initial.masked_fill(~stays, float("-inf"))
            log_initial = log_initial.log_softmax(0)
            transition = self.transition.matrix(keep, keep_features, stays)
        return Dynamics(log_initial, transition if self.self_transitions else apart(transition))


FrameDynamics = FreeDense | FreeLowRank | FreeKronecker | FreeHierarchy | RankSpace | NeuralDynamics


def _masked(logits: Tensor, stays: Tensor | None) -> Tensor:  # "... y"
    """Logits with -inf at the targets that are dropped."""
    return logits if stays is None else logits.masked_fill(~stays, float("-inf"))
