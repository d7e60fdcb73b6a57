"""Chains of blocks whose clusters several processes hold: a position belongs to the process that has its block.

It has the observations of the position, and the transitions out of it. Two messages of "b k" numbers a position, one
for each direction, are all that is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import ShapeError, UnsupportedError, expect_logs
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.shard import Shard
from rankfold.operators.sharded import REMEDY
from rankfold.recursions import ladder
from rankfold.recursions.ladder import Backward, Impossible, Ladder, LastRung
from rankfold.recursions.problem import Problem, validate_lengths


class Places(NamedTuple):
    """Which positions of a batch are a process's own; position by position, then by sequence."""

    block: Tensor  # "b t"       of all positions
    here: Tensor  # "t b" bool   its own positions
    leads: Tensor  # "t b" bool  those of them from which a transition goes on

    @classmethod
    def of(cls, block: Tensor, lengths: Tensor | None, shard: Shard) -> Places:
        """Those of a batch; positions beyond a length belong to nobody."""
        num, length = block.shape
        lengths, _ = validate_lengths(lengths, num, length, block)
        at = torch.arange(length, device=block.device)[:, None]
        here = shard.holds(block.mT) & (at < lengths)
        return cls(block, here, here & (at + 1 < lengths))


class ShardedBlockPotentials(NamedTuple):
    """The log-weights of a batch that one process has: those of `BlockPotentials` at its own positions, one by one."""

    log_initial: Tensor  # "i k"       of sequences whose first position is its own
    log_transition: Tensor  # "m k k"  out of its own positions
    log_obs: Tensor  # "n k"           of its own positions
    places: Places
    shard: Shard  # of the blocks
    lengths: Tensor | None = None  # "b"


@dataclass(frozen=True, eq=False)
class ShardedBlockChain(Problem):
    """The validated share of one process."""

    log_initial: Tensor  # "i k"
    log_transition: Tensor  # "m k k"
    log_obs: Tensor  # "n k"
    places: Places
    shard: Shard

    fields = ("log_initial", "log_obs")

    @property
    def positions(self) -> Tensor:  # "b t"
        """The blocks, whose shape is that of the batch."""
        return self.places.block

    def factors(self) -> tuple[Tensor, ...]:
        """The transitions, written out."""
        return (self.log_transition,)

    def with_factors(self, *factors: Tensor) -> ShardedBlockChain:
        """The same chain with other transitions."""
        (log_transition,) = factors
        return self.replace(log_transition=log_transition)

    def hollow(self) -> ShardedBlockChain:
        """The chain without its tensors."""
        return self.with_tensors(*(x.new_empty(0) for x in self.tensors()))

    @cached_property
    def starts(self) -> tuple[list[int], list[int]]:
        """Where the rows of each position begin, among its own positions and among those that lead on."""
        ends = (x.sum(1).cumsum(0).tolist() for x in (self.places.here, self.places.leads))
        first, second = ([0, *x] for x in ends)
        return first, second


def validate(p: ShardedBlockPotentials | ShardedBlockChain) -> ShardedBlockChain:
    """The potentials of one process; raises, on all of them, on any shape or value that does not fit."""
    if isinstance(p, ShardedBlockChain):
        return p
    with p.shard.together():
        places = p.places
        expected = (int(places.here[0].sum()), int(places.here.sum()), int(places.leads.sum()))
        given = (len(p.log_initial), len(p.log_obs), len(p.log_transition))
        if given != expected:
            raise ShapeError(
                f"log_initial, log_obs and log_transition have {given} rows, but this process has {expected} first "
                "positions, positions and transitions."
            )
        for name in ("log_initial", "log_obs", "log_transition"):
            expect_logs(getattr(p, name), name=name)
        num, length = places.block.shape
        lengths, ragged = validate_lengths(p.lengths, num, length, p.log_obs)
    return ShardedBlockChain(lengths, ragged, p.log_initial, p.log_transition, p.log_obs, places, p.shard)


def log_z(p: ShardedBlockPotentials | ShardedBlockChain, *, strict: bool = False) -> Tensor:  # "b"   float64
    """Log-probability of each sequence, the same on every process; its gradients are of this process's own weights."""
    hint = "Look for observations and transitions of weight zero in every state of a block."
    impossible = Impossible("sequence", "no state path has any weight", hint) if strict else None
    return ladder.log_z(validate(p), lambda c, both: Ladder(ShardedBlockRung(c)), "scaled", "float32", impossible)


