"""The entropy of the path posterior.

H = log Z - E[log weight of a path], and E splits into states and transitions. For a low-rank matrix
E[log A] has no low-rank form: it is summed by blocks, or states and ranks are taken jointly.
Read next: `operators/row_operator.py`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.decoding.entropy_log import in_logs
from rankfold.errors import UnsupportedError
from rankfold.numerics.scaled import Scaled
from rankfold.operators import LowRank, Operator
from rankfold.recursions.chain import log_z, messages
from rankfold.recursions.chain.potentials import Chain, ChainPotentials, validate

Of = Literal["states", "joint"]


def entropy(p: ChainPotentials, *, of: Of = "states") -> Tensor:  # "b"   float64
    """The entropy, in nats, of the state path given the sequence.

        H(z_1..z_T | x) = log Z - E[log initial + log obs + log A + log final]

    `of="states"`: any operator; b t z y operations, for low rank plus z y r, in blocks, never stored.
    `of="joint"`: of states and ranks together, for a low-rank transition, at low-rank cost; at least as
    large as that of the states. Computed in float64, at any range: sequences whose messages float64 cannot hold are
    summed in logarithms, an exponential for every term. Differentiable (a weight of exactly zero gets no
    gradient: the true one is infinite). 0 for impossible sequences, which have no path to be unsure of.
    """
    if of not in get_args(Of):
        raise UnsupportedError(f'of={of!r} is unknown; use "states" or "joint".')
    c = validate(p).double()
    if of == "joint" and not isinstance(c.transition, LowRank):
        raise UnsupportedError(
            f'of="joint" asks for ranks, but a {type(c.transition).__name__} has none.\n  Use of="states".'
        )
    if not _has_digits(c.transition):
        return in_logs(c, joint=of == "joint")
    out, sound = _on_mantissas(c, of)
    right, wrong = sound.nonzero()[:, 0], (~sound).nonzero()[:, 0]
    if not len(wrong):
        return out
    parts = [in_logs(c.take(wrong), joint=of == "joint")]
    if len(right):  # again, so that no gradient passes through what was lost
        parts.append(_on_mantissas(c.take(right), of)[0])
    return torch.cat(parts).index_select(0, torch.cat([wrong, right]).argsort())


def _has_digits(transition: Operator) -> bool:
    """Whether every linear weight is 0 or so large that its product with its logarithm has all digits."""
    info = torch.finfo(torch.float64)
    return not any(
        bool(((factor > 0) & (factor < info.tiny / info.eps)).any())
        for factor, is_log in zip(transition.factors(), transition.log_factors, strict=True)
        if not is_log
    )


def _on_mantissas(c: Chain, of: Of) -> tuple[Tensor, Tensor]:  # "b", "b"
    """The entropies by linear products, and which of them may be trusted: those whose sums account for log Z."""
    q = ChainPotentials(c.log_initial, c.transition, c.log_obs, c.log_final, c.lengths)
    total = log_z(q)
    possible = total > float("-inf")
    try:
        past, future = messages(q)
    except UnsupportedError:  # a graph at weights of 0, beyond the range of float64
        return total, torch.zeros_like(possible)
    inside = c.inside() & possible[:, None]
    joint = past.mantissa * future.mantissa
    mass = torch.where(inside, joint.sum(-1), 1.0)
    gap = mass.log() + past.log_scale + future.log_scale - total[:, None]
    sound = _agrees(gap, past, future, inside)
    posterior = joint / mass.unsqueeze(-1) * inside.unsqueeze(-1)
    at_end = torch.arange(c.log_obs.shape[1], device=total.device) == c.lengths[:, None] - 1
    log_end = torch.where(at_end.unsqueeze(-1), c.log_final[:, None], 0.0)
    expected = _weighted(posterior, c.log_obs) + _weighted(posterior, log_end)
    expected = expected + _weighted(posterior[:, :1], c.log_initial[:, None])
    finite = torch.ones_like(possible)
    if c.log_obs.shape[1] > 1:
        log_scale = past.log_scale[:, :-1] + future.log_scale[:, 1:] - total[:, None]
        moves, gap, whole, finite = _transitions(c, past, future, posterior, log_scale, of)
        expected = expected + moves
        sound &= _agrees(gap, past, future, inside[:, 1:]) & whole
    out = torch.where(possible, torch.where(possible, total, 0.0) - expected, 0.0)
    return out, (sound | ~possible) & finite


def _agrees(gap: Tensor, past: Scaled, future: Scaled, inside: Tensor) -> Tensor:  # "b t" -> "b"
    """Whether sums miss log Z by rounding alone, of products and of the scales, themselves sums of float64."""
    num_positions = past.log_scale.shape[1]
    size = past.log_scale.abs().amax(-1) + future.log_scale.abs().amax(-1) + 64
    near = gap.detach().abs() <= (2.0**-52 * (num_positions + 8) * size)[:, None]
    return torch.where(inside, near, True).all(-1)


def _transitions(
    c: Chain, past: Scaled, future: Scaled, posterior: Tensor, log_scale: Tensor, of: Of
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # "b", "b t-1", "b", "b"
    """E[log A] summed over positions (of (z, r, y) if `of` is joint), by how much its sums miss log Z, whether
    they have all digits, and whether they are finite.

    log_scale "b t-1" is what past and future together are short of the posterior's scale.
    """
    moves = posterior[:, 1:].sum(-1) > 0
    source, log_source = _in_view(past.mantissa[:, :-1], posterior[:, :-1])
    emission, log_emission = _emission(c.log_obs[:, 1:], posterior[:, 1:])
    target, log_target = _in_view(future.mantissa[:, 1:] * emission, posterior[:, 1:])
    transition = c.transition
    pushed = transition.push(source)
    use = torch.where(moves, (pushed * target).sum(-1), 1.0)
    gap = use.log() + log_source + log_emission + log_target + log_scale + transition.log_scale
    info = torch.finfo(torch.float64)
    small = torch.where(pushed < info.tiny / info.eps * len(pushed.mT), pushed * target, 0.0).detach().sum(-1)
    whole = torch.where(moves, small <= info.eps * use.detach(), True).all(-1)
    weighted = (
        transition.push_joint_log_weighted(source)
        if of == "joint" and isinstance(transition, LowRank)
        else transition.push_log_weighted(source)
    )
    total = (weighted * target).sum(-1)
    # Beyond a length, too, and of the impossible: a weight too large for float64 would make gradients of 0 NaN.
    finite = (torch.isfinite(pushed) & torch.isfinite(weighted)).flatten(1).all(-1) & torch.isfinite(total).all(-1)
    log_a = total / use + transition.log_scale
    return torch.where(moves, log_a, 0.0).sum(-1), torch.where(moves, gap, 0.0), whole, finite


def _in_view(side: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:  # "b t z" twice -> "b t z", "b t"
    """One side of the moves, scaled so that its largest entry with posterior mass is 1, and the log of that scale.

    Entries without mass may be hundreds of nats above; they are cut at e^280, for they lead nowhere.
    """
    top = torch.where(posterior > 0, side, 0.0).detach().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return (side / top).clamp(max=math.exp(280)), top[..., 0].log()


def _weighted(posterior: Tensor, log_weight: Tensor) -> Tensor:  # "b t z" twice -> "b"
    """E[log weight]; a weight of zero has no mass and does not count."""
    counted = torch.where(posterior > 0, log_weight, 0.0)
    return (posterior * counted).sum((-2, -1))


def _emission(log_obs: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:  # "b t z" twice -> "b t z", "b t"
    """exp(log_obs) over its largest entry with posterior mass, cut at e^280 where there is none; that entry's log."""
    top = torch.where(posterior > 0, log_obs, float("-inf")).detach().amax(-1, keepdim=True)
    known = top > float("-inf")
    top = torch.where(known, top, 0.0)
    return torch.exp(torch.where(known, log_obs - top, 0.0).clamp(max=280.0)), top[..., 0]
