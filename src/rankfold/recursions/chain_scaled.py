"""Forward-backward on scaled vectors: matrix products in linear space, and a proof that nothing was lost.

Each step is one product with the transition, one with the emissions and one rescale. Whatever underflow
could have taken is bounded afterwards, by sequence; the caller repeats doubtful ones in wider arithmetic.
Read next: `operators/low_rank.py` for the product, `recursions/chain_log.py` for the wider arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.scaled import largest
from rankfold.recursions.potentials import Chain


class Forward(NamedTuple):
    """What the forward pass leaves: time first, so that a step is contiguous."""

    filtered: Tensor  # "t b z"   mantissa of p(x_1..t, z_t), largest entry 1
    emission: Tensor  # "t b z"   exp(log_obs) over its largest entry; 1 beyond the length
    norm: Tensor  # "t b"         what each step was divided by
    log_step: Tensor  # "t b"     float64: the scale of each step's emissions and transition
    log_scale: Tensor  # "t b"    float64: p(x_1..t, z_t) = filtered exp(log_scale)
    final: Tensor  # "b z"        exp(log_final) over its largest entry
    log_z: Tensor  # "b"          float64


def forward(c: Chain) -> Forward:
    """The filtered messages and log Z. Beyond a length the messages are finite and mean nothing."""
    emission, log_shift = _emission(c)
    first = largest(c.log_initial)
    x = torch.exp(c.log_initial - first)
    tiny = torch.finfo(x.dtype).tiny
    filtered, tops = torch.empty_like(emission), emission.new_empty(*emission.shape[:2], 1)
    # Views of all positions at once, and results written in place: small steps are bound by the number of calls.
    rows = filtered.unbind(0)
    for t, (row, top, weight) in enumerate(zip(rows, tops.unbind(0), emission.unbind(0), strict=True)):
        if t:
            x = c.transition.push(rows[t - 1]).to(emission.dtype)
        torch.mul(x, weight, out=row)
        torch.amax(row, -1, keepdim=True, out=top)
        # A vector of zeros stays one: tiny only keeps 0 / 0 away. Its log_scale is -inf.
        row.div_(top.clamp(min=tiny))
    norm = tops[..., 0]
    log_shift[1:] += c.transition.log_scale
    log_scale = (norm.double().log() + log_shift).cumsum(0) + first[:, 0]
    top = largest(c.log_final)
    final = torch.exp(c.log_final - top)
    total = (c.last(filtered).double() * final).sum(-1)
    log_z = total.log() + c.last(log_scale) + top[:, 0]
    return Forward(filtered, emission, norm, log_shift, log_scale, final, log_z)


def _emission(c: Chain) -> tuple[Tensor, Tensor]:  # "t b z", "t b" float64
    log_obs = c.log_obs.transpose(0, 1)
    top = largest(log_obs)
    if not c.ragged:
        return torch.exp(log_obs - top).contiguous(), top[..., 0].double()
    outside = ~c.inside().mT.unsqueeze(-1)
    top = top.masked_fill(outside, 0.0)
    return torch.exp(log_obs - top).masked_fill(outside, 1.0).contiguous(), top[..., 0].double()


class Backward(NamedTuple):
    """Posteriors, and the two sides of every transition's expected use."""

    posterior: Tensor  # "t b z"   p(z_t | x), 0 beyond the length
    source: Tensor  # "n z"        n = (t - 1) b
    target: Tensor  # "n y"        E[use of z -> y at n] = source[z] A[z, y] target[y]
    trusted: Tensor  # "b"         whether the posteriors of every position account for all of Z


def backward(c: Chain, f: Forward, weight: Tensor, tolerance: float) -> Backward:  # weight "b"
    """State posteriors and transition sides, each sequence weighted by `weight`.

    Messages only ever lose mass, so posteriors that sum to 1 at every position have lost none.
    """
    num_positions, _, num_states = f.filtered.shape
    future, target = torch.empty_like(f.filtered), torch.empty_like(f.filtered)
    tops = f.norm.new_ones(*f.norm.shape, 1)
    tiny = torch.finfo(tops.dtype).tiny
    inside = c.inside().mT
    last = inside & ~torch.cat([inside[1:], torch.zeros_like(inside[:1])])
    futures, targets, norms = future.unbind(0), target.unbind(0), tops.unbind(0)
    emissions, ends = f.emission.unbind(0), last.unsqueeze(-1).unbind(0)
    futures[-1].copy_(f.final)
    for t in reversed(range(num_positions)):
        if t < num_positions - 1:
            x = c.transition.pull(targets[t + 1]).to(target.dtype)
            torch.amax(x, -1, keepdim=True, out=norms[t])
            torch.div(x, norms[t].clamp(min=tiny), out=futures[t])
            if c.ragged:
                torch.where(ends[t], f.final, futures[t], out=futures[t])
        torch.mul(emissions[t], futures[t], out=targets[t])
    norm, posterior = tops[..., 0], future.mul_(f.filtered)
    mass = posterior.sum(-1)
    trusted = _accounted(c, f, mass, norm, last, tolerance)
    sound = inside & trusted
    share = weight.to(mass.dtype) / torch.where(sound, mass, 1.0)
    # Sequences not trusted are computed elsewhere; inside a captured graph, where they cannot be, they are NaN.
    doubtful = torch.where(inside & ~trusted, 0.0 if may_look(trusted) else float("nan"), 0.0).to(mass.dtype)
    posterior *= torch.where(sound, share, doubtful).unsqueeze(-1)
    target *= torch.where(sound & ~last, share / norm, doubtful).roll(1, 0).unsqueeze(-1)
    if may_look(trusted) and not trusted.all():  # nothing of them, whatever their messages hold
        for x in (f.filtered, posterior, target):
            x[:, ~trusted] = 0.0
    source = f.filtered[:-1].reshape(-1, num_states)
    return Backward(posterior, source, target[1:].reshape(-1, num_states), trusted)


def _accounted(c: Chain, f: Forward, mass: Tensor, norm: Tensor, last: Tensor, tolerance: float) -> Tensor:  # "b"
    """Whether filtered times future gives log Z at every position, within range and tolerance."""
    inside = c.inside().mT
    step = torch.where(inside & ~last, norm.double().log(), 0.0)
    step[:-1] += torch.where(inside, f.log_step, 0.0)[1:]
    log_future = step.flip(0).cumsum(0).flip(0) + largest(c.log_final)[:, 0].double()
    gap = (f.log_scale + mass.double().log() + log_future - f.log_z).abs()
    # The logs that are compared are themselves sums of float64 numbers, rounded at every step.
    tolerances = tolerance + (len(mass) + 8) * 2.0**-52 * (f.log_scale.abs() + log_future.abs())
    in_range = torch.where(last, mass, norm * mass) > _least_mass(c)
    return torch.where(inside, (gap <= tolerances) & in_range, True).all(0)


def _least_mass(c: Chain) -> Tensor:  # ""
    """The mass of a message at and above which underflow in one step of it cannot be seen.

    A step loses the entries of its source below the smallest normal number, and what the product loses:
    that is below the round-off of the mass. The power keeps a message over norm times mass from overflow.
    """
    one = torch.ones_like(c.log_final[:1])
    lost = (2 * c.transition.pull(one).to(one.dtype) + c.transition.pull_loss()).sum()
    info = torch.finfo(one.dtype)
    return (lost * (info.tiny / info.eps)).clamp(min=info.tiny**0.75)
