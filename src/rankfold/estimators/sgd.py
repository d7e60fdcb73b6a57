"""Gradient steps on the objective of EM: many small steps a pass, where EM takes one.

Not monotone: the best parameters of all passes are kept. Read next: `em.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.estimators.observations import CollapseError
from rankfold.estimators.packed import batches
from rankfold.models.frame_model import FrameModel
from rankfold.params.observations import GaussianObservation

Prior = Callable[[FrameModel], Tensor]  # ""


class Descended(NamedTuple):
    """Where gradient steps ended."""

    model: FrameModel
    history: list[float]  # the objective after each pass
    converged: bool
    value: float  # the objective of the model


def descend(
    model: FrameModel,
    sequences: Sequence[Tensor],
    labels: Sequence[Tensor] | None,
    rng: np.random.Generator,
    *,
    log_prior: Prior,
    floor: Tensor | None,
    learning_rate: float,
    batch_size: int,
    num_passes: int,
    tol: float | None,
) -> Descended:  # floor "f"
    """Adam on all parameters, `batch_size` sequences a step; the start, or the parameters after the best pass.

    The objective is the log-likelihood of all sequences plus `log_prior`; a step takes the gradient of its sequences'
    share of both. Variances below the floor are set to it after each step. It stops where a pass gains, and less than
    `tol` a frame.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate)
    num_states, num_frames = model.config.num_states, sum(map(len, sequences))
    best = _objective(model, sequences, labels, log_prior)
    if not math.isfinite(best):
        raise DomainError(
            "the start has no finite objective: a zero under smoothing, or a sequence that is impossible.\n"
            '  Gradient steps never leave a 0: give entries above 0, or use algorithm="em".'
        )
    kept, history, converged = _copied(model), [], False
    for _ in range(num_passes):
        order = rng.permutation(len(sequences))
        for at in range(0, len(order), batch_size):
            some = [int(i) for i in order[at : at + batch_size]]
            known = None if labels is None else [labels[i] for i in some]
            size = sum(len(sequences[i]) for i in some)
            optimiser.zero_grad()
            prior = log_prior(model)
            if prior.requires_grad:  # without any it is 0
                (-prior / num_frames).backward()  # type: ignore[no-untyped-call]
            for _, batch, allowed in batches([sequences[i] for i in some], known, num_states):
                value = model.log_likelihood(batch, allowed=allowed).sum()
                _expect_finite(float(value.detach()))
                (-value / size).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            _keep_above(model, floor)
        history.append(_objective(model, sequences, labels, log_prior))
        _expect_finite(history[-1])
        if history[-1] > best:
            best, kept = history[-1], _copied(model)
        if tol is not None and len(history) > 1 and 0 <= history[-1] - history[-2] < tol * num_frames:
            converged = True
            break
    model.load_state_dict(kept)
    return Descended(model, history, converged, best)


@torch.no_grad()
def _objective(
    model: FrameModel, sequences: Sequence[Tensor], labels: Sequence[Tensor] | None, log_prior: Prior
) -> float:
    parts = batches(sequences, labels, model.config.num_states)
    total = sum(float(model.log_likelihood(batch, allowed=allowed).sum()) for _, batch, allowed in parts)
    return total + float(log_prior(model))


@torch.no_grad()
def _keep_above(model: FrameModel, floor: Tensor | None) -> None:
    if floor is not None and isinstance(model.observation, GaussianObservation):
        spread = model.observation.log_spread
        spread.copy_(torch.maximum(spread, floor.log().to(spread.dtype)))


def _copied(model: FrameModel) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def _expect_finite(value: float) -> None:
    if not math.isfinite(value):
        raise CollapseError(
            "a gradient step met a sequence that is impossible under the model.\n"
            '  Lower learning_rate, or use algorithm="em".'
        )
