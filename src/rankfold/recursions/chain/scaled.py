"""Forward-backward on scaled vectors: matrix products in linear space, and a proof that nothing was lost.

Each step is one product with the transition, one with the emissions and one rescale. The loss to underflow is bounded
afterwards, by sequence; the caller repeats doubtful sequences in wider arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.kernels.dispatch import loops_serve, scans_serve, triton_serves
from rankfold.kernels.forward_backward import FEW, LONGEST, Verdict
from rankfold.numerics.precision import Precision, round_off
from rankfold.numerics.scaled import Scaled, visible
from rankfold.numerics.shard import Shard
from rankfold.operators.dense import Dense
from rankfold.operators.protocol import Inner, is_composed
from rankfold.recursions.chain import in_shards
from rankfold.recursions.chain.potentials import Chain


class Ahead(NamedTuple):
    """The result of a backward pass."""

    future: Tensor  # "t b z"   mantissa of p(x_t+1..T | z_t), largest entry 1
    target: Tensor  # "t b z"   emission * future
    norm: Tensor  # "t b"       the divisor of each step; 1 at the last
    inner: Inner | None = None  # "s b r"   between two maps of the transition, where they were kept


class Losses(NamedTuple):
    """The most that underflow takes in one step, in smallest normal numbers, of vectors with entries of at most 1."""

    column: Tensor  # "1 y"          the product with a vector of ones
    push: Tensor | float  # "y"      from each entry of a pushed vector
    pull: Tensor  # ""               from all entries of a pulled vector and of its source


class Forward(NamedTuple):
    """The result of the forward pass: time first, so that a step is contiguous."""

    filtered: Tensor  # "t b z"   mantissa of p(x_1..t, z_t), largest entry 1
    emission: Tensor  # "t b z"   exp(log_obs) over its largest entry; 1 beyond the length
    norm: Tensor  # "t b"         the divisor of each step
    log_step: Tensor  # "t b"     float64: the scale of each step's start or transition, and emissions
    final: Tensor  # "b z"        exp(log_final) over its largest entry
    log_z: Tensor  # "b"          float64
    sound: Tensor | None = None  # "b"   where the pass has found it: as `far_from_underflow` says
    ahead: Ahead | None = None  # where both passes ran at once
    losses: Losses | None = None  # where they came with it, and somebody may ask
    verdict: Verdict | None = None  # where both passes ran at once
    inner: Tensor | None = None  # "s b r"   the messages between two factors, where other processes had a share in them

    @property
    def log_scale(self) -> Tensor:  # "t b"
        """The logarithm, float64, that belongs to filtered: p(x_1..t, z_t) = filtered exp(log_scale)."""
        return (self.norm.double().log() + self.log_step).cumsum(0) if self.verdict is None else self.verdict.log_scale


def forward(c: Chain, precision: Precision = "float32", *, both: bool = False) -> Forward:
    """The filtered messages and log Z. Beyond a length the messages are finite and mean nothing.

    `both`: a backward pass will follow. Where it costs little next to this one, it runs now.
    """
    if both and passes_meet(c, precision):
        return _both(c, precision)
    if (weight := looped(c)) is not None:
        from rankfold.kernels import chain_loops

        given = c.log_initial, c.log_obs, c.log_final, c.lengths, written_loss(c, c.transition.push_loss())
        return Forward(*chain_loops.forward(weight, float(c.transition.log_scale), *given))
    first, top = c.largest(c.log_initial), c.largest(c.log_final)
    x, final = torch.exp(c.log_initial - first), torch.exp(c.log_final - top)
    emission, log_step = _emission(c)
    inner: Tensor | None = None
    if c.shard is None:
        filtered, norm = _filtered(c, x, emission)
    else:
        filtered, norm, inner = in_shards.filtered(c.transition, x, emission)
    log_step[1:] += c.transition.log_scale
    log_step[0] += first[:, 0]
    total = c.sum_states(c.last(filtered).double() * final)
    run = Forward(filtered, emission, norm, log_step, final, total, inner=inner)
    return run._replace(log_z=total.log() + c.last(run.log_scale) + top[:, 0])


def passes_meet(c: Chain, precision: Precision) -> bool:
    """Whether one reading of the transition can serve both passes: few sequences on a GPU, products below float32."""
    if precision == "float32" or c.log_obs.dtype != torch.float32 or not triton_serves(c.log_obs):
        return False
    if c.shard is not None:
        return False
    few = 1 < c.log_obs.shape[1] <= LONGEST and len(c.log_obs) <= FEW and scanned(c) is None
    return few and is_composed(c.transition) and c.transition.is_written


def _both(c: Chain, precision: Precision) -> Forward:
    """Both passes at once, and the verdict on them."""
    from rankfold.kernels.forward_backward.passes import divide, weights
    from rankfold.kernels.forward_backward.soundness import bounds, judge
    from rankfold.kernels.forward_backward.triton import two_way

    assert is_composed(c.transition)
    emission, log_shift = weights(c.log_obs, c.lengths)
    (x, first), (final, top) = (
        (y[0], scale[0]) for y, scale in (weights(end[:, None], c.lengths) for end in (c.log_initial, c.log_final))
    )
    if isinstance(c.transition.log_scale, Tensor) or c.transition.log_scale:
        log_shift[1:] += c.transition.log_scale
    ends = _last(c.inside().mT) if c.ragged else None
    found, sums = two_way(c.transition.maps(), x, emission, final, ends, precision, c.transition.rounded_maps())
    filtered, norm, future, target, future_norm, inner = found
    size, rank = sums.column.shape[1], 0
    bound = bounds(sums.column, sums.ahead, sums.behind)
    push: Tensor | float
    if sums.second is None or sums.ahead is None or sums.behind is None:
        push = written_loss(c, c.transition.push_loss())
        pull = (2 * sums.column + written_loss(c, c.transition.pull_loss())).sum()
        loss = push if isinstance(push, Tensor) else norm.new_full((1,), push)
    else:  # as LowRank.push_loss and pull_loss, of sums that are there already
        loss, rank, pull = sums.second, len(sums.ahead), bound[3]
        push = 2.0 * size * sums.second + rank + bound[1] if may_look(norm) else 0.0
    divided = divide(
        filtered, norm, future, future_norm, target, emission, sums.column, loss, bound, pull, c.log_initial, rank
    )
    verdict = judge(
        norm, future_norm, divided, log_shift, c.lengths, first, top, bound, pull, size,
        tolerance(c, precision), may_repeat=may_look(norm),
    )  # fmt: skip
    log_shift[0] += first  # the first step's own, as `log_scale` adds them up
    ahead, losses = Ahead(future, target, future_norm, inner), Losses(sums.column, push, pull)
    return Forward(filtered, emission, norm, log_shift, final, verdict.log_z, None, ahead, losses, verdict)


def written_loss(c: Chain, loss: Tensor | float) -> Tensor | float:
    """What a product with the written matrix may lose, if one with its terms loses `loss`: in every entry as much."""
    return loss if isinstance(c.transition, Dense) else c.log_obs.shape[-1] * (loss + 2.0)


def tolerance(c: Chain, precision: Precision) -> float:
    """How far the two passes may differ in log Z: by the rounding of their products."""
    return 16 * round_off(c.log_obs.dtype, precision) * (c.log_obs.shape[1] + 8)


def per_entry(norm: Tensor, column: Tensor, shard: Shard | None = None) -> Tensor:  # "t b", "1 y" -> "t b"
    """The most that one step may lose in any entry by itself: in the emissions, in their product, in the rescale."""
    if shard is not None:  # rescaled before the emissions: each of the three loses of numbers of at most 1
        return torch.full_like(norm, 3.0)
    largest = torch.full_like(norm, 1.0) + column.amax()
    largest[0] = 2.0  # nothing was pushed yet
    return largest / norm + 1


def _filtered(c: Chain, x: Tensor, emission: Tensor) -> tuple[Tensor, Tensor]:  # "t b z", "t b"
    if (weight := scanned(c)) is not None:
        from rankfold.kernels import chain_scan

        return chain_scan.filter_messages(weight, x, emission, c.lengths)
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
    return filtered, tops[..., 0]


def looped(c: Chain) -> Tensor | None:  # "z y"
    """The matrix of any transition, where compiled loops take the place of these.

    A structure saves arithmetic, a loop calls: expected counts of 1 to 32 sequences were 1.1 to 4 times as fast by
    loops, of 128 and 512 sequences 0.8 to 2.4 times (16 to 128 states; rank 2 to 16, or 3 diagonals; one core).
    """
    if c.shard is not None or not loops_serve(c.log_obs.shape[-1], c.log_obs) or not may_look(c.log_obs):
        return None
    if torch.is_autocast_enabled("cpu"):  # products in bfloat16 are torch's
        return None
    return _rows(c)


def scanned(c: Chain) -> Tensor | None:  # "z y"
    """The matrix of any transition, where kernels on a GPU run along all positions in one launch."""
    num_states = c.log_obs.shape[-1]
    return None if c.shard is not None or not scans_serve(num_states, c.log_obs) else _rows(c)


def losses_of_steps(c: Chain) -> tuple[Tensor | float, Tensor | float]:  # "y", "z"
    """What underflow may take from a push and from a pull of entries of at most 1, in smallest normal numbers."""
    push, pull = c.transition.push_loss(), c.transition.pull_loss()
    if c.shard is not None or not scans_serve(c.log_obs.shape[-1], c.log_obs):
        return push, pull
    return written_loss(c, push), written_loss(c, pull)


def _rows(c: Chain) -> Tensor:  # "z y"
    if (weight := _written(c)) is not None:
        return weight
    return c.transition.rows(torch.arange(c.log_obs.shape[-1], device=c.log_obs.device)).to(c.log_obs.dtype)


def _written(c: Chain) -> Tensor | None:  # "z y"
    if not is_composed(c.transition) or not c.transition.is_written:
        return None
    maps = c.transition.maps()
    return maps[0] if len(maps) == 1 and maps[0].dtype == c.log_obs.dtype else None


def _emission(c: Chain) -> tuple[Tensor, Tensor]:  # "t b z", "t b" float64
    log_obs = c.log_obs.transpose(0, 1)
    top = c.largest(log_obs)
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
    inner: Inner | None  # "n r"   both sides between two maps of the transition, where they are known


def backward(c: Chain, f: Forward, weight: Tensor, precision: Precision) -> Backward:  # weight "b"
    """State posteriors and transition sides, each sequence weighted by `weight`.

    Messages only ever lose mass, so posteriors that sum to 1 at every position have lost none.
    """
    if f.sound is not None and (matrix := looped(c)) is not None:
        from rankfold.kernels import chain_loops

        share, loss = weight.to(matrix.dtype), written_loss(c, c.transition.pull_loss())
        return _sides(f, *chain_loops.backward(matrix, c.lengths, f, share, loss, tolerance(c, precision)))
    if f.verdict is not None and f.ahead is not None:
        future, target, _, inner = f.ahead
        trusted = f.verdict.trusted
        by_state, by_step = (x * weight.to(x.dtype) for x in (f.verdict.by_state, f.verdict.by_step))
    else:
        inside = c.inside().mT
        last = _last(inside)
        future, target, norm, inner = _future(c, f, last)
        mass = c.sum_states(future * f.filtered)
        trusted = _accounted(c, f, mass, norm, last, tolerance(c, precision))
        sound = inside & trusted
        share = weight.to(mass.dtype) / torch.where(sound, mass, 1.0)
        # Sequences not trusted are computed elsewhere; inside a captured graph, where they cannot be, they are NaN.
        doubtful = torch.where(inside & ~trusted, 0.0 if may_look(trusted) else float("nan"), 0.0).to(mass.dtype)
        by_state = torch.where(sound, share, doubtful)
        by_step = torch.where(sound & ~last, share / norm, doubtful).roll(1, 0)
    posterior, target = _weighed(f.filtered, future, target, by_state, by_step, fused=f.ahead is not None)
    if inner is not None:
        inner = inner[0].flatten(0, 1), (inner[1] * by_step[1:, :, None]).flatten(0, 1)
    return _sides(f, posterior, target, trusted, inner)


def _sides(f: Forward, posterior: Tensor, target: Tensor, trusted: Tensor, inner: Inner | None = None) -> Backward:
    if may_look(trusted) and not trusted.all():  # nothing of them, whatever their messages hold
        inner = None
        for x in (f.filtered, posterior, target):
            x[:, ~trusted] = 0.0
    num_states = posterior.shape[-1]
    source = f.filtered[:-1].reshape(-1, num_states)
    return Backward(posterior, source, target[1:].reshape(-1, num_states), trusted, inner)


def _weighed(
    filtered: Tensor, future: Tensor, target: Tensor, by_state: Tensor, by_step: Tensor, *, fused: bool
) -> tuple[Tensor, Tensor]:  # "t b z", "t b" -> "t b z", "t b z"
    if fused:
        from rankfold.kernels.forward_backward.passes import weigh

        return weigh(filtered, future, target, by_state, by_step)
    return (future * filtered).mul_(by_state.unsqueeze(-1)), target * by_step.unsqueeze(-1)


def _last(inside: Tensor) -> Tensor:  # "t b" -> "t b"
    """The last position of each sequence."""
    return inside & ~torch.cat([inside[1:], torch.zeros_like(inside[:1])])


def _future(c: Chain, f: Forward, last: Tensor) -> Ahead:
    if (weight := looped(c)) is not None:
        from rankfold.kernels import chain_loops

        return Ahead(*chain_loops.future_messages(weight, f.emission, f.final, c.lengths))
    if (weight := scanned(c)) is not None:
        from rankfold.kernels import chain_scan

        return Ahead(*chain_scan.future_messages(weight, f.emission, f.final, c.lengths))
    if c.shard is not None:
        future, target, norm, behind = in_shards.future(c.transition, f.emission, f.final, last)
        return Ahead(future, target, norm, None if f.inner is None or behind is None else (f.inner, behind))
    num_positions = len(last)
    future, target = torch.empty_like(f.filtered), torch.empty_like(f.filtered)
    tops = f.norm.new_ones(*f.norm.shape, 1)
    tiny = torch.finfo(tops.dtype).tiny
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
    return Ahead(future, target, tops[..., 0])


def log_future(c: Chain, f: Forward) -> Tensor:  # "t b z"
    """log p(x_t+1..T | z_t), float64; log_final at and beyond the last position."""
    last = _last(c.inside().mT)
    future, _, norm, _ = _future(c, f, last)
    return Scaled(future, _future_scale(c, f, norm, last)).log()


def _future_scale(c: Chain, f: Forward, norm: Tensor, last: Tensor) -> Tensor:  # "t b"   float64
    """The logarithms of what the future messages were divided by."""
    inside = c.inside().mT
    step = torch.where(inside & ~last, norm.double().log(), 0.0)
    step[:-1] += torch.where(inside, f.log_step, 0.0)[1:]
    return step.flip(0).cumsum(0).flip(0) + c.largest(c.log_final)[:, 0].double()


def _accounted(c: Chain, f: Forward, mass: Tensor, norm: Tensor, last: Tensor, tolerance: float) -> Tensor:  # "b"
    """Whether filtered times future gives log Z at every position, within range and tolerance."""
    inside = c.inside().mT
    log_future = _future_scale(c, f, norm, last)
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
    lost = c.sum_states(2 * c.transition.pull(one).to(one.dtype) + losses_of_steps(c)[1]).squeeze(0)
    info = torch.finfo(lost.dtype)
    return (lost * visible(lost.dtype)).clamp(min=info.tiny**0.75)
