"""A pass of a semi-Markov chain in one launch, where a Triton kernel serves; elsewhere call by call.

Both leave the same `Sweep`. The kernel keeps no window for others to look at: whoever has to see what closes by age
gets it made anew, which has no recurrence and takes all frames of a stretch at once.
Read next: `semi_markov_sweep.py` and `kernels/segment_scan/triton.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.dispatch import triton_serves
from rankfold.kernels.log_products import BLOCK
from rankfold.kernels.segment_scan import LARGEST, LONGEST, WIDEST
from rankfold.operators.protocol import Blocked, Composed
from rankfold.recursions.segments.sweep import Line, Linear, Seen, Sweep, sweep


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
    """What `sweep` returns and shows, in one launch if there is a kernel for it: arguments as there."""
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
        _show(seen, found.opened, log_obs - found.change.unsqueeze(-1), durations, closings, scale)
    closed = torch.exp(found.log_closed - found.top.unsqueeze(-1))
    before = torch.cat([torch.zeros_like(scale[:1]), scale[:-1]])
    return Sweep(found.opened, before, closed, found.top, scale)


def _maps(line: Line, log_obs: Tensor, durations: Tensor) -> tuple[Tensor, ...] | None:
    """What a step multiplies by, in order; None where the kernel does not serve."""
    if not isinstance(line, Linear) or not triton_serves(log_obs):
        return None
    op, work = line.transition, 2 * durations.numel()
    if len(durations) > LONGEST:
        return None
    maps: tuple[Tensor, ...] | None = None
    if isinstance(op, Composed) and op.is_written:
        maps = tuple(x.mT for x in reversed(op.maps())) if line.back else op.maps()
    elif isinstance(op, Blocked):
        maps = _blocks(op, back=line.back)
        work += 0 if maps is None else maps[0].shape[0] ** 2 * maps[0].shape[2]  # each block sums all others
    return None if maps is None or work + sum(x.numel() for x in maps) > LARGEST else maps


def _blocks(op: Blocked, *, back: bool) -> tuple[Tensor, ...] | None:  # "k s r", "k s r", "k s s"
    """Blocks that a program can hold one of."""
    found = op.blocks()
    if found is None or found[0].shape[1] * max(found[0].shape[1:]) > WIDEST**2:
        return None
    left, right, pairs = found
    return tuple(x.contiguous() for x in ((right, left, pairs.mT) if back else found))


def _show(
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
    for first in range(0, num_steps, size):
        closing = space[: min(size, num_steps - first)]
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
