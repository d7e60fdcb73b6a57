"""Filtering as observations come in, with the state carried along, and predictions of the next one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer
from rankfold.errors import expect, expect_logs, same_kind
from rankfold.numerics.log_space import log_weights
from rankfold.numerics.precision import matmul_precision
from rankfold.numerics.scaled import Scaled
from rankfold.operators import Dense, Operator
from rankfold.operators.protocol import expect_operator
from rankfold.recursions import blocks, chain, segments
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.blocks.steps import filter_states
from rankfold.recursions.chain.filtering import log_filtered, smallest_sum
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.problem import Sequences
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.stretches import log_open, open_segments

AT_ONCE = 2**24  # numbers of a block


class Filtered(NamedTuple):
    """The state distribution at every position, given its past and present alone."""

    log_filtered: Tensor  # "b t z"   log p(z_t | x_1..t); -inf beyond the length
    log_z: Tensor  # "b t"            log p(x_1..t), float64; constant beyond the length


class FilterState(NamedTuple):
    """The state of a stream between observations."""

    log_filtered: Tensor | None  # "b z"   log p(z_t | x_1..t); None before the first observation
    log_next: Tensor  # "b z", "b d z"     log p(z_t+1 | x_1..t), or open segments: the next stretch's log_initial
    log_z: Tensor  # "b"                   log p(x_1..t), float64

    @classmethod
    def start(cls, log_initial: Tensor) -> FilterState:  # "b z"
        """The state before any observation."""
        expect(log_initial, "b z", name="log_initial", hint="One row for each stream.")
        expect_logs(log_initial, name="log_initial")
        return cls(None, log_initial, torch.zeros(len(log_initial), dtype=torch.float64, device=log_initial.device))


def step(state: FilterState, transition: Operator, log_obs: Tensor) -> FilterState:  # "b z"
    """The state after one more observation: O(b z r) for a low-rank transition, whatever came before.

    Detached: gradients do not flow through a stream. To train, use `chain.log_z`.
    """
    expect_operator(transition, name="transition")
    expect(log_obs, "b z", name="log_obs", b=len(state.log_next), z=transition.shape[0])
    ahead = advance(ChainPotentials(state.log_next, transition, log_obs[:, None]))
    return ahead._replace(log_z=state.log_z + ahead.log_z)


def advance(p: ChainPotentials | SegmentPotentials | BlockPotentials) -> FilterState:
    """The filtered state after the observations of `p`, a stretch whose `log_initial` is the last one's `log_next`.

    Of segments `log_next` "b d z" has those still open, by age; the border cuts a segment, it does not end one. Of
    blocks it is `log_filtered`, because the transition to the next position is that position's own.
    """
    with torch.no_grad():
        return answer("online.advance", _ADVANCE, p)(p)


def _advance_chain(p: ChainPotentials) -> FilterState:
    ahead = chain.advance(p)
    return FilterState(ahead.log_filtered, ahead.log_next, ahead.log_z)


def _advance_segments(p: SegmentPotentials) -> FilterState:
    carried, total = open_segments(segments.validate(p).detach())
    carried = carried.to(p.log_obs.dtype)
    # The state of the open segment: each age with all durations that reach it.
    return FilterState((carried + segments.survival(p.log_duration.detach()).mT).logsumexp(1), carried, total)


def filter(p: ChainPotentials | SegmentPotentials | BlockPotentials) -> Filtered:
    """The distribution of every state given the observations up to its own position.

    log_final is not used: it belongs to the end, and so is the end of the last segment. Not the posterior given the
    whole sequence: see `posterior`. Detached. Cost: a forward pass in float64; of segments also b t d z exponentials,
    of chains a second pass to see that nothing was lost.
    """
    with torch.no_grad():
        return answer("online.filter", _FILTER, p)(p)


def _filter(c: Sequences, log_joint: Tensor) -> Filtered:  # "t b z"   log p(x_1..t, z_t)
    log_joint = log_joint.transpose(0, 1)
    log_so_far = torch.logsumexp(log_joint, -1)
    shown = log_joint - torch.where(log_so_far > float("-inf"), log_so_far, 0.0).unsqueeze(-1)
    inside = c.inside()
    last = log_so_far.gather(1, c.lengths[:, None] - 1)
    return Filtered(
        torch.where(inside.unsqueeze(-1), shown, float("-inf")).to(c.log_obs.dtype),
        torch.where(inside, log_so_far, last),
    )


def _filter_chain(p: ChainPotentials) -> Filtered:
    c = chain.validate(p).detach()
    return _filter(c, log_filtered(c)[0])


def _filter_segments(p: SegmentPotentials) -> Filtered:
    c = segments.validate(p).detach()
    return _filter(c, log_open(c))


def _filter_blocks(p: BlockPotentials) -> Filtered:
    c = blocks.validate(p).detach()
    messages, log_steps = filter_states(c)
    inside = c.inside()
    steps = torch.where(inside, log_steps.mT, 0.0)
    # An impossible sequence has no weight from its first impossible step on.
    dead = (steps == float("-inf")).cumsum(1) > 0
    log_z = torch.where(dead, float("-inf"), torch.where(dead, 0.0, steps).cumsum(1))
    there = (inside & ~dead).unsqueeze(-1)
    return Filtered(torch.where(there, messages.transpose(0, 1), float("-inf")), log_z)


def _advance_blocks(p: BlockPotentials) -> FilterState:
    log_filtered, log_z = blocks.advance(p)
    return FilterState(log_filtered, log_filtered, log_z)


_ADVANCE: dict[ModuleType, Callable[..., FilterState]] = {
    chain: _advance_chain,
    segments: _advance_segments,
    blocks: _advance_blocks,
}
_FILTER: dict[ModuleType, Callable[..., Filtered]] = {
    chain: _filter_chain,
    segments: _filter_segments,
    blocks: _filter_blocks,
}


def predict(log_next: Tensor, log_emission: Tensor) -> Tensor:  # "b z", "z v" -> "b v"
    """The log-probability of every word as the next observation.

        log p(x_t+1 = v | x_1..t) = log sum_z p(z_t+1 = z | x_1..t) emission[z, v]

    `log_next` comes from `step(...)` or `chain.carry(p)`. Cost: b z v; exact at any range.
    """
    expect(log_next, "b z", name="log_next")
    expect(log_emission, "z v", name="log_emission", z=log_next.shape[1])
    same_kind(log_next, "log_next", {"log_emission": log_emission})
    expect_logs(log_next, name="log_next")
    emission, state = Dense.from_log(log_emission), Scaled.from_log(log_next)
    with matmul_precision("float32", log_next.device):
        weight = emission.push(state.mantissa)
    log_word = log_weights(weight) + (state.log_scale[:, None] + emission.log_scale)
    small = (weight < smallest_sum(state.mantissa)).any(0).nonzero()[:, 0]
    if len(small):  # words that linear arithmetic loses digits of, or all
        log_word[:, small] = Dense.from_log(log_emission[:, small]).push_log(log_next).double()
    return log_word.to(log_next.dtype)


def next_words(  # "b z" -> "b v"   float64
    log_next: Tensor, log_emission_rows: Callable[[Tensor], Tensor], num_words: int
) -> Tensor:
    """log sum_z next[z] emission[z, v], some hidden values at a time."""
    log_next = log_next.double()
    every = torch.arange(log_next.shape[1], device=log_next.device)
    total = log_next.new_full((len(log_next), num_words), float("-inf"))
    for index in torch.split(every, max(1, AT_ONCE // total.numel())):
        part = log_next[:, index, None] + log_emission_rows(index).double()
        total = torch.logaddexp(total, torch.logsumexp(part, 1))
    return total
