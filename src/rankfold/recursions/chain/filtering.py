"""Filtering: the state distribution after the last position, in logarithms that are exact at any range.

A message inside one pass may drop entries that no later observation can bring back. Here the later observations are
unknown, so nothing may be dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, may_look
from rankfold.numerics.scaled import Scaled, visible
from rankfold.operators.protocol import Operator
from rankfold.operators.sharded import whole_shard
from rankfold.recursions.chain import scaled
from rankfold.recursions.chain.potentials import Chain, ChainPotentials, validate
from rankfold.recursions.chain.rungs import ChainSolution, ScaledRung


class Advanced(NamedTuple):
    """The distribution of the state after the last position."""

    log_filtered: Tensor  # "b z"   log p(z_T | x_1..T)
    log_next: Tensor  # "b z"       log p(z_T+1 | x_1..T)
    log_z: Tensor  # "b"            log p(x_1..T), float64


def advance(p: ChainPotentials) -> Advanced:
    """The filtered and the predicted state distribution after the last position, detached."""
    c = validate(p).detach()
    if p.log_final is not None:
        raise UnsupportedError("a sequence that goes on has no end yet, but log_final ends it.\n  Leave log_final out.")
    with torch.no_grad():
        filtered, log_z = log_filtered(c)
        last = c.last(filtered) - torch.where(log_z > float("-inf"), log_z, 0.0)[:, None]
        ahead = log_push(c.double().transition, last)
    return Advanced(last.to(p.log_obs.dtype), ahead.to(p.log_obs.dtype), log_z)


def carry(p: ChainPotentials) -> Tensor:  # "b z"
    """The log-distribution of the state after the last position, to be the next stretch's `log_initial`.

        carried[y] = log sum_z p(z_T = z | x_1..T) A[z, y]

    Then log Z of the two stretches add up to that of the whole. Detached: gradients stop at the border,
    which is truncated back-propagation. Impossible sequences carry -inf.
    """
    return advance(p).log_next


def log_filtered(c: Chain) -> tuple[Tensor, Tensor]:  # "t b z", "b"   float64
    """log p(x_1..t, z_t) and log Z: scaled in float64, and in logarithms where an entry would be lost.

    While a CUDA graph is captured nothing can be repeated: such sequences are NaN.
    """
    solution = ChainSolution(StreamRung(c.double(), "float32"))
    log_z, out = solution.log_z, solution.log_filtered()
    return out if may_look(out) else torch.where(log_z.isnan()[:, None], float("nan"), out), log_z


class StreamRung(ScaledRung):
    """A rung that is sound only where every entry has all its digits: later observations may need any of them."""

    def sound(self) -> Tensor:  # "b"
        return ~_lost(self.problem, self.run)


def log_push(transition: Operator, log_x: Tensor) -> Tensor:  # "b z" -> "b y"   float64
    """log(x A), by linear products where they lose nothing; in a graph that is being captured, NaN where they do."""
    if whole_shard(transition) is not None:
        return transition.push_log(log_x)
    x = Scaled.from_log(log_x)
    pushed = transition.push(x.mantissa)
    reached = _pattern(transition).push((log_x > float("-inf")).to(pushed.dtype)) > 0
    whole = (pushed < float("inf")) & (~reached | (pushed >= smallest_sum(x.mantissa)))  # not NaN, either
    lost = ~whole.all(-1, keepdim=True)
    found = pushed.log() + (x.log_scale + transition.log_scale)[:, None]
    if not may_look(lost):
        return torch.where(lost, float("nan"), found)
    return transition.push_log(log_x) if bool(lost.any()) else found


def _lost(c: Chain, f: scaled.Forward) -> Tensor:  # "b"
    """Whether some state that can be reached has an entry without all its digits."""
    least = smallest_sum(f.filtered, c.num_states)
    overflowed = ~(f.norm < float("inf")) | c.any_state(f.filtered.isnan())
    whole = (f.filtered * f.norm.clamp(max=1.0).unsqueeze(-1) >= least) & (f.emission >= least)
    impossible = c.log_obs.transpose(0, 1) == float("-inf")
    lost = ((c.any_state(~whole & ~impossible) | overflowed) & c.inside().mT).any(0)
    if may_look(lost) and not bool(lost.any()):
        return lost  # every state of every position is whole, reached or not
    pattern = _pattern(c.transition)
    if (reaches := scaled.looped(c.replace(transition=pattern))) is not None:
        from rankfold.kernels.chain_loops import lost_entries

        return lost_entries(reaches > 0, c.log_initial, c.log_obs, c.lengths, f, float(least))
    reached = (c.log_initial > float("-inf")).to(least.dtype)
    lost = torch.zeros_like(lost)
    for t in range(len(f.filtered)):
        if t:
            reached = pattern.push(reached)
        here = (reached > 0) & ~impossible[t]
        lost |= (c.any_state(here & ~whole[t]) | overflowed[t]) & (t < c.lengths)
        reached = here.to(least.dtype)
    return lost


def smallest_sum(x: Tensor, num_states: int = 0) -> Tensor:  # "... z" -> ""
    """The smallest sum over z that has all its digits although terms below the smallest normal number are lost."""
    return x.new_full((), (num_states or x.shape[-1]) * visible(x.dtype))


def _pattern(transition: Operator) -> Operator:
    """The operator whose weights are 1 wherever this one has any weight: reachable pairs of states, at any range."""
    factors = (
        torch.where(factor > float("-inf"), 0.0, factor) if is_log else (factor > 0).to(factor.dtype)
        for factor, is_log in zip(transition.factors(), transition.log_factors, strict=True)
    )
    return transition.with_factors(*factors)
