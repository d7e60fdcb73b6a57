"""Answers as frames come in: what is known of the state from the past and the present alone.

Read next: `decoding/online.py` for chains, `recursions/semi_markov.py` (`carry`) for segments.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.online import filter as filtered
from rankfold.recursions import semi_markov
from rankfold.recursions.chain import advance
from rankfold.recursions.potentials import ChainPotentials
from rankfold.recursions.semi_markov_potentials import SemiMarkovPotentials


class Stream(NamedTuple):
    """What is carried from one frame to the next."""

    log_next: Tensor  # "1 z": of the next state; "1 d z": of the open segments, by age
    log_likelihood: float  # of all frames so far


@torch.no_grad()
def stepped(p: ChainPotentials | SemiMarkovPotentials, before: float) -> tuple[Tensor, Stream]:  # "z"
    """The distribution of the state at the one frame of `p`, and what to carry on. Cost: z r, and d z for segments."""
    if isinstance(p, ChainPotentials):
        ahead = advance(p)
        return ahead.log_filtered[0].exp(), Stream(ahead.log_next, before + float(ahead.log_z))
    p = p._replace(censored=True)
    carried = semi_markov.carry(p)
    return _still_open(carried, p)[0], Stream(carried, before + float(semi_markov.log_z(p)))


@torch.no_grad()
def all_filtered(p: ChainPotentials | SemiMarkovPotentials) -> Tensor:  # "b t z"
    """The distribution of every state given the frames up to its own; means nothing beyond a length.

    Segments go frame by frame: a step must see each frame as the last one.
    """
    if isinstance(p, ChainPotentials):
        return filtered(p).log_filtered.exp()
    rows, initial = [], p.log_initial
    for t in range(p.log_obs.shape[1]):
        one = p._replace(log_initial=initial, log_obs=p.log_obs[:, t : t + 1], lengths=None, censored=True)
        initial = semi_markov.carry(one)
        rows.append(_still_open(initial, p))
    return torch.stack(rows, 1)


def _still_open(carried: Tensor, p: SemiMarkovPotentials) -> Tensor:  # "b d z" -> "b z"
    """The distribution of the state of the open segment: each age with all durations that reach it."""
    return (carried + semi_markov.survival(p.log_duration).mT).logsumexp(1).exp()
