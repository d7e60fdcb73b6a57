"""Questions about potentials of either kind, a row or table for each sequence.

Read next: `decoding/posterior.py`, `decoding/segments.py`, `decoding/runs.py`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rankfold.decoding.posterior import state_posterior
from rankfold.decoding.runs import runs
from rankfold.decoding.segments import Segment, gain_of_longer, segment_posterior, segments, viterbi_segments
from rankfold.decoding.viterbi import viterbi
from rankfold.models.frame_model import FramePotentials
from rankfold.recursions.chain.potentials import ChainPotentials


def posterior(p: FramePotentials) -> Tensor:  # "b t z"
    """The probability of every state at every frame; zeros for an impossible sequence."""
    return state_posterior(p) if isinstance(p, ChainPotentials) else segment_posterior(p).states


def best_states(p: FramePotentials) -> Tensor:  # "b t"
    """The states of the best path or segmentation; -1 for an impossible sequence."""
    return viterbi(p).path if isinstance(p, ChainPotentials) else viterbi_segments(p).states


def best_segments(p: FramePotentials) -> list[list[Segment]]:
    """The segments of the best path or segmentation; none for an impossible sequence."""
    return runs(p) if isinstance(p, ChainPotentials) else segments(p)


def gains_of_longer(p: FramePotentials) -> Tensor:  # "b"
    """The nats a sequence would gain from segments of up to twice the longest duration; 0 for a chain."""
    return p.log_obs.new_zeros(len(p.log_obs)) if isinstance(p, ChainPotentials) else gain_of_longer(p)


def is_impossible(answer: Any) -> bool:
    """Whether an answer to one of these questions is that of an impossible sequence."""
    if isinstance(answer, list):
        return not answer
    return bool(answer[0] < 0) if answer.ndim == 1 else not bool(answer[0].any())
