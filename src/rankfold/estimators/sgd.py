"""Gradient steps on the log-likelihood: many small steps a pass, where EM takes one.

Not monotone: the best parameters of all passes are kept. Read next: `em.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.estimators.packed import batches
from rankfold.models.frame_model import FrameModel


class Descended(NamedTuple):
    """Where gradient steps ended."""

    model: FrameModel
    history: list[float]  # the log-likelihood of each pass, its parts before their steps
    converged: bool


def descend(
    model: FrameModel,
    sequences: Sequence[Tensor],
    labels: Sequence[Tensor] | None,
    rng: np.random.Generator,
    *,
    learning_rate: float,
    batch_size: int,
    num_passes: int,
    tol: float | None,
) -> Descended:
    """Adam on all parameters, `batch_size` sequences a step; the parameters at the beginning of the best pass.

    A pass sums its parts' log-likelihoods as they were met. It stops where a pass gains less than `tol` a frame.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    num_states, num_frames = model.config.num_states, sum(map(len, sequences))
    history: list[float] = []
    best, kept = -math.inf, {name: x.clone() for name, x in model.state_dict().items()}
    converged = False
    for _ in range(num_passes):
        now = {name: x.clone() for name, x in model.state_dict().items()}
        order = rng.permutation(len(sequences))
        total = 0.0
        for at in range(0, len(order), batch_size):
            some = [int(i) for i in order[at : at + batch_size]]
            known = None if labels is None else [labels[i] for i in some]
            size = sum(len(sequences[i]) for i in some)
            optimiser.zero_grad()
            for _, batch, allowed in batches([sequences[i] for i in some], known, num_states):
                value = model.log_likelihood(batch, allowed=allowed).sum()
                gained = float(value.detach())
                if not math.isfinite(gained):
                    raise DomainError(
                        "a gradient step met a sequence that is impossible under the model.\n"
                        '  Lower learning_rate, or use algorithm="em".'
                    )
                (-value / size).backward()  # type: ignore[no-untyped-call]
                total += gained
            optimiser.step()
        history.append(total)
        if total > best:
            best, kept = total, now
        if tol is not None and len(history) > 1 and abs(history[-1] - history[-2]) < tol * num_frames:
            converged = True
            break
    model.load_state_dict(kept)
    return Descended(model, history, converged)
