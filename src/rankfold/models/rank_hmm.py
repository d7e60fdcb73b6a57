"""The rank-space HMM: words come from ranks, and the states between two ranks are summed out.

    p(x, r) = (start U)[r_1] W[r_1, x_1]  prod_t  T[r_t-1, r_t] W[r_t, x_t]          T = V^T U

A chain over ranks. T is multiplied out once ("rank": z r^2, then r^2 per token), or applied as two thin products
("state": 2 z r per token): the same numbers, and `plan` says which is cheaper. Posteriors, tags and best paths are of
ranks: no state is left to ask about. Source: Yang, Liu, Tu 2022, sec. 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.models.base import Context, Shares
from rankfold.models.config import ModelConfig, PlanName
from rankfold.models.sequence import ChainModel
from rankfold.numerics.log_space import log_weights
from rankfold.numerics.precision import Precision
from rankfold.operators import Dense, LowRank, Operator, Product
from rankfold.operators.product import multiply_out
from rankfold.params.dynamics.rank_factors import Factors, FreeRankFactors, RankFactors
from rankfold.params.observations.categorical import Emission
from rankfold.planning.chains import rank_plans
from rankfold.planning.cost import Plans
from rankfold.recursions.chain.potentials import ChainPotentials


class RankParts(NamedTuple):
    """The factors, and products computed from them so far, which batches share."""

    log_initial: Tensor  # "r"
    factors: Factors
    multiplied: list[Operator]  # V^T U, once a batch asked for it without a gradient to follow

    @property
    def emission(self) -> Emission:
        """Words given ranks."""
        return self.factors.emission

    def transition(self, order: PlanName) -> Operator:
        """V^T U, multiplied out or not."""
        left, right = self.factors.state.mT, self.factors.rank.mT  # "r z", "r z"
        if order == "state":
            return LowRank.unchecked(left, right)
        if torch.is_grad_enabled():
            return Product(left, right)
        if not self.multiplied:
            self.multiplied.append(Dense.unchecked(multiply_out(left, right)))
        return self.multiplied[0]


class RankHMM(ChainModel[RankParts]):
    """Family "rank"."""

    of = "ranks"

    def __init__(self, config: ModelConfig, factors: RankFactors | FreeRankFactors, num_words: int) -> None:
        super().__init__()
        self.config, self.factors, self.num_words = config, factors, num_words

    def shares(self, parts: RankParts) -> Shares:
        return Shares([parts.factors.rank, parts.factors.state], [parts.log_initial])

    def own_parts(self, generator: torch.Generator | None = None) -> RankParts:
        factors = self.factors(self.config.logit_dropout, generator)
        return RankParts(log_weights(factors.first), factors, [])

    def own_potentials(
        self, batch: Batch, parts: RankParts, context: Context, plan: PlanName | None = None
    ) -> ChainPotentials:
        log_obs, carried = parts.emission.log_obs(batch.values), context.carried
        log_initial = parts.log_initial if carried is None else carried[: len(batch.values)]
        transition = parts.transition(self.cheapest(plan or self.config.plan, batch))
        return ChainPotentials(log_initial, transition, log_obs, lengths=batch.lengths)

    def transition_rows(self, parts: RankParts, index: Tensor) -> Tensor:  # "k" -> "k r"
        return parts.transition("state").log_rows(index)

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        config = self.config
        dim = config.dim if config.neural else 0
        return rank_plans(
            config.num_states, config.rank, self.num_words, dim, batch, length, device, precision, self.num_parameters
        )
