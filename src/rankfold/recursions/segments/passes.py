"""Both passes over segments: log Z forward, posteriors backward, and the gradients made of them.

One sweep serves both: backward it runs in reversed time, and what opens a segment is the future after its end. A
segment's posteriors by duration, added up from the longest down, are those of its frames: nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.kernels import segment_scan
from rankfold.kernels.dispatch import triton_serves
from rankfold.numerics.scaled import largest
from rankfold.recursions.factor_gradients import at_zeros, factor_gradients
from rankfold.recursions.segments.potentials import Segments
from rankfold.recursions.segments.sweep import Linear, Logs, Sweep, exp_, least_opened, scan


class Run(NamedTuple):
    """A forward pass; frames first."""

    log_obs: Tensor  # "t b z"     less its largest entry; 0 beyond the length
    log_top: Tensor  # "t b"       float64: those largest entries
    border: Sweep | None  # what closes with the stretch before, one step; None if nothing was carried in
    frames: Sweep
    log_last: Tensor  # "d b z"    float64: the open segments after the last frame, by age
    log_z: Tensor  # "b"           float64


def forward(c: Segments, *, log: bool) -> Run:
    """log Z, and the weights of the segments that open and that close at every frame."""
    log_obs = c.observations()
    top = largest(log_obs)
    log_obs, log_top = (log_obs - top).contiguous(), top[..., 0].double()
    durations = c.durations()
    entry, ages, border = c.log_initial, None, None
    if c.is_carried:
        ages = c.log_initial.transpose(0, 1)
        border = _border(c, ages, durations, log=log)
        entry = border.opened[1]
    line = Logs(c.transition) if log else Linear(c.transition, log_obs)
    frames = scan(line, entry, log_obs, log_top.cumsum(0), durations, ages=ages)
    log_last = last_window(c, log_obs, log_top, frames.opened.double() + frames.log_before.unsqueeze(-1))
    closing = log_last + c.at_end()
    return Run(log_obs, log_top, border, frames, log_last, closing.transpose(0, 1).flatten(1).logsumexp(-1))


def _border(c: Segments, ages: Tensor, durations: Tensor, *, log: bool) -> Sweep:
    """The segments that were carried in and end where they are; `opened[1]` is what that opens."""
    line = Logs(c.transition) if log else Linear(c.transition, ages)
    closed, top = line.close(0, ages + durations.unsqueeze(1))
    opened = line.log_opened(line.open(closed), top)
    nothing = torch.full_like(opened, float("-inf"))
    zero = torch.zeros_like(c.lengths, dtype=torch.float64)[None]
    return Sweep(torch.stack([nothing, opened]), torch.cat([zero, zero]), closed[None], top[None, :, 0], zero)


def last_window(c: Segments, log_obs: Tensor, log_top: Tensor, log_opened: Tensor) -> Tensor:  # "d b z"
    """The log-weights of the segments open after each sequence's last frame, by age: float64.

    opened where each began, and the observations since, added up from the last frame backwards.
    """
    index = c.lengths - 1 - torch.arange(c.longest, device=c.lengths.device)[:, None]  # "d b"
    here = torch.arange(len(c.lengths), device=c.lengths.device)
    known, index = index >= 0, index.clamp(0)
    seen = torch.where(known.unsqueeze(-1), log_obs[index, here].double() + log_top[index, here].unsqueeze(-1), 0.0)
    if c.is_carried:
        before = c.log_initial.transpose(0, 1).double()  # "d b z"
        far = (torch.arange(c.longest, device=c.lengths.device)[:, None] - c.lengths).clamp(0)
        earlier = before[far, here]
    else:
        earlier = torch.full((), float("-inf"), dtype=torch.float64, device=log_obs.device)
    return torch.where(known.unsqueeze(-1), log_opened[index, here], earlier) + seen.cumsum(0)


class Uses(NamedTuple):
    """Posteriors of each sequence; 0 beyond its length and if it is impossible."""

    states: Tensor  # "t b z"            of the state of a frame
    starts: Tensor  # "t b z"            of a segment that begins at a frame
    ends: Tensor  # "t b z"              of a segment that ends at a frame; not of the last one
    durations: Tensor  # "d b z"         how often each duration is used, in expectation
    cuts: Tensor | None  # "d b z"       the last segment by its visible length, where the end may cut it
    carried: Tensor | None  # "d b z"    the segment that was carried in, by its age
    log_onward: Tensor | None  # "d b z" log p(all frames | a segment of that age was carried in): float64
    log_begun: Tensor  # "t b z"         log p(frames from t on | a segment begins at t), over log_begun_scale
    log_begun_scale: Tensor  # "t b"     float64
    log_after: Tensor  # "t b z"         log p(frames after t | a segment ends at t), over log_after_scale
    log_after_scale: Tensor  # "t b"     float64
    trusted: Tensor  # "b"               whether the posteriors account for all of Z


class _Reversed:
    """Sequences turned around, each within its own length: step u is frame length - 1 - u."""

    def __init__(self, c: Segments, num_steps: int) -> None:
        steps = torch.arange(num_steps, device=c.lengths.device)[:, None]
        self._index = c.lengths - 1 - steps
        self.beyond = -1 - self._index  # "u b"   frames before the first, 0 for the one just before it
        self._here = torch.arange(len(c.lengths), device=c.lengths.device)
        self._inside = self._index >= 0
        self._straight = not c.ragged and num_steps == c.log_obs.shape[1]

    def __call__(self, x: Tensor, fill: float | bool = 0.0) -> Tensor:  # "t b ..." -> "u b ...", or back
        """The entries in reversed order, `fill` beyond the length."""
        if self._straight:
            return x.flip(0)
        inside = self._inside if x.ndim == 2 else self._inside.unsqueeze(-1)
        return torch.where(inside, x[self._index.clamp(0), self._here], fill)

    def outside(self, x: Tensor) -> Tensor:  # "d b z" -> "u b z"
        """Entries for the frames before the first, nearest first; meaningless inside."""
        return x[self.beyond.clamp(0, len(x) - 1), self._here]


def backward(c: Segments, run: Run, *, log: bool) -> Uses:
    """All posteriors. Those of a frame's states sum to 1 unless something was lost: then it is not trusted."""
    num_frames, num_ages = len(run.log_obs), c.longest
    turn = _Reversed(c, num_frames + num_ages * c.is_carried)
    back = _Reversed(c, num_frames)
    log_z = torch.where(run.log_z == float("-inf"), float("inf"), run.log_z)
    log_obs, log_path = turn(run.log_obs), turn(run.log_top).cumsum(0)
    opened, scale = turn(run.frames.opened, float("-inf")), turn(run.frames.log_before) - log_z
    if c.is_carried:
        before = turn.outside(c.log_initial.transpose(0, 1))
        outside = ((turn.beyond >= 0) & (turn.beyond < num_ages)).unsqueeze(-1)
        opened = torch.where(outside, before, opened)
    tally = _Tally(c, opened, scale, turn.beyond if c.is_carried else None)
    line = Logs(c.transition, back=True) if log else Linear(c.transition, log_obs, back=True)
    run_back = scan(line, c.entry(), log_obs, log_path, c.durations(), closings=c.cuts(), seen=tally.add)
    log_begun = run_back.closed if log else run_back.closed.log()
    begun_scale = run_back.log_scale if log else run_back.log_scale + run_back.top
    frames = run.frames
    log_after, after_scale = back(run_back.opened[:num_frames]), back(run_back.log_before[:num_frames])
    here = frames.closed if log else frames.closed.log()
    here_scale = frames.log_scale + after_scale - log_z + (0.0 if log else frames.top)
    inside = c.inside().mT
    ends = torch.exp(here + log_after + here_scale.to(here.dtype).unsqueeze(-1))
    uses = Uses(
        back(tally.states[:num_frames]),
        back(tally.starts[:num_frames]),
        torch.where(inside.unsqueeze(-1), ends, 0.0),
        tally.durations,
        tally.cuts,
        tally.by_age(tally.starts, c.lengths) if c.is_carried else None,
        tally.by_age(tally.log_onward, c.lengths) if c.is_carried else None,
        back(log_begun[:num_frames]),
        back(begun_scale[:num_frames]),
        log_after,
        after_scale,
        torch.ones_like(c.lengths, dtype=torch.bool),
    )
    return (
        uses
        if log
        else uses._replace(trusted=_trusted(c, run, uses, back(_small(c, run_back)[:num_frames], fill=False)))
    )


