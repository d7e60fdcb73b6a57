"""One pass over all frames, in either direction: a window of open segments by age, and its sum.

A frame adds its observations to all of them, one addition that also raises every age by one; the sum over ages is
the weight that closes there, and one product with the transition opens the next segments. Logarithms, because frames
of many features differ by thousands of nats; only the product is linear. Nothing is ever subtracted but a scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankfold.kernels import segment_scan
from rankfold.kernels.dispatch import triton_serves
from rankfold.kernels.log_products import BLOCK
from rankfold.kernels.segment_scan import LARGEST, LONGEST, WIDEST
from rankfold.numerics.scaled import visible
from rankfold.operators.protocol import Blocked, Composed, Operator
from rankfold.recursions.segments.potentials import Segments

# Frames between two changes of scale: a change costs a call, and values drift by some nats per frame without.
RENEW = 8

# (first step, weights of the segments closing there by age "s d b z", their log-scale "s b")
Seen = Callable[[int, Tensor, Tensor], None]


def exp_(log_x: Tensor) -> Tensor:
    """The exponential, in place; 0 where it would be below the smallest normal number.

    Half of a window is that small. A CPU takes 5 ns for an ordinary exponential, 20 to 100 for one that
    underflows, 3 for that of -inf; a GPU takes the same time for all, and a call more would cost it.
    """
    if not log_x.is_cuda:
        torch.threshold_(log_x, math.log(torch.finfo(log_x.dtype).tiny), float("-inf"))
    return log_x.exp_()


class Line(Protocol):
    """The arithmetic of the sum over ages and of the product with the transition."""

    def close(self, step: int, closing: Tensor) -> tuple[Tensor, Tensor]: ...  # "d b z" -> "b z", scale "b 1"
    def open(self, closed: Tensor) -> Tensor: ...  # "b z" -> "b z"
    def log_opened(self, opened: Tensor, top: Tensor, out: Tensor | None = None) -> Tensor: ...  # "... z", a logarithm


class Linear:
    """Sums and products of numbers scaled to at most the number of ages; what underflows is bounded elsewhere."""

    noise: tuple[Tensor, Tensor] | None = None  # "s b", "z": where missing weight is followed, the pass's tops and it

    def __init__(self, transition: Operator, like: Tensor, *, back: bool = False) -> None:
        self.transition, self.back, self.log_scale = transition, back, transition.log_scale
        self._product = transition.pull if back else transition.push
        self._scratch: Tensor | None = None
        # A vector without weight has no largest entry; any finite scale serves, and its entries stay zero.
        self._lowest = torch.full((), -torch.finfo(like.dtype).max, dtype=like.dtype, device=like.device)

    def close(self, step: int, closing: Tensor) -> tuple[Tensor, Tensor]:
        if self._scratch is None:
            self._scratch = torch.empty_like(closing)
        top = torch.maximum(closing.amax((0, 2)), self._lowest).unsqueeze(-1)
        torch.sub(closing, top, out=self._scratch)
        return exp_(self._scratch).sum(0), top

    def open(self, closed: Tensor) -> Tensor:
        return self._product(closed).to(closed.dtype)

    def log_opened(self, opened: Tensor, top: Tensor, out: Tensor | None = None) -> Tensor:
        if isinstance(self.log_scale, Tensor) or self.log_scale:
            top = (top + self.log_scale).to(opened.dtype)
        return torch.add(opened.log(), top, out=out)


class Logs:
    """Logarithms throughout: exact at any range, an exponential for every term of the product."""

    def __init__(self, transition: Operator, *, back: bool = False) -> None:
        self._product = transition.pull_log if back else transition.push_log

    def close(self, step: int, closing: Tensor) -> tuple[Tensor, Tensor]:
        closed = torch.logsumexp(closing, 0)
        return closed, closed.amax(-1, keepdim=True)

    def open(self, closed: Tensor) -> Tensor:
        return self._product(closed)

    def log_opened(self, opened: Tensor, top: Tensor, out: Tensor | None = None) -> Tensor:
        return opened if out is None else out.copy_(opened)


def missing(c: Segments, *, back: bool = False) -> Tensor:  # "z"
    """The most that a linear product may lose: of every age of what it multiplies, of that sum, and in the product.

    Programs that share a sequence scale their parts of the sums once more, and may lose as much again.
    """
    one, op = torch.ones_like(c.log_final[:1]), c.transition
    column = (op.pull if back else op.push)(one).to(one.dtype)[0]
    parts = 1.0 if segment_scan.SHARED_FROM is None else 2.0
    return (c.longest + 1) * column + parts * (op.pull_loss() if back else op.push_loss())


def least_opened(c: Segments, *, back: bool = False) -> Tensor:  # "z"
    """The logarithm, over the scale of what closed, at and above which an entry that opens has all its digits."""
    lost = missing(c, back=back)
    return lost.log() + torch.full_like(lost, visible(lost.dtype)).log() + c.transition.log_scale


class Sweep(NamedTuple):
    """The result of a pass, steps first; scales are float64, one for every step and sequence."""

    opened: Tensor  # "s b z"     log-weight of all that lies behind a segment opening at this step
    log_before: Tensor  # "s b"   the scale of `opened`
    closed: Tensor  # "s b z"     the weight of all segments closing here, linear or log as the line has it
    top: Tensor  # "s b"          what linear `closed` was divided by, as a logarithm
    log_scale: Tensor  # "s b"    the scale of `closed`, without `top`


def sweep(
    line: Line,
    entry: Tensor,  # "b z"
    log_obs: Tensor,  # "s b z"
    log_path: Tensor,  # "s b"   float64: the scale taken from the observations up to each step
    durations: Tensor,  # "d z"
    *,
    ages: Tensor | None = None,  # "d b z"
    closings: Tensor | None = None,  # "d z" or "d b z"
    seen: Seen | None = None,
) -> Sweep:
    """Open segments with `entry`, add frame after frame, close and open.

    `ages` are segments open already, youngest first. Segments that have been open from the first step on
    close by `closings` instead of `durations`, if given. `seen` gets what closes at each step by age, some
    steps at a time. Cost: a few calls per step on "d b z", one product; memory: `opened` and `closed` of all steps.
    """
    (num_steps, num_sequences, num_states), num_ages = log_obs.shape, len(durations)
    rows = [log_obs.new_full((num_ages + 1, num_sequences, num_states), float("-inf")) for _ in range(2)]
    rows[0][0] = entry
    if ages is not None:
        rows[0][1:] = ages
    # Row t holds the entry and then the ages: its first d, with a frame added, are the next row's ages.
    fronts, older, newer = ([x[0] for x in rows], [x[:-1] for x in rows], [x[1:] for x in rows])
    slots = _Slots(num_steps, newer[0], seen)
    by_duration, frames = durations.unsqueeze(1), log_obs.unbind(0)
    closed: list[Tensor] = []
    opened: list[Tensor] = []
    tops: list[Tensor] = []
    shifts: list[Tensor] = []
    shift = log_path.new_zeros(num_sequences)
    for step in range(num_steps):
        here, there, frame = step % 2, 1 - step % 2, frames[step]
        if step % RENEW == 0 and step:
            change = torch.where(tops[-1].abs() < torch.finfo(frame.dtype).max, tops[-1], 0.0)
            frame, shift = frame - change, shift + change[:, 0]
        shifts.append(shift)
        torch.add(older[here], frame, out=newer[there])
        closing = slots.next()
        torch.add(newer[there], by_duration, out=closing)
        if closings is not None and step < num_ages:
            torch.add(newer[there][step], closings[step], out=closing[step])
        x, top = line.close(step, closing)
        closed.append(x)
        tops.append(top)
        slots.done(step, log_path, shifts)
        if step < num_steps - 1:
            opened.append(line.open(x))
            line.log_opened(opened[-1], top, out=fronts[there])
    return _stacked(line, entry, closed, tops, opened, log_path + torch.stack(shifts))


def _stacked(
    line: Line, entry: Tensor, closed: list[Tensor], tops: list[Tensor], opened: list[Tensor], scale: Tensor
) -> Sweep:
    top = torch.stack(tops)
    rest = [line.log_opened(torch.stack(opened), top[:-1])] if opened else []
    before = torch.cat([torch.zeros_like(scale[:1]), scale[:-1]])
    return Sweep(torch.cat([entry[None], *rest]), before, torch.stack(closed), top[..., 0], scale)


class _Slots:
    """Where each step writes closing segments: one window, or as many as BLOCK entries hold if `seen` reads them."""

    def __init__(self, num_steps: int, like: Tensor, seen: Seen | None) -> None:
        count = 1 if seen is None else max(1, min(num_steps, BLOCK // like.numel()))
        self._seen, self._space = seen, like.new_empty(count, *like.shape)
        self._rows, self._used, self._num_steps = self._space.unbind(0), 0, num_steps

    def next(self) -> Tensor:  # "d b z"
        return self._rows[self._used]

    def done(self, step: int, log_path: Tensor, shifts: list[Tensor]) -> None:
        if self._seen is None:
            return
        self._used += 1
        if self._used == len(self._rows) or step == self._num_steps - 1:
            first = step + 1 - self._used
            scale = log_path[first : step + 1] + torch.stack(shifts[first : step + 1])
            self._seen(first, self._space[: self._used], scale)
            self._used = 0


def scan(
    line: Line,
    entry: Tensor,  # "b z"
    log_obs: Tensor,  # "s b z"
    log_path: Tensor,  # "s b"
    durations: Tensor,  # "d z"
    *,
    ages: Tensor | None = None,  # "d b z"
    closings: Tensor | None = None,  # "d z" or "d b z"
    seen: Seen | None = None,
) -> Sweep:
    """The same as `sweep`, in one launch if there is a kernel for it: arguments as there."""
    maps = _maps(line, log_obs, durations)
    if maps is None or not isinstance(line, Linear):
        return sweep(line, entry, log_obs, log_path, durations, ages=ages, closings=closings, seen=seen)
    from rankfold.kernels.segment_scan import triton as kernel

    (_, num, width), num_ages = log_obs.shape, len(durations)
    if ages is None:
        window = log_obs.new_full((num, num_ages, width), float("-inf"))
    else:
        window = ages.flip(0).transpose(0, 1).contiguous()
    # No copy from the host, which no captured graph may have.
    log_scale = (log_obs.new_zeros(()) + line.log_scale).to(log_obs.dtype)
    by_end = durations if closings is None else closings
    by_end = by_end if by_end.ndim == 3 else by_end.unsqueeze(1).expand(num_ages, num, width)
    found = kernel.scan(window, entry, log_obs, durations, by_end, maps, log_scale, line.noise)
    scale = log_path + found.change.double().cumsum(0)
    if seen is not None:
        show(seen, found.opened, log_obs - found.change.unsqueeze(-1), durations, closings, scale)
    closed = torch.exp(found.log_closed - found.top.unsqueeze(-1))
    before = torch.cat([torch.zeros_like(scale[:1]), scale[:-1]])
    return Sweep(found.opened, before, closed, found.top, scale)


def _maps(line: Line, log_obs: Tensor, durations: Tensor) -> tuple[Tensor, ...] | None:
    """The matrices that a step multiplies by, in order; None where the kernel does not serve."""
    if not isinstance(line, Linear) or not triton_serves(log_obs):
        return None
    op, work = line.transition, 2 * durations.numel()
    maps: tuple[Tensor, ...] | None = None
    if isinstance(op, Composed) and op.is_written:
        maps = tuple(x.mT for x in reversed(op.maps())) if line.back else op.maps()
    elif isinstance(op, Blocked):
        maps = _blocks(op, back=line.back)
        work += 0 if maps is None else maps[0].shape[0] ** 2 * maps[0].shape[2]  # each block sums all others
    if maps is None:
        return None
    if segment_scan.shared(*durations.shape):
        from rankfold.kernels.segment_scan import team

        num, width = log_obs.shape[1:]
        if team.team(maps, num, len(durations), width, team.multiprocessors(log_obs)) is not None:
            return maps
    return None if len(durations) > LONGEST or work + sum(x.numel() for x in maps) > LARGEST else maps


def _blocks(op: Blocked, *, back: bool) -> tuple[Tensor, ...] | None:  # "k s r", "k s r", "k s s"
    """Blocks that a program can hold one of."""
    found = op.blocks()
    if found is None or found[0].shape[1] * max(found[0].shape[1:]) > WIDEST**2:
        return None
    left, right, pairs = found
    return tuple(x.contiguous() for x in ((right, left, pairs.mT) if back else found))


def show(
    seen: Seen,
    opened: Tensor,  # "s b z"
    frames: Tensor,  # "s b z"
    durations: Tensor,  # "d z"
    closings: Tensor | None,  # "d z" or "d b z"
    log_scale: Tensor,  # "s b"
) -> None:
    """Every segment's weight where it closes, by age, as many steps at a time as BLOCK entries hold.

    opened where it began, and the frames since, added up from the last backwards.
    """
    num_steps, num_ages = len(opened), len(durations)
    size = max(1, min(num_steps, BLOCK // (num_ages * opened[0].numel())))
    space = opened.new_empty(size, num_ages, *opened.shape[1:])
    fused = segment_scan.shared(num_ages, opened.shape[-1]) and triton_serves(opened)
    for first in range(0, num_steps, size):
        closing = space[: min(size, num_steps - first)]
        if fused:
            from rankfold.kernels.segment_scan import uses

            by_end = closings if closings is None or closings.ndim == 3 else closings.unsqueeze(1).expand_as(space[0])
            uses.unroll(closing, first, opened.contiguous(), frames.contiguous(), durations.contiguous(), by_end)
            seen(first, closing, log_scale[first : first + len(closing)])
            continue
        total = torch.zeros_like(closing[:, 0])
        for age in range(num_ages):
            begin, stop = max(first, age), first + len(closing)
            closing[: begin - first, age] = float("-inf")
            if begin < stop:
                here = total[begin - first :]
                here += frames[begin - age : stop - age]
                torch.add(here, opened[begin - age : stop - age], out=closing[begin - first :, age])
                if closings is not None and first <= age:  # open from the first step on
                    closing[begin - first, age] += closings[age]
                    begin += 1
                closing[begin - first :, age] += durations[age]
        seen(first, closing, log_scale[first : first + len(closing)])
