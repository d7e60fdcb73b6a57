"""The entropy of the path posterior.

H = log Z - E[log weight of a path], and E splits into states and transitions. For a low-rank matrix
E[log A] has no low-rank form: it is summed by blocks, or states and ranks are taken jointly.
Read next: `operators/by_rows.py`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.scaled import Scaled
from rankfold.operators import LowRank
from rankfold.recursions.chain import log_z, messages
from rankfold.recursions.potentials import Chain, ChainPotentials, checked

Of = Literal["states", "joint"]

# Nats by which sums may miss log Z: far above float64 rounding, far below any loss that would matter.
GAP = 1e-6


def entropy(p: ChainPotentials, *, of: Of = "states") -> Tensor:  # "b"   float64
    """The entropy, in nats, of the state path given the sequence.

        H(z_1..z_T | x) = log Z - E[log initial + log obs + log A + log final]

    `of="states"`: any operator; b t z y operations, for low rank plus z y r, in blocks, never stored.
    `of="joint"`: of states and ranks together, for a low-rank transition, at low-rank cost; at least as
    large as that of the states. Computed in float64. Differentiable (a weight of exactly zero gets no
    gradient: the true one is infinite). 0 for impossible sequences, which have no path to be unsure of.
    """
    if of not in get_args(Of):
        raise UnsupportedError(f'of={of!r} is unknown; use "states" or "joint".')
    c = checked(p).double()
    if of == "joint" and not isinstance(c.transition, LowRank):
        raise UnsupportedError(
            f'of="joint" asks for ranks, but a {type(c.transition).__name__} has none.\n  Use of="states".'
        )
    q = ChainPotentials(c.log_initial, c.transition, c.log_obs, c.log_final, c.lengths)
    total = log_z(q)
    possible = total > float("-inf")
    past, future = messages(q)
    inside = c.inside() & possible[:, None]
    joint = past.mantissa * future.mantissa
    mass = torch.where(inside, joint.sum(-1), 1.0)
    _expect_range(total, mass, past.log_scale + future.log_scale, inside)
    posterior = joint / mass.unsqueeze(-1) * inside.unsqueeze(-1)
    at_end = torch.arange(c.log_obs.shape[1], device=total.device) == c.lengths[:, None] - 1
    log_end = torch.where(at_end.unsqueeze(-1), c.log_final[:, None], 0.0)
    expected = _weighted(posterior, c.log_obs) + _weighted(posterior, log_end)
    expected = expected + _weighted(posterior[:, :1], c.log_initial[:, None])
    if c.log_obs.shape[1] > 1:
        log_scale = past.log_scale[:, :-1] + future.log_scale[:, 1:] - total[:, None]
        expected = expected + _transitions(c, past, future, posterior, log_scale, of)
    return torch.where(possible, torch.where(possible, total, 0.0) - expected, 0.0)


def _transitions(c: Chain, past: Scaled, future: Scaled, posterior: Tensor, log_scale: Tensor, of: Of) -> Tensor:  # "b"
    """E[log A] summed over positions, the log of the weight of (z, r, y) if `of` is joint.

    log_scale "b t-1" is what past and future together are short of the posterior's scale.
    """
    moves = posterior[:, 1:].sum(-1) > 0
    source, log_source = _in_view(past.mantissa[:, :-1], posterior[:, :-1])
    emission, log_emission = _emission(c.log_obs[:, 1:], posterior[:, 1:])
    target, log_target = _in_view(future.mantissa[:, 1:] * emission, posterior[:, 1:])
    transition = c.transition
    use = torch.where(moves, (transition.push(source) * target).sum(-1), 1.0)
    accounted = use.log() + log_source + log_emission + log_target + log_scale + transition.log_scale
    _expect_all((torch.where(moves, accounted, 0.0).detach().abs() <= GAP).all(-1))
    weighted = (
        transition.push_joint_log_weighted(source)
        if of == "joint" and isinstance(transition, LowRank)
        else transition.push_log_weighted(source)
    )
    log_a = (weighted * target).sum(-1) / use + transition.log_scale
    return torch.where(moves, log_a, 0.0).sum(-1)


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


def _expect_range(total: Tensor, mass: Tensor, log_scale: Tensor, inside: Tensor) -> None:
    """Raise if the messages of a sequence, in float64, do not account for its log Z."""
    gap = torch.where(inside, mass.log() + log_scale - total[:, None], 0.0).detach().abs()
    _expect_all((gap <= GAP).all(-1))


def _expect_all(sound: Tensor) -> None:  # "b"
    if not sound.all():
        raise UnsupportedError(
            f"sequence {int((~sound).nonzero()[0])} has a posterior that float64 cannot hold in one message.\n"
            "  Its log_z, posterior and best path are exact all the same; its entropy is not available."
        )
