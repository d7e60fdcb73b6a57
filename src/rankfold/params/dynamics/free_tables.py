"""Initial distributions and transitions as free tables, with or without self-transitions.

Rows sum to 1 over the states that are kept. Without self-transitions no row is ever a difference: a dense one is
normalised over the others, a low-rank one summed over them by blocks. EM sets the tables to their expected uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.numerics.shard import Shard
from rankfold.operators import Dense, LowRank, Operator, RowScaled, WithoutDiagonal
from rankfold.operators.sharded import ShardedDense
from rankfold.params.networks import InitKind, free_logits, normal, take_rows
from rankfold.params.prior import Prior, Table, log_shares, shares, weighted_logs


class Dynamics(NamedTuple):
    """The distribution of the first state and of the next state given one."""

    log_initial: Tensor  # "z"
    transition: Operator  # "z z", rows sum to 1


class FreeDense(nn.Module):
    """initial = softmax(log_initial), A[z, y] = softmax_y(log_transition): logarithms of any range, -inf included.

    An entry of -inf stays so in training: a forbidden transition. Without self-transitions the diagonal is never read.
    """

    state_tables = ("log_initial", "log_transition")
    shard: Shard | None = None  # of the states, where other processes have the rest of them

    def __init__(
        self, log_initial: Tensor, log_transition: Tensor, *, self_transitions: bool = True
    ) -> None:  # "z", "z z"
        super().__init__()
        self.log_initial, self.log_transition = nn.Parameter(log_initial), nn.Parameter(log_transition)
        self.self_transitions = self_transitions

    @classmethod
    def draw(cls, num_states: int, init: InitKind = "spread", *, generator: torch.Generator) -> FreeDense:
        """Random logits around the uniform distribution."""
        start = torch.zeros(num_states, dtype=torch.float32)
        return cls(start, free_logits(num_states, num_states, init=init, generator=generator).data)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        if self.shard is not None:
            return self._in_shards(self.shard, stays)
        log_initial, logits = take_rows(self.log_initial, keep), take_rows(self.log_transition, keep)
        logits = logits if keep is None else logits.index_select(1, keep)
        if stays is not None:
            log_initial, logits = (x.masked_fill(~stays, float("-inf")) for x in (log_initial, logits))
        if not self.self_transitions:
            logits = logits.masked_fill(diagonal(logits), float("-inf"))
        return Dynamics(log_initial.log_softmax(0), Dense.from_log(logits.log_softmax(1)))

    def _in_shards(self, shard: Shard, stays: Tensor | None) -> Dynamics:
        """The same of its own states, whose rows are whole."""
        log_initial: Tensor = self.log_initial
        logits: Tensor = self.log_transition
        if stays is not None:
            log_initial = log_initial.masked_fill(~stays[shard.own], float("-inf"))
            logits = logits.masked_fill(~stays, float("-inf"))
        return Dynamics(shard.log_softmax(log_initial), ShardedDense.from_log(logits.log_softmax(1), shard))

    def logits(self) -> Tensor:  # "z y"
        """Those of the transitions, -inf where there is none."""
        logits = self.log_transition
        return logits if self.self_transitions else logits.masked_fill(diagonal(logits), float("-inf"))

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "z", "z y"
        """The expected uses of the tables, from those of the first state and of the operator's factors."""
        return initial.double(), uses[0].double()

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The share of each transition, with the prior's of those allowed; rows without any use stay as they are."""
        initial, transition = counts
        if "initial" not in prior.fixed:
            self.log_initial.copy_(log_shares(initial, self.log_initial, 0, prior.smoothing + prior.initial))
        if "transition" in prior.fixed:
            return
        added = prior.smoothing + prior.transition
        if prior.fixed_entries is not None:
            transition = self._allowed(transition + added, prior, 0.0)
            self.log_transition.copy_(self._around(prior.fixed_entries, transition))
            return
        if prior.forbidden is not None or not self.self_transitions:
            transition, added = self._allowed(transition + added, prior, 0.0), 0.0
        self.log_transition.copy_(log_shares(transition, self.log_transition, added=added))

    def _around(self, fixed: Tensor, counts: Tensor) -> Tensor:  # "z y" bool, "z y"
        """The shares of what the fixed entries of each row leave; where nothing is counted, the previous ones."""
        before = self.forward().transition.to_dense().detach().double()
        free = torch.where(fixed, 0.0, counts)
        free = torch.where(free.sum(1, keepdim=True) > 0, free, torch.where(fixed, 0.0, before))
        rest = torch.where(fixed, 0.0, before).sum(1, keepdim=True)
        return torch.where(fixed, before, rest * shares(free)).log()

    def hold(self, entries: Tensor, table: Tensor) -> None:  # "z y" bool, "z y"
        """Set some transitions to those of a table, the others in proportion to the rest; after a gradient step."""
        own = self.forward().transition.to_dense().detach().double()
        rest = torch.where(entries, 0.0, table).sum(1, keepdim=True)
        self.fill(transition=torch.where(entries, table, rest * shares(torch.where(entries, 0.0, own))))

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the Dirichlet prior, up to a constant; 0 without one."""
        if not any(isinstance(x, Tensor) or x for x in (prior.smoothing, prior.initial, prior.transition)):
            return self.log_initial.new_zeros((), dtype=torch.float64)
        log_initial, transition = self.log_initial.double(), self.log_transition.double()
        by_start, by_move = self.pseudo_counts(prior)
        found = log_initial.new_zeros(())
        if bool(by_start.any()):
            found = found + weighted_logs(by_start, log_initial.log_softmax(-1))
        if bool(by_move.any()):
            found = found + weighted_logs(by_move, self._allowed(transition, prior, float("-inf")).log_softmax(-1))
        return found

    def pseudo_counts(self, prior: Prior) -> tuple[Tensor, Tensor]:  # "z", "z y"   float64
        """The counts that a Dirichlet prior adds to starts and to the transitions that are allowed."""
        nothing = torch.zeros_like(self.log_transition, dtype=torch.float64)
        transition = self._allowed(nothing + prior.smoothing + prior.transition, prior, 0.0)
        return nothing[0] + prior.smoothing + prior.initial, transition

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:  # "t" each
        """A uniform start; transitions by how states followed one another (-1: unknown), random where none is known."""
        num_states, device = len(self.log_initial), self.log_initial.device
        counts = torch.ones(num_states, num_states, dtype=torch.float64, device=device)
        if runs:
            gap = torch.full((1,), -1, device=device)  # between two sequences nothing is known
            states = torch.cat([x for own in runs for x in (own, gap)])
            source, target = states[:-1], states[1:]
            known = (source >= 0) & (target >= 0)
            pairs = torch.bincount(source[known] * num_states + target[known], minlength=num_states**2)
            counts += pairs.reshape(num_states, num_states).to(counts)
        else:
            counts = counts + torch.from_numpy(rng.random((num_states, num_states))).to(counts)
        table = shares(self._allowed(counts, prior, 0.0))
        self.fill(initial=torch.full_like(counts[0], 1 / num_states), transition=table)

    def _allowed(self, x: Tensor, prior: Prior, otherwise: float) -> Tensor:  # "z y"
        x = x if self.self_transitions else x.masked_fill(diagonal(x), otherwise)
        return x if prior.forbidden is None else x.masked_fill(prior.forbidden, otherwise)

    def tables(self) -> dict[str, Table]:
        """The parameters by the names that `start=` and `fill` know them by."""
        dynamics = self.forward()
        initial, transition = dynamics.log_initial.detach().double().exp(), dynamics.transition.to_dense().detach()
        return {"initial": Table(initial, 0), "transition": Table(transition.double(), 1)}

    def fill(self, *, initial: Tensor | None = None, transition: Tensor | None = None) -> None:  # "z", "z y"
        """Set the distributions."""
        with torch.no_grad():
            if initial is not None:
                self.log_initial.copy_(initial.log())
            if transition is not None:
                self.log_transition.copy_(transition.log())

    def num_free(self, forbidden: Tensor | None = None) -> int:
        """The number of free parameters: one less for each distribution, none for forbidden transitions."""
        num_states = len(self.log_initial)
        never = torch.zeros_like(self.log_transition, dtype=torch.bool) if forbidden is None else forbidden
        never = never if self.self_transitions else never | diagonal(never)
        return num_states - 1 + num_states * (num_states - 1) - int(never.sum())


class FreeLowRank(nn.Module):
    """A[z, y] = sum_r p(r | z) p(y | r) from free logits of both.   Cost: 2 z r.

    Without self-transitions A[z, y] is that, for y != z, divided by its sum over them.
    """

    def __init__(
        self, log_initial: Tensor, log_left: Tensor, log_right: Tensor, *, self_transitions: bool
    ) -> None:  # "z", "z r", "y r"
        super().__init__()
        self.log_initial = nn.Parameter(log_initial)
        self.log_left, self.log_right = nn.Parameter(log_left), nn.Parameter(log_right)
        self.self_transitions = self_transitions

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        log_initial, left, right = (take_rows(x, keep) for x in (self.log_initial, self.log_left, self.log_right))
        if keep_features is not None:
            left, right = left.index_select(1, keep_features), right.index_select(1, keep_features)
        if stays is not None:
            log_initial = log_initial.masked_fill(~stays, float("-inf"))
            right = right.masked_fill(~stays[:, None], float("-inf"))
        transition = LowRank.unchecked(left.softmax(1), right.softmax(0))
        return Dynamics(log_initial.log_softmax(0), transition if self.self_transitions else apart(transition))

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "z", "z r", "y r"
        """The expected uses of the tables, a rank being hidden between two states.

        Without self-transitions a transition is a draw that is repeated until it leaves the state. The draws that did
        not are hidden too: for each departure from z, left[z, r] right[z, r] / (1 - their sum) of them are expected
        through rank r. With them counted, EM stays EM, and never decreases the likelihood.
        """
        left, right = (x.double() for x in uses[-2:])
        if not self.self_transitions:
            log_scale, p_left, p_right = (x.double() for x in self.forward().transition.factors())
            stayed = (left.sum(1) * log_scale.exp())[:, None] * p_left * p_right
            left, right = left + stayed, right + stayed
        return initial.double(), left, right

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The share of each rank and of each state, with `smoothing` of each; rows without any use stay as they are."""
        initial, left, right = (x + prior.smoothing for x in counts)
        if "initial" not in prior.fixed:
            self.log_initial.copy_(log_shares(initial + prior.initial, self.log_initial, 0))
        if "left" not in prior.fixed:
            self.log_left.copy_(log_shares(left, self.log_left))
        if "right" not in prior.fixed:
            self.log_right.copy_(log_shares(right, self.log_right, 0))

    def log_prior(self, prior: Prior) -> Tensor:  # ""   float64
        """The log-density of the Dirichlet prior, up to a constant; 0 without one."""
        found = self.log_initial.new_zeros((), dtype=torch.float64)
        log_initial = self.log_initial.double().log_softmax(0)
        if isinstance(prior.initial, Tensor) or prior.initial:
            found = found + weighted_logs(prior.initial, log_initial)
        if not prior.smoothing:
            return found
        tables = log_initial, self.log_left.double().log_softmax(1), self.log_right.double().log_softmax(0)
        return found + prior.smoothing * torch.stack([x.sum() for x in tables]).sum()

    def initialise(self, runs: Sequence[Tensor], prior: Prior, rng: np.random.Generator) -> None:  # "t" each
        """Ranks are groups of states that stay among themselves, more or less: EM has to find out which."""
        num_states, rank = self.log_left.shape
        group = torch.from_numpy(rng.permutation(num_states) % rank)
        near = (group[:, None] == torch.arange(rank)).double()
        left, right = (torch.from_numpy(rng.random((num_states, rank))) + near for _ in range(2))
        initial = torch.full((num_states,), 1 / num_states, dtype=torch.float64)
        self.fill(initial=initial, left=left / left.sum(1, keepdim=True), right=right / right.sum(0))

    def tables(self) -> dict[str, Table]:
        """The parameters by the names that `start=` and `fill` know them by."""
        initial, left, right = (x.detach().double() for x in (self.log_initial, self.log_left, self.log_right))
        return {
            "initial": Table(initial.softmax(0), 0),
            "left": Table(left.softmax(1), 1),
            "right": Table(right.softmax(0), 0),
        }

    def fill(
        self, *, initial: Tensor | None = None, left: Tensor | None = None, right: Tensor | None = None
    ) -> None:  # "z", "z r", "y r"
        """Set the distributions."""
        with torch.no_grad():
            for own, table in ((self.log_initial, initial), (self.log_left, left), (self.log_right, right)):
                if table is not None:
                    own.copy_(table.log())

    def num_free(self, forbidden: Tensor | None = None) -> int:
        """The dimension of the transitions, and of the start.

        Matrices of rank r have r (2 z - r), and z less where rows sum to 1: of the z (r - 1) + r (z - 1) numbers of two
        factors, M and its inverse between them change r (r - 1) without changing the product. Without a diagonal rows
        are known up to a factor, too; but there are never more than z (z - 2).
        """
        num_states, rank = len(self.log_left), min(self.log_left.shape)
        found = rank * (2 * num_states - rank) - num_states
        return num_states - 1 + (found if self.self_transitions else min(found, num_states * (num_states - 2)))


