"""Segmentations: the best one, with a maximum in place of both sums, and segmentations drawn from their posterior.

Scores are float64. Pointers are O(b t z): for every frame the best duration of a segment that ends there and the best
predecessor of one that begins there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rankfold.numerics.log_space import pick
from rankfold.operators.protocol import MaxOperator
from rankfold.recursions.factor_gradients import to_double
from rankfold.recursions.segments.potentials import Segments
from rankfold.recursions.segments.rungs import solve


def best_segments(c: Segments, transition: MaxOperator) -> tuple[Tensor, Tensor, Tensor]:  # "b t", "b t", "b"
    """The states of the best segmentation, where its segments begin, and its log-weight.

    States are -1 beyond a length and for impossible sequences. Cost: b t d z additions and one `push_max` per frame.
    Memory: a pointer of each kind for every frame and state, in one to four bytes.
    """
    frames, durations = c.observations(), c.durations().double().unsqueeze(1)
    num_frames, num_sequences, num_states = frames.shape
    shape = (c.longest, num_sequences, num_states)
    window = torch.full(shape, float("-inf"), dtype=torch.float64, device=frames.device)
    if c.is_carried:
        window = c.log_initial.transpose(0, 1).double()
    rows = (num_frames - 1 + c.is_carried, num_sequences, num_states)
    came = torch.empty(rows, dtype=_narrowest(num_states), device=frames.device)
    lasted = torch.empty(rows, dtype=_narrowest(c.longest), device=frames.device)
    entry, last, ends = c.log_initial.double(), window, set(c.lengths.tolist())
    for t in range(num_frames):
        at = t - 1 + c.is_carried  # pointers begin with the border, where something was carried in
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
            at = start - 1 + c.is_carried
            if start < 0 or at < 0:
                break
            state = int(by_source[at, i, state])
            stop, start = start, start - int(by_age[at, i, state]) - 1
    device = c.log_obs.device
    return torch.from_numpy(states).to(device), torch.from_numpy(begins).to(device)


def draw(c: Segments, num_samples: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:  # "n b t", "n b t"
    """States of independent exact samples, -1 beyond a length and for impossible sequences; where segments begin.

    z_1 ~ initial begun_1        d ~ duration[z, d] obs_t..t+d-1[z] after_t+d-1[z]        z' ~ A[z, :] begun
    """
    solution, transition = solve(c, "scaled"), to_double(c.transition)
    found = solution.posteriors()
    num_frames, num_sequences, num_states = found.begun.shape
    shape = (num_samples, num_sequences)
    # Entry t of `after` is what follows a segment that ends before frame t: 0 is the border.
    border = transition.pull_log(found.begun[:1]) if c.is_carried else torch.full_like(found.after[:1], -torch.inf)
    after = torch.cat([border, found.after])
    ages = torch.zeros(shape, dtype=torch.int64, device=c.lengths.device)
    if found.carried is not None:
        log_open = (found.carried.double() / found.carried.double().sum((0, 2))[:, None]).log()
        choice = pick(log_open.transpose(0, 1).flatten(1).expand(num_samples, -1, -1), generator)
        state, ages = choice % num_states, choice // num_states + 1
    else:
        # The posterior itself: `begun` lacks what lies far below a state that the sequence cannot begin in.
        state = pick(found.starts[0].double().log().expand(num_samples, -1, -1), generator)
    states = torch.full((*shape, num_frames), -1, device=c.lengths.device)
    begins = torch.zeros_like(states, dtype=torch.bool)
    at = torch.zeros_like(ages)
    possible = (solution.log_z > float("-inf")).expand(shape)
    frames = torch.arange(num_frames, device=c.lengths.device)
    while True:
        going = possible & (at < c.lengths)
        if not going.any():
            return states, begins
        lasted = torch.where(going, _durations(c, after, state, at, ages, generator), 0)
        here = (frames >= at.unsqueeze(-1)) & (frames < (at + lasted).unsqueeze(-1))
        states = torch.where(here, state.unsqueeze(-1), states)
        begins |= (frames == at.unsqueeze(-1)) & (going & (ages == 0) & (lasted > 0)).unsqueeze(-1)
        at, ages = at + lasted, torch.zeros_like(ages)
        log_row = transition.log_rows(state.reshape(-1)).reshape(*shape, num_states)
        begun = found.begun[at.clamp(max=num_frames - 1), torch.arange(num_sequences, device=at.device)]
        state = torch.where(going & (at < c.lengths), pick(log_row + begun, generator), state)


def _durations(
    c: Segments, after: Tensor, state: Tensor, at: Tensor, ages: Tensor, generator: torch.Generator | None
) -> Tensor:  # "n b" -> "n b"
    """How many more frames each segment lasts, from frame `at` on and with `ages` frames behind it: 0 at a border."""
    num_frames, longest = c.log_obs.shape[1], c.longest
    more = torch.arange(longest + 1, device=at.device)  # "k"
    here = torch.arange(len(c.lengths), device=at.device)[:, None]
    frame = at.unsqueeze(-1) + more
    total = ages.unsqueeze(-1) + more - 1  # the duration's column
    fits = (total >= 0) & (total < longest) & (frame <= c.lengths[:, None])
    obs = c.log_obs.double()[here, (frame - 1).clamp(0, num_frames - 1), state.unsqueeze(-1)]
    seen = torch.where((more > 0) & fits, obs, 0.0).cumsum(-1)
    durations, closings = (
        x.double()[total.clamp(0, longest - 1), state.unsqueeze(-1)] for x in (c.durations(), c.closings())
    )
    weight = torch.where(frame == c.lengths[:, None], closings, durations)
    log_after = after[frame.clamp(max=num_frames), here, state.unsqueeze(-1)]
    return pick(torch.where(fits, weight + seen + log_after, float("-inf")), generator)
