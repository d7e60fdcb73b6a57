"""The forward pass of a semi-Markov chain: log Z, and for every frame what opens and what closes there.

Read next: `semi_markov_sweep.py`, the loop over frames that both directions share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.recursions.semi_markov_fused import scan
from rankfold.recursions.semi_markov_potentials import Segments
from rankfold.recursions.semi_markov_sweep import Linear, Logs, Sweep


class Run(NamedTuple):
    """A forward pass; frames first."""

    log_obs: Tensor  # "t b z"     less its largest entry; 0 beyond the length
    log_top: Tensor  # "t b"       float64: those largest entries
    border: Sweep | None  # what closes with the stretch before, one step; None if nothing was carried in
    frames: Sweep
    log_last: Tensor  # "d b z"    float64: the open segments after the last frame, by age
    log_z: Tensor  # "b"           float64


def forward(c: Segments, *, log: bool) -> Run:
    """log Z, and for every frame what opens and what closes there."""
    log_obs = c.observations()
    top = largest(log_obs)
    log_obs, log_top = (log_obs - top).contiguous(), top[..., 0].double()
    durations = c.durations()
    entry, ages, border = c.log_initial, None, None
    if c.carried:
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
    if c.carried:
        before = c.log_initial.transpose(0, 1).double()  # "d b z"
        far = (torch.arange(c.longest, device=c.lengths.device)[:, None] - c.lengths).clamp(0)
        earlier = before[far, here]
    else:
        earlier = torch.full((), float("-inf"), dtype=torch.float64, device=log_obs.device)
    return torch.where(known.unsqueeze(-1), log_opened[index, here], earlier) + seen.cumsum(0)
