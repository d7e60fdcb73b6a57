"""The distributions a model of frames is made of, without a batch, and sequences drawn from them.

Read next: `models/frame_model.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.decoding.sample import sample
from rankfold.errors import DomainError
from rankfold.operators import Operator
from rankfold.params.observations import Observation
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials


class FrameParts(NamedTuple):
    """The distributions of a model of frames, over the states that are kept."""

    log_initial: Tensor  # "z"
    transition: Operator  # "z z"
    observation: Observation
    log_duration: Tensor | None = None  # "z d"; None: a chain of frames
    kept: Tensor | None = None  # "z"       the numbers of the states, where some are left out
    log_mask: Tensor | None = None  # "z"   -inf for dropped states that keep their number


def draw_frames(
    parts: FrameParts, lengths: Sequence[int], *, censored: bool, generator: torch.Generator | None
) -> list[tuple[Tensor, Tensor]]:  # frames "t f" or "t", states "t"
    """A sequence of each length, with its states: a sample of the posterior of as many missing frames, then frames.

    Cost: that of such samples, and one frame a frame.
    """
    if not len(lengths) or min(lengths) < 1:
        raise DomainError(f"lengths are {list(lengths)}, but at least one of at least 1 was expected.")
    start, moves = parts.log_initial, parts.transition
    nothing = start.new_zeros(len(lengths), max(lengths), len(start))
    sizes = torch.tensor(lengths, device=start.device)
    p: ChainPotentials | SegmentPotentials = ChainPotentials(start, moves, nothing, lengths=sizes)
    if parts.log_duration is not None:
        p = SegmentPotentials(start, moves, parts.log_duration, nothing, lengths=sizes, censored=censored)
    states = sample(p, generator=generator).path
    if bool((states[:, 0] < 0).any()):
        raise DomainError(
            f"no segmentation fills {int(sizes[states[:, 0] < 0][0])} frames under this model.\n"
            "  Other lengths may be possible; censored = true lets the end cut the last segment."
        )
    drawn = torch.split(parts.observation.sample(states[states >= 0], generator), list(lengths))
    return [(frames, row[row >= 0]) for frames, row in zip(drawn, states, strict=True)]
