"""Where a chain starts and how it goes on, as free tables, with or without a state after itself.

Rows sum to 1 over the states that are kept. Without self-transitions no row is ever a difference: a dense one is
normalised over the others, a low-rank one summed over them by blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.operators import Dense, LowRank, Operator, RowScaled, WithoutDiagonal
from rankfold.params.networks import normal, taken, xavier


class Dynamics(NamedTuple):
    """The distribution of the first state and of the next state given one."""

    log_initial: Tensor  # "z"
    transition: Operator  # "z z", rows sum to 1


class FreeDense(nn.Module):
    """initial = softmax(log_initial), A[z, y] = softmax_y(log_transition): logarithms of any range, -inf included.

    What is -inf stays so in training: a forbidden transition. Without self-transitions the diagonal is never read.
    """

    def __init__(
        self, log_initial: Tensor, log_transition: Tensor, *, self_transitions: bool = True
    ) -> None:  # "z", "z z"
        super().__init__()
        self.log_initial, self.log_transition = nn.Parameter(log_initial), nn.Parameter(log_transition)
        self.self_transitions = self_transitions

    @classmethod
    def draw(cls, num_states: int, *, generator: torch.Generator) -> FreeDense:
        """Small random logits around the uniform distribution."""
        start = torch.zeros(num_states, dtype=torch.float32)
        return cls(start, xavier(num_states, num_states, generator=generator).data)

    def forward(
        self, keep: Tensor | None = None, keep_features: Tensor | None = None, stays: Tensor | None = None
    ) -> Dynamics:
        log_initial, logits = taken(self.log_initial, keep), taken(self.log_transition, keep)
        logits = logits if keep is None else logits.index_select(1, keep)
        if stays is not None:
            log_initial, logits = (x.masked_fill(~stays, float("-inf")) for x in (log_initial, logits))
        if not self.self_transitions:
            logits = logits.masked_fill(diagonal(logits), float("-inf"))
        return Dynamics(log_initial.log_softmax(0), Dense.from_log(logits.log_softmax(1)))


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
        log_initial, left, right = (taken(x, keep) for x in (self.log_initial, self.log_left, self.log_right))
        if keep_features is not None:
            left, right = left.index_select(1, keep_features), right.index_select(1, keep_features)
        if stays is not None:
            log_initial = log_initial.masked_fill(~stays, float("-inf"))
            right = right.masked_fill(~stays[:, None], float("-inf"))
        transition = LowRank.unchecked(left.softmax(1), right.softmax(0))
        return Dynamics(log_initial.log_softmax(0), transition if self.self_transitions else apart(transition))


def apart(transition: Operator) -> Operator:
    """The matrix without its diagonal, rows divided by what is left of them. Nothing is subtracted."""
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