class _Tally:
    """Adds up the posteriors of segments, some beginnings at a time, all their durations at once."""

    def __init__(self, c: Segments, opened: Tensor, scale: Tensor, beyond: Tensor | None) -> None:
        self._opened, self._scale, self._beyond = opened, scale, beyond
        self.states, self.starts = torch.zeros_like(opened), torch.zeros_like(opened)
        self.durations = opened.new_zeros(c.longest, *opened.shape[1:])
        self.cuts = torch.zeros_like(self.durations) if c.cut else None
        self.log_onward = opened.new_zeros(opened.shape if c.is_carried else (0,), dtype=torch.float64)

    def add(self, first: int, closing: Tensor, log_scale: Tensor) -> None:  # "s d b z", "s b"
        at = slice(first, first + len(closing))
        num_ages = closing.shape[1]
        if self._beyond is not None:  # a segment that was carried in has not ended before
            ages = torch.arange(num_ages, device=closing.device)[:, None]
            closing.masked_fill_((ages < self._beyond[at].unsqueeze(1)).unsqueeze(-1), float("-inf"))
            self.log_onward[at] = torch.logsumexp(closing, 1) + log_scale.unsqueeze(-1)
        factor = self._opened[at] + (self._scale[at] + log_scale).to(closing.dtype).unsqueeze(-1)
        share = exp_(torch.add(closing, factor.unsqueeze(1), out=closing))
        if segment_scan.shared(num_ages, share.shape[-1]) and triton_serves(share):
            self._cover(first, share)
            return
        covering = torch.zeros_like(share[:, 0])  # by segments of more than this age, from the longest down
        for age in reversed(range(num_ages)):
            covering += share[:, age]
            begin = max(first, age)
            if begin < at.stop:
                self.states[begin - age : at.stop - age] += covering[begin - first :]
        self.starts[at] = covering
        if self.cuts is not None:
            for step in range(first, min(at.stop, num_ages)):
                self.cuts[step] = share[step - first, step]
                share[step - first, step] = 0.0
        self.durations += share.sum(0)

    def _cover(self, first: int, share: Tensor) -> None:  # "s d b z"
        """The same in a few launches."""
        from rankfold.kernels.segment_scan import uses

        if self.cuts is not None:
            last = share.diagonal(first, 0, 1)  # "b z n"   open since the first step
            cuts = last.clone()
            self.cuts[first : first + cuts.shape[-1]] = cuts.permute(2, 0, 1)
            last.zero_()
            self.durations += share.sum(0)
            last.copy_(cuts)
        else:
            self.durations += share.sum(0)
        uses.cover(share, first, self.states, self.starts)

    def by_age(self, x: Tensor, lengths: Tensor) -> Tensor:  # "u b z" -> "d b z"
        """The entries of the segments that were carried in, by age."""
        index = lengths + torch.arange(len(self.durations), device=lengths.device)[:, None]
        return x[index, torch.arange(len(lengths), device=lengths.device)]