class ShardedBlockRung(LastRung):
    """Forward and backward in logarithms, each process the positions that are its own."""

    def __init__(self, c: ShardedBlockChain) -> None:
        self.problem = c
        self.messages, self.log_z = filter_states(c)

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            c = self.problem
            possible = self.log_z > float("-inf")
            by = torch.where(possible, weight, 0.0).to(c.log_obs.dtype)
            ahead, received = _future(c)
            here, leads = (mask.nonzero()[:, 1] for mask in (c.places.here, c.places.leads))
            states = torch.softmax(self.messages + ahead, -1) * by[here, None]
            states = torch.where(possible[here, None], states, 0.0)
            found = [states[: len(c.log_initial)].clone(), states]
            if of_factors:
                before = self.messages[c.places.leads[c.places.here]]
                joint = before.unsqueeze(-1) + c.log_transition + received.unsqueeze(-2)
                pairs = torch.softmax(joint.flatten(1), -1).reshape(joint.shape) * by[leads, None, None]
                found.append(torch.where(possible[leads, None, None], pairs, 0.0))
            return found

        return Backward(None, gradients)

    def retrace(self, c: ShardedBlockChain, index: Tensor | None) -> Tensor:
        raise UnsupportedError(f"second derivatives are not computed over {c.shard.num} shards of states.\n  {REMEDY}")


def filter_states(c: ShardedBlockChain) -> tuple[Tensor, Tensor]:  # "n k", "b"
    """log p(i_t | x_1..t) at its own positions, and log Z (float64) of every sequence."""
    here, leads, (rows, steps) = c.places.here, c.places.leads, c.starts
    num, size = here.shape[1], c.log_obs.shape[1]
    messages = torch.empty_like(c.log_obs)
    log_steps = torch.zeros(num, dtype=torch.float64, device=messages.device)
    pushed = c.log_obs.new_zeros(num, size)
    pushed[here[0]] = c.log_initial
    for t in range(len(here)):
        own = slice(rows[t], rows[t + 1])
        joint = pushed[here[t]] + c.log_obs[own]
        total = log_sum(joint)
        messages[own] = joint - total[:, None]
        log_steps[here[t]] += torch.where(total.isnan(), 0.0, total.double())  # NaN comes after a step of -inf alone
        if t + 1 < len(here):
            pushed = c.log_obs.new_zeros(num, size)
            step = c.log_transition[steps[t] : steps[t + 1]]
            pushed[leads[t]] = log_sum((messages[own][leads[t][here[t]]].unsqueeze(-1) + step).mT)
            pushed = c.shard.total(pushed)
    return messages, c.shard.total(log_steps)


def _future(c: ShardedBlockChain) -> tuple[Tensor, Tensor]:  # "n k", "m k"
    """log p(x_t+1..T | i_t) up to a constant at its own positions, and what came from the position after each."""
    here, leads, (rows, steps) = c.places.here, c.places.leads, c.starts
    num, size = here.shape[1], c.log_obs.shape[1]
    ahead, received = torch.zeros_like(c.log_obs), c.log_obs.new_empty(len(c.log_transition), size)
    for t in reversed(range(len(here) - 1)):
        known = c.log_obs.new_zeros(num, size)
        after = slice(rows[t + 1], rows[t + 2])
        known[here[t + 1]] = c.log_obs[after] + ahead[after]
        known = c.shard.total(known)
        own = slice(steps[t], steps[t + 1])
        received[own] = known[leads[t]]
        found = log_sum(c.log_transition[own] + received[own].unsqueeze(-2))
        top = found.amax(-1, keepdim=True)
        message = ahead[rows[t] : rows[t + 1]]
        message[leads[t][here[t]]] = found - torch.where(top > float("-inf"), top, 0.0)
    return ahead, received


def advance(p: ShardedBlockPotentials) -> tuple[Tensor, Tensor]:  # "b k", "b"
    """As of whole chains: the log-distribution of the last state within its block, the same on every process."""
    c = validate(p).detach()
    with torch.no_grad():
        messages, log_total = filter_states(c)
        ends = c.places.here & ~c.places.leads
        last = messages.new_zeros(len(c.lengths), messages.shape[1])
        last[ends.nonzero()[:, 1]] = messages[ends[c.places.here]]
        last = c.shard.total(last)
        return torch.where(log_total[:, None] == float("-inf"), float("-inf"), last), log_total
