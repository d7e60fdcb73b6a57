"""Dynamics of a semi-Markov model in rank space: what follows a segment is drawn through states that are summed out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.errors import UnsupportedError
from rankfold.operators import LowRank, Operator, Product
from rankfold.params.dynamics.free_tables import Dynamics
from rankfold.params.networks import normal
from rankfold.params.prior import Prior, Table, log_shares


class RankSpace(nn.Module):
    """z_1 ~ start;  r_k ~ rank(. | z_k);  a segment of rank r_k: how long, which frames;  z_k+1 ~ state(. | r_k).

    A chain over ranks: the first is drawn from start U, the next from V^T U, and no state is left. V^T U is multiplied
    out once where there are at least as many states as ranks. Logits are free, or products with `projection` "r d",
    which U and V share. Source: Yang, Liu, Tu 2022, sec. 4 and App. B.
    """

    self_transitions = True

    def __init__(
        self, log_start: Tensor, log_rank: Tensor, log_state: Tensor, projection: Tensor | None = None
    ) -> None:  # "n", "n r" and "n r"; with a projection "n d" and "n d"
        super().__init__()
        self.log_start, self.log_rank, self.log_state = (nn.Parameter(x) for x in (log_start, log_rank, log_state))
        self.projection = None if projection is None else nn.Parameter(projection)

    @classmethod
    def draw(cls, num_states: int, num_ranks: int, dim: int | None, *, generator: torch.Generator) -> RankSpace:
        """Random logits; `dim`: of the vectors whose products they are."""
        start = torch.zeros(num_states, dtype=torch.float32)
        if dim is None:
            return cls(start, *(normal(num_states, num_ranks, generator=generator).data for _ in range(2)))
        factors = (normal(size, dim, generator=generator).data for size in (num_states, num_states, num_ranks))
        rank, state, projection = factors
        return cls(start, rank, state, projection / dim**0.5)

    def tables(self) -> dict[str, Table]:
        """The three distributions, by name."""
        start, rank, state = (x.detach().double() for x in self._factors())
        return {"start": Table(start, 0), "rank": Table(rank, 1), "state": Table(state, 0)}

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:  # "n", "n r", "n r"
        log_rank, log_state = (
            x if self.projection is None else x @ self.projection.mT for x in (self.log_rank, self.log_state)
        )
        return self.log_start.softmax(0), log_rank.softmax(1), log_state.softmax(0)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        if keep is not None or keep_features is not None or stays is not None:
            raise UnsupportedError("dropout of states came, but a model in rank space has none left to drop.")
        start, rank, state = self._factors()
        left, right = state.mT, rank.mT  # "r n", "r n"
        transition: Operator = LowRank.unchecked(left, right)
        if len(start) >= len(left):
            transition = Product(left, right)
        return Dynamics(torch.log(start @ rank), transition)

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "r", ("r n", "r n")
        """The expected uses of the tables, the states between ranks being hidden: "n", "n r", "n r"."""
        start, rank, _ = (x.value for x in self.tables().values())
        states, ranks = (x.double().mT for x in uses)
        reached = start @ rank
        share = torch.where(reached > 0, initial.double() / torch.where(reached > 0, reached, 1.0), 0.0)
        first = start[:, None] * rank * share
        return first.sum(1), ranks + first, states

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The shares, with `smoothing` of each; distributions without any use stay as they are."""
        for own, used, axis in zip((self.log_start, self.log_rank, self.log_state), counts, (0, 1, 0), strict=True):
            own.copy_(log_shares(used, own, axis, prior.smoothing))

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the Dirichlet prior, up to a constant; 0 without one."""
        if not prior.smoothing:
            return self.log_start.new_zeros((), dtype=torch.float64)
        logs = (
            self.log_start.double().log_softmax(0),
            self.log_rank.double().log_softmax(1),
            self.log_state.double().log_softmax(0),
        )
        return prior.smoothing * torch.stack([x.sum() for x in logs]).sum()

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:
        """Tables stay as they were drawn: which states there are, nobody knows before EM."""

    def fill(
        self, *, start: Tensor | None = None, rank: Tensor | None = None, state: Tensor | None = None
    ) -> None:  # "n", "n r", "n r"
        """Set the distributions; of free tables alone."""
        if self.projection is not None:
            raise UnsupportedError("the tables are those of a network: set model.neural = false to fill them.")
        with torch.no_grad():
            for own, table in ((self.log_start, start), (self.log_rank, rank), (self.log_state, state)):
                if table is not None:
                    own.copy_(table.log())