def _small(c: Segments, back: Sweep) -> Tensor:  # "u b z"
    """Which futures after a segment's end are too small for all their digits."""
    small = back.opened[1:] - back.top[:-1].unsqueeze(-1) < least_opened(c, back=True)
    return torch.cat([torch.zeros_like(small[:1]) if len(small) else small.new_zeros(back.opened.shape), small])


def _trusted(c: Segments, run: Run, uses: Uses, small: Tensor) -> Tensor:  # "b"
    """Whether the states of every frame have all the mass (none if impossible), entries that lack digits almost none.

    Messages only ever lose mass, but for those too small for their digits: posteriors that sum to 1 lost none.
    """
    info = torch.finfo(uses.states.dtype)
    num_frames = len(uses.states)
    logs = run.frames.log_scale.abs() + uses.log_begun_scale.abs()
    tolerance = 16 * info.eps * (num_frames + 8) + (num_frames + 8) * 2.0**-52 * logs
    impossible = run.log_z == float("-inf")
    mass = uses.states.double().sum(-1)
    whole = torch.where(impossible, mass == 0, (mass - 1).abs() <= tolerance)
    if uses.carried is not None:  # one of the segments that were carried in is the one that was
        mass = uses.carried.double().sum((0, 2))
        whole &= torch.where(impossible, mass == 0, (mass - 1).abs() <= tolerance)
    clear = torch.where(small, uses.ends, 0.0).double().sum(-1) <= tolerance
    bounded = targets(c, run, uses).amax(-1) <= info.max**0.75
    trusted = (torch.where(c.inside().mT, whole & clear & bounded, True)).all(0)
    # Sums that run over the steps outside of a sequence, too: nothing counts there, unless a product overflowed.
    for summed in (uses.durations, uses.cuts):
        if summed is not None:
            trusted &= summed.sum((0, 2)).isfinite()
    return trusted


