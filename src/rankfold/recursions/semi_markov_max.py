"""The best segmentation of a semi-Markov chain: the same steps with a maximum in place of both sums.

Scores are float64 whatever the potentials are. Pointers are O(b t z): for every frame the best duration of a
segment that ends there and the best predecessor of one that begins there. Read next: `decoding/segments.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rankfold.operators.protocol import MaxOperator
from rankfold.recursions.semi_markov_potentials import Segments


def best_segments(c: Segments, transition: MaxOperator) -> tuple[Tensor, Tensor, Tensor]:  # "b t", "b t", "b"
    """The states of the best segmentation, where its segments begin, and its log-weight.

    States are -1 beyond a length and for impossible sequences. Cost: b t d z additions and one `push_max` a frame.
    Memory: a pointer of each kind for every frame and state, in one to four bytes.
    """
    frames, durations = c.observations(), c.durations().double().unsqueeze(1)
    num_frames, num_sequences, num_states = frames.shape
    shape = (c.longest, num_sequences, num_states)
    window = torch.full(shape, float("-inf"), dtype=torch.float64, device=frames.device)
    if c.carried:
        window = c.log_initial.transpose(0, 1).double()
    rows = (num_frames - 1 + c.carried, num_sequences, num_states)
    came = torch.empty(rows, dtype=_narrowest(num_states), device=frames.device)
    lasted = torch.empty(rows, dtype=_narrowest(c.longest), device=frames.device)
    entry, last, ends = c.log_initial.double(), window, set(c.lengths.tolist())
    for t in range(num_frames):
        at = t - 1 + c.carried  # pointers begin with the border, where something was carried in
        if at >= 0:
            score, age = (window + durations).max(0)
            entry, source = transition.push_max(score)
            lasted[at], came[at] = age, source
        window = torch.cat([entry.unsqueeze(0), window[:-1]]) + frames[t].double()
        if t + 1 in ends:
            last = torch.where((c.lengths == t + 1)[:, None], window, last)
    log_prob, choice = (last + c.at_end()).transpose(0, 1).flatten(1).max(-1)
    final = torch.where(log_prob > float("-inf"), choice, -1)
    return (*_follow(c, final.tolist(), lasted, came), log_prob)


def _narrowest(size: int) -> torch.dtype:
    """The smallest integers that count so many."""
    return torch.uint8 if size <= 2**8 else torch.int16 if size <= 2**15 else torch.int32


def _follow(c: Segments, final: list[int], lasted: Tensor, came: Tensor) -> tuple[Tensor, Tensor]:  # "b t", "b t"
    """From the last segment back: as many frames as it lasted, then its best predecessor."""
    num_sequences, num_frames, num_states = c.log_obs.shape
    states, begins = np.full((num_sequences, num_frames), -1), np.zeros((num_sequences, num_frames), dtype=bool)
    by_age, by_source = lasted.cpu().numpy(), came.cpu().numpy()
    for i, (choice, length) in enumerate(zip(final, c.lengths.tolist(), strict=True)):
        if choice < 0:
            continue
        state, stop = choice % num_states, length
        start = stop - choice // num_states - 1
        while True:
            states[i, max(start, 0) : stop] = state
            if start >= 0:
                begins[i, start] = True
            at = start - 1 + c.carried
            if start < 0 or at < 0:
                break
            state = int(by_source[at, i, state])
            stop, start = start, start - int(by_age[at, i, state]) - 1
    device = c.log_obs.device
    return torch.from_numpy(states).to(device), torch.from_numpy(begins).to(device)
