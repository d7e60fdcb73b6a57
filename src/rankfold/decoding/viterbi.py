"""Best state paths: exact, with the work they cost said openly.

A maximum does not pass through the sum over ranks, so low rank gives no speed-up here. What there is:
`viterbi`, exact, visiting a low-rank matrix in blocks; `joint_map`, another question, at low-rank cost;
exact posterior samples (`sample`). Read next: `recursions/chain/paths.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.kernels.log_products import max_matmul
from rankfold.operators import Banded, Dense, LowRank, MaxOperator, Operator, RowScaled
from rankfold.recursions.chain.paths import best_path
from rankfold.recursions.chain.potentials import Chain, ChainPotentials, validate
from rankfold.recursions.factor_gradients import doubled


class _PathAndProbability(NamedTuple):
    path: Tensor  # "b t"      -1 beyond the length, and throughout for an impossible sequence
    log_prob: Tensor  # "b"    float64, of path and observations together


class BestPath(_PathAndProbability):
    """A pair (path, log_prob); `plan` says which algorithm ran and what it cost."""

    plan: str


class JointPath(NamedTuple):
    """The best states and ranks together."""

    states: Tensor  # "b t"
    ranks: Tensor  # "b t-1"
    log_prob: Tensor  # "b"    float64, of states, ranks and observations together


def viterbi(p: ChainPotentials) -> BestPath:
    """The single most probable state path of each sequence, and its log-probability.

        argmax_{z_1..z_T}  log p(z_1..z_T, x)

    Exact for every operator. Dense: b t z y additions. Banded: b t z k. Low rank and sums: by blocks of rows
    that are never all in memory, t z y r shared by the batch plus b t z y. `.plan` says which it was.
    Ties go to the smallest state. Detached. Not the most probable state at each position: see `state_posterior`.
    """
    c = validate(p).detach()
    # Its logarithms, too: thousands of nats leave float32 no digits to compare.
    transition = doubled(c.transition)
    if not isinstance(transition, MaxOperator):
        raise UnsupportedError(
            f"viterbi asks {type(transition).__name__} for its best predecessors, but it has no push_max.\n"
            "  Derive it from its rows: inherit from rankfold.operators.row_operator.RowOperator."
        )

    def push(score: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        best, where = transition.push_max(score)
        return best, (where.int(),)  # half the memory of the back-pointers

    def follow(came: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        return (came[0].gather(1, state[:, None])[:, 0].long(),)

    with torch.no_grad():
        (path,), log_prob = best_path(c, push, follow)
    best = BestPath(path, log_prob)
    best.plan = plan(c)
    return best


def joint_map(p: ChainPotentials) -> JointPath:
    """The single most probable path of states and ranks together, for a low-rank transition.

        argmax_{z, r}  log initial[z_1] + sum_t log left[z_t, r_t] + log right[z_t+1, r_t] + log obs

    Cost: b t (z + y) r additions. A different question from `viterbi`: the best states of this path need
    not be the best states, because ranks are not summed out.
    """
    c = validate(p).detach()
    if not isinstance(c.transition, LowRank):
        raise UnsupportedError(
            f"joint_map asks for the ranks of a {type(c.transition).__name__}, but only LowRank has ranks.\n"
            "  Use viterbi(p)."
        )
    log_left, log_right = doubled(c.transition).log_pair()

    def push(score: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        by_rank, source = max_matmul(score, log_left)
        best, rank = max_matmul(by_rank, log_right.mT)
        return best, (source.int(), rank.int())

    def follow(came: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        rank = came[1].gather(1, state[:, None]).long()
        return came[0].gather(1, rank)[:, 0].long(), rank[:, 0]

    with torch.no_grad():
        (states, *ranks), log_prob = best_path(c, push, follow)
    none = states.new_empty(len(states), 0)
    return JointPath(states, ranks[0] if ranks else none, log_prob)


def plan(c: Chain) -> str:
    """Which algorithm finds the best path of this chain, and how many operations it takes."""
    num_sequences, num_positions, _ = c.log_obs.shape
    name, once, each = step_cost(c.transition)
    steps = num_positions - 1
    shared = f"{steps * once:,} multiply-adds shared by the batch + " if once else ""
    return f"exact, {name}: {shared}{num_sequences * steps * each:,} additions"


def step_cost(transition: Operator) -> tuple[str, int, int]:
    """Name, work a step shared by the batch, work a step and sequence."""
    cells = transition.shape[0] * transition.shape[1]
    if isinstance(transition, RowScaled):
        name, once, each = step_cost(transition.operator)
        return f"{name}, rows scaled", once, each + transition.shape[0]
    if isinstance(transition, Dense):
        return "dense", 0, cells
    if isinstance(transition, Banded):
        return "banded", 0, transition.shape[0] * transition.width
    if isinstance(transition, LowRank):
        return "low rank by blocks of rows, never stored", cells * transition.rank, cells
    return f"{type(transition).__name__} by blocks of rows, never stored", cells, cells