def targets(c: Segments, run: Run, uses: Uses) -> Tensor:  # "t b z"
    """target[y] at t, where source[z] A[z, y] target[y] is the expected use of z -> y between frames t - 1 and t."""
    log_z = torch.where(run.log_z == float("-inf"), float("inf"), run.log_z)
    source = run.frames.top + run.frames.log_scale
    first = torch.zeros_like(source[:1]) if run.border is None else run.border.top + run.border.log_scale
    scale = torch.cat([first, source[:-1]]) + uses.log_begun_scale - log_z + c.transition.log_scale
    return torch.exp(uses.log_begun + scale.to(uses.log_begun.dtype).unsqueeze(-1))


def gradients(
    c: Segments,
    run: Run,
    uses: Uses,
    weight: Tensor,  # "b"
    elsewhere: Tensor | None,  # "b"   None: all are here
    *,
    log: bool,
    of_factors: bool,
) -> list[Tensor]:
    """d (weight . log_z) / d (log_initial, log_duration, log_obs, log_final, *factors), but for those elsewhere."""
    weight = weight.to(uses.states.dtype)[:, None]

    def weigh(x: Tensor) -> Tensor:  # "... b z"
        x = x * weight
        return x if elsewhere is None else x.masked_fill_(elsewhere[:, None], 0.0)

    states = weigh(uses.states)
    initial = states[0].clone() if uses.carried is None else weigh(uses.carried).transpose(0, 1)
    last = states[c.lengths - 1, torch.arange(len(c.lengths), device=c.lengths.device)]
    durations = torch.zeros_like(c.log_duration)
    durations[:, : c.longest] = weigh(uses.durations).sum(1).mT
    if uses.cuts is not None and c.ends is None:
        durations += _through_survival(c, weigh(uses.cuts).sum(1))
    grads = [initial, durations, states.transpose(0, 1), last]
    if not of_factors:
        return grads
    by_factor = _of_logs(c, run, uses, weight) if log else _of_factors(c, run, uses, weigh, elsewhere)
    return [*grads, *by_factor]


def _through_survival(c: Segments, grad: Tensor) -> Tensor:  # "d z" -> "z d"
    with torch.inference_mode(False), torch.enable_grad():
        log_duration = c.log_duration.detach().clone().requires_grad_()
        closings = c.replace(log_duration=log_duration).closings()
        return torch.autograd.grad(closings, log_duration, grad.clone(), materialize_grads=True)[0]


def _of_factors(
    c: Segments, run: Run, uses: Uses, weigh: Callable[[Tensor], Tensor], elsewhere: Tensor | None
) -> tuple[Tensor, ...]:
    inside = c.inside().mT
    target = torch.where(inside.unsqueeze(-1), weigh(targets(c, run, uses)), 0.0)
    source = run.frames.closed[:-1]
    if run.border is not None:
        source = torch.cat([run.border.closed, source])
    inside, target = (x[len(target) - len(source) :] for x in (inside, target))
    if elsewhere is not None:
        if not bool(target.any()):  # no transition is used, and weights whose product overflowed would make that NaN
            return tuple(torch.zeros_like(factor) for factor in c.transition.factors())
        inside = inside & ~elsewhere
    if may_look(source) and (c.ragged or elsewhere is not None):
        # Neither side may hold what overflowed: beyond a length, or in a sequence that another rung has.
        source = torch.where(inside.unsqueeze(-1), source, 0.0)
    return factor_gradients(c, source, target, log=False)


def _of_logs(c: Segments, run: Run, uses: Uses, weight: Tensor) -> tuple[Tensor, ...]:  # "b 1"
    """In logs no range is too wide; at linear weights of exactly zero from the linear product, as for chains."""
    log_z = torch.where(run.log_z == float("-inf"), float("inf"), run.log_z)
    source = run.frames.closed[:-1] + run.frames.log_scale[:-1].unsqueeze(-1)
    if run.border is not None:
        source = torch.cat([run.border.closed, source])
    grads = factor_gradients(c, source, (uses.starts * weight)[len(uses.starts) - len(source) :], log=True)
    begun = (uses.log_begun + uses.log_begun_scale.unsqueeze(-1))[len(uses.starts) - len(source) :]
    inside = c.inside().mT[len(uses.starts) - len(source) :].unsqueeze(-1)
    return at_zeros(c, grads, source, torch.where(inside, begun, float("-inf")), log_z, weight[:, 0])
