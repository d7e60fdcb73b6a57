"""Answers as frames come in: what is known of the state from the past and the present alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.online import filter as filtered
from rankfold.recursions import segments
from rankfold.recursions.chain import advance
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials


class Stream(NamedTuple):
    """What is carried from one frame to the next."""

    log_next: Tensor  # "1 z": of the next state; "1 d z": of the open segments, by age
    log_likelihood: float  # of all frames so far


@torch.no_grad()
def stepped(p: ChainPotentials | SegmentPotentials, before: float) -> tuple[Tensor, Stream]:  # "z"
    """The distribution of the state at the one frame of `p`, and what to carry on. Cost: z r, and d z for segments."""
    if isinstance(p, ChainPotentials):
        ahead = advance(p)
        return ahead.log_filtered[0].exp(), Stream(ahead.log_next, before + float(ahead.log_z))
    p = p._replace(censored=True)
    carried = segments.carry(p)
    return _still_open(carried, p)[0], Stream(carried, before + float(segments.log_z(p)))


@torch.no_grad()
def all_filtered(p: ChainPotentials | SegmentPotentials) -> Tensor:  # "b t z"
    """The distribution of every state given the frames up to its own; means nothing beyond a length.

    Segments go frame by frame: a step must see each frame as the last one.
    """
    if isinstance(p, ChainPotentials):
        return filtered(p).log_filtered.exp()
    rows, initial = [], p.log_initial
    for t in range(p.log_obs.shape[1]):
        one = p._replace(log_initial=initial, log_obs=p.log_obs[:, t : t + 1], lengths=None, censored=True)
        initial = segments.carry(one)
        rows.append(_still_open(initial, p))
    return torch.stack(rows, 1)


def _still_open(carried: Tensor, p: SegmentPotentials) -> Tensor:  # "b d z" -> "b z"
    """The distribution of the state of the open segment: each age with all durations that reach it."""
    return (carried + segments.survival(p.log_duration).mT).logsumexp(1).exp()
