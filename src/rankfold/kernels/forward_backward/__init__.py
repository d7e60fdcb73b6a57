"""Forward and backward messages of a chain at once: each reading of the transition serves both.

Its twin in torch is the pair of loops in `recursions/chain/scaled.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

FEW = 64  # sequences up to which a step takes as long as reading its transition
LONGEST = 4096  # positions whose numbers one program holds in registers


class Verdict(NamedTuple):
    """The results of a scan: by sequence, and by position and sequence."""

    log_z: Tensor  # "b"       float64
    log_scale: Tensor  # "t b" float64
    sound: Tensor  # "b"       whether log Z is free of underflow
    trusted: Tensor  # "b"     whether the posteriors of every position account for all of Z
    by_state: Tensor  # "t b"  1 / mass: what filtered * future is a posterior by; 0 beyond the length
    by_step: Tensor  # "t b"   1 / (mass norm) of the position before: what a target is weighed by
