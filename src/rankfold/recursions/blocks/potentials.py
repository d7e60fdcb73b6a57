"""The potentials of a chain of blocks, and their validation.

Every position has only k states of its own, those of the block of its word, so that its weights are written
out: no operator, no state outside the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect, expect_logs, may_look, same_kind
from rankfold.recursions.problem import Problem, sum_out_last, validate_lengths, validates


class BlockPotentials(NamedTuple):
    """The log-weights of all state paths of a batch of sequences, each state inside the block of its position.

        log weight(i_1..i_T) = initial[i_1] + obs_1[i_1] + sum_{t>1} transition_t[i_{t-1}, i_t] + obs_t[i_t]

    i_t is an index into block_t; as a state of the whole model it is block_t * k + i_t. -inf is the log of zero
    and welcome. Positions beyond a length, and transitions into them, are never used.
    """

    log_initial: Tensor  # "b k"        before the first emission, of the first position's states
    log_transition: Tensor  # "b s k k" s = t - 1: from the states of position i to those of position i + 1
    log_obs: Tensor  # "b t k"
    block: Tensor  # "b t"              integers from 0: which block the states of a position are
    lengths: Tensor | None = None  # "b" integers; None means all of t

    def states(self) -> Tensor:  # "b t k"
        """The numbers, in the whole model, of the states that each position may have."""
        size = self.log_obs.shape[-1]
        return self.block.unsqueeze(-1) * size + torch.arange(size, device=self.block.device)

    def sum_out_end(self) -> BlockPotentials:
        """The same sequences without their last position, whose weight goes to the position before it; float64."""
        steps = self.log_transition.double()
        log_obs, lengths = sum_out_last(
            self.log_obs,
            self.lengths,
            lambda each, last, end: torch.logsumexp(steps[each, last - 1] + end.unsqueeze(1), -1),
        )
        return BlockPotentials(self.log_initial.double(), steps[:, :-1], log_obs, self.block[:, :-1], lengths)


@dataclass(frozen=True, eq=False)
class BlockChain(Problem):
    """A validated chain of blocks."""

    log_initial: Tensor  # "b k"
    log_transition: Tensor  # "b s k k"
    log_obs: Tensor  # "b t k"
    block: Tensor  # "b t" int64

    fields = ("log_initial", "log_obs")

    @property
    def positions(self) -> Tensor:  # "b t k"
        """log_obs."""
        return self.log_obs

    def factors(self) -> tuple[Tensor, ...]:
        """The transitions, written out."""
        return (self.log_transition,)

    def with_factors(self, *factors: Tensor) -> BlockChain:
        """The same chain with other transitions."""
        (log_transition,) = factors
        return self.replace(log_transition=log_transition)

    def hollow(self) -> BlockChain:
        """The chain without its tensors: the transitions of all positions are the largest tensor of a training step."""
        return self.with_tensors(*(x.new_empty(0) for x in self.tensors()))

    def take(self, index: Tensor) -> BlockChain:  # "k"
        """Some of the sequences; differentiable."""
        return super().take(index).replace(log_transition=self.log_transition[index], block=self.block[index])

    def states(self, index: Tensor, known: Tensor) -> Tensor:  # "... b t", "b t"
        """The numbers, in the whole model, of states given as indices into blocks; -1 where they are unknown."""
        return torch.where(known, self.block * self.log_obs.shape[-1] + index, -1)


BlockLike = BlockPotentials | BlockChain


@validates(BlockPotentials, BlockChain)
def validate(p: BlockPotentials) -> BlockChain:
    """The potentials, completed; raises on any shape, dtype, device or value that does not fit."""
    expect(p.log_obs, "b t k", name="log_obs", hint="For one sequence add a batch axis: log_obs[None].")
    num_sequences, num_positions, num_items = p.log_obs.shape
    expect(p.log_initial, "b k", name="log_initial", b=num_sequences, k=num_items, hint="One row for each sequence.")
    _expect_transition(p.log_transition, num_sequences, num_positions, num_items)
    same_kind(p.log_obs, "log_obs", {"log_initial": p.log_initial, "log_transition": p.log_transition})
    _expect_block(p.block, p.log_obs)
    lengths, ragged = validate_lengths(p.lengths, num_sequences, num_positions, p.log_obs)
    c = BlockChain(lengths, ragged, p.log_initial, p.log_transition, p.log_obs, p.block.long())
    inside = c.inside()
    expect_logs(p.log_initial, name="log_initial")
    expect_logs(p.log_obs, name="log_obs", inside=inside if ragged else None)
    expect_logs(p.log_transition, name="log_transition", inside=inside[:, 1:, None] if ragged else None)
    if may_look(p.log_obs):
        _expect_ids(c.block, inside)
    return c


def _expect_transition(log_transition: Tensor, num_sequences: int, num_positions: int, num_items: int) -> None:
    sizes = {"b": num_sequences, "s": num_positions - 1, "k": num_items}
    hint = f"{num_positions} positions have {num_positions - 1} transitions between them, source first, target last."
    if num_positions > 1 or not isinstance(log_transition, Tensor):
        expect(log_transition, "b s k k", name="log_transition", hint=hint, **sizes)
    elif log_transition.shape != (num_sequences, 0, num_items, num_items):
        raise ShapeError(
            f'log_transition has shape {tuple(log_transition.shape)}, but "b s k k" was expected with '
            f"b = {num_sequences}, s = 0, k = {num_items}: one position has no transition."
        )


def _expect_block(block: Tensor, log_obs: Tensor) -> None:
    if not isinstance(block, Tensor) or block.shape != log_obs.shape[:2]:
        came = f"shape {tuple(block.shape)}" if isinstance(block, Tensor) else f"type {type(block).__name__}"
        raise ShapeError(
            f'block has {came}, but a tensor "b t" was expected with b = {log_obs.shape[0]}, t = {log_obs.shape[1]}.'
        )
    if block.dtype.is_floating_point or block.dtype.is_complex or block.dtype == torch.bool:
        raise DomainError(f"block has dtype {block.dtype}, but blocks are integers.\n  Convert it with .long().")
    if block.device != log_obs.device:
        raise UnsupportedError(
            f"block is on {block.device}, but log_obs is on {log_obs.device}.\n"
            f"  Move it: block.to({str(log_obs.device)!r})."
        )


def _expect_ids(block: Tensor, inside: Tensor) -> None:
    wrong = (block < 0) & inside
    if wrong.any():
        i, t = wrong.nonzero()[0].tolist()
        raise DomainError(
            f"block[{i},{t}] is {int(block[i, t])}, but blocks are numbered from 0.\n"
            "  Padding lies beyond the length of its sequence: did lengths come along?"
        )
