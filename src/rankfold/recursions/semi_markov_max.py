"""The best segmentation of a semi-Markov chain: the same steps with a maximum in place of both sums.

Scores are float64 whatever the potentials are. Pointers are O(b t z): for every frame the best duration of a
segment that ends there and the best predecessor of one that begins there. Read next: `decoding/segments.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.operators.protocol import MaxOperator
from rankfold.recursions.semi_markov_forward import last_window
from rankfold.recursions.semi_markov_potentials import Segments


def best_segments(c: Segments, transition: MaxOperator) -> tuple[Tensor, Tensor, Tensor]:  # "b t", "b t", "b"
    """The states of the best segmentation, where its segments begin, and its log-weight.

    States are -1 beyond a length and for impossible sequences. Cost: b t d z additions and one `push_max` a frame.
    """
    frames, durations = c.observations().double(), c.durations().double().unsqueeze(1)
    window = torch.full((c.longest, *frames.shape[1:]), float("-inf"), dtype=torch.float64, device=frames.device)
    if c.carried:
        window = c.log_initial.transpose(0, 1).double()
    opened, came, lasted = [], [], []
    entry = c.log_initial.double()
    for t, frame in enumerate(frames):
        if t or c.carried:
            score, age = (window + durations).max(0)
            entry, source = transition.push_max(score)
            lasted.append(age.int())
            came.append(source.int())
        opened.append(entry)
        window = torch.cat([entry.unsqueeze(0), window[:-1]]) + frame
    last = last_window(c, frames, frames.new_zeros(frames.shape[:2]), torch.stack(opened))
    score = last + c.closings().double().unsqueeze(1) + c.log_final.double()
    log_prob, choice = score.transpose(0, 1).flatten(1).max(-1)
    num_states = frames.shape[2]
    ends = choice % num_states, choice // num_states + 1
    return (*_follow(c, ends, lasted, came, log_prob > float("-inf")), log_prob)


def _follow(
    c: Segments, ends: tuple[Tensor, Tensor], lasted: list[Tensor], came: list[Tensor], possible: Tensor
) -> tuple[Tensor, Tensor]:  # "b t", "b t"
    """From the last segment back: as many frames as it lasted, then its best predecessor."""
    state, left = ends
    states, begins = [], []
    for t in reversed(range(c.log_obs.shape[1])):
        inside = (t < c.lengths) & possible
        states.append(torch.where(inside, state, -1))
        begins.append(inside & (left == 1))
        left = torch.where(inside, left - 1, left)
        if t:
            over = inside & (left == 0)
            at = t - 1 + c.carried  # pointers begin with the border, where something was carried in
            source = came[at].gather(1, state[:, None])[:, 0].long()
            state = torch.where(over, source, state)
            left = torch.where(over, lasted[at].gather(1, state[:, None])[:, 0].long() + 1, left)
    return torch.stack(states[::-1], 1), torch.stack(begins[::-1], 1)
