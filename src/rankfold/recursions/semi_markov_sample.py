"""Segmentations drawn from their posterior: messages from the future first, then segment after segment.

Read next: `decoding/segments.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.chain_sample import pick
from rankfold.recursions.factors import doubled
from rankfold.recursions.semi_markov_potentials import Segments
from rankfold.recursions.semi_markov_solve import solve


def draw(c: Segments, num_samples: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:  # "n b t", "n b t"
    """States of independent exact samples, -1 beyond a length and for impossible sequences; where segments begin.

    z_1 ~ initial begun_1        d ~ duration[z, d] obs_t..t+d-1[z] after_t+d-1[z]        z' ~ A[z, :] begun
    """
    solution, transition = solve(c, "scaled"), doubled(c.transition)
    found = solution.posteriors()
    num_frames, num_sequences, num_states = found.begun.shape
    shape = (num_samples, num_sequences)
    # Entry t of `after` is what follows a segment that ends before frame t: 0 is the border.
    border = transition.pull_log(found.begun[:1]) if c.carried else torch.full_like(found.after[:1], -torch.inf)
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