def apart(transition: Operator) -> Operator:
    """The matrix without its diagonal, rows divided by the sum of their other entries. Nothing is subtracted."""
    if isinstance(transition, Dense):
        (weight,) = transition.factors()
        weight = weight.masked_fill(diagonal(weight), 0.0)
        return Dense.unchecked(weight / weight.sum(1, keepdim=True))
    assert isinstance(transition, LowRank)
    others = WithoutDiagonal(transition)
    total = others.pull(torch.ones_like(transition.factors()[0][:, 0]))
    return RowScaled.from_log(others, -total.log())


def diagonal(like: Tensor) -> Tensor:  # "z z"   bool
    """True on the diagonal."""
    return torch.eye(len(like), dtype=torch.bool, device=like.device)


def draw_free(
    num_states: int, rank: int | None, *, self_transitions: bool, alike: bool, generator: torch.Generator
) -> FreeDense | FreeLowRank:
    """Fresh tables near uniform. `alike`: uniform transitions, and a start drawn from U(0, 1), the papers' HSMM.

    Low-rank factors are always drawn: ranks that begin alike stay alike.
    """
    start = torch.zeros(num_states, dtype=torch.float32)
    if alike:
        start = torch.rand(num_states, generator=generator, dtype=torch.float32)
    if rank is None:
        square = (num_states, num_states)
        table = (
            torch.zeros(square, dtype=torch.float32) if alike else normal(*square, spread=0.1, generator=generator).data
        )
        return FreeDense(start, table, self_transitions=self_transitions)
    left, right = (normal(num_states, rank, generator=generator).data for _ in range(2))
    return FreeLowRank(start, left, right, self_transitions=self_transitions)
