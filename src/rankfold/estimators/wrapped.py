"""From tables to a model and back: what EM fits is what `FrameModel` holds.

Read next: `models/frame_tables.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.estimators.durations import Durations
from rankfold.estimators.expectation import Tables
from rankfold.estimators.moves import Moves
from rankfold.estimators.observations import Observed
from rankfold.models.frame_model import FrameModel
from rankfold.params.durations import NegativeBinomialDuration, PoissonDuration
from rankfold.params.observations.bernoulli import Bernoulli
from rankfold.params.observations.gaussian import Gaussian


def model_of(tables: Tables, *, categorical: bool, dtype: torch.dtype = torch.float64) -> FrameModel:
    """The model with these distributions."""
    moves, observed, durations = tables.moves, tables.observed, tables.durations
    given: dict[str, torch.Tensor | int | None] = {"mean": observed.mean, "variance": observed.variance}
    given["emission" if categorical else "probability"] = observed.probability
    if durations is not None:
        given["max_duration"] = durations.longest
        if durations.table is not None:
            given["log_duration"] = durations.table.log()
        elif durations.log_shape is None:
            given["log_rate"] = durations.log_rate
        else:
            assert durations.log_rate is not None
            given["log_shape"] = durations.log_shape
            given["log_odds"] = durations.log_rate - torch.log(-torch.expm1(durations.log_rate))
    transition = moves.tables[0] if not moves.low_rank else (moves.tables[0], moves.tables[1])
    made = FrameModel.from_tables(
        tables.initial.log(), transition, self_transitions=moves.diagonal, censored=tables.censored, **given
    )
    return made.to(dtype)


def tables_of(model: FrameModel) -> Tables:
    """The distributions of a model with free tables, in linear space; differentiable but for durations with a rate."""
    parts = model.own_parts()
    low_rank, diagonal = model.config.own_rank is not None, model.config.may_repeat
    factors = parts.transition.factors()
    moves = factors[-2:] if low_rank else (parts.transition.to_dense(),)
    if isinstance(parts.observation, Gaussian):
        observed = Observed(mean=parts.observation.mean, variance=parts.observation.variance)
    elif isinstance(parts.observation, Bernoulli):
        observed = Observed(probability=parts.observation.logit.double().sigmoid())
    else:
        everyone = torch.arange(model.config.num_states, device=model.device)
        observed = Observed(probability=parts.observation.emission.log_rows(everyone).exp())  # type: ignore[attr-defined]
    return Tables(
        parts.log_initial.exp(), Moves(tuple(moves), diagonal), observed, _durations(model), model.config.censored
    )


def _durations(model: FrameModel) -> Durations | None:
    held = model.duration
    if held is None:
        return None
    kind, longest = model.config.durations, model.config.max_duration
    if isinstance(held, PoissonDuration):
        return Durations(kind, longest, log_rate=held.log_rate.detach().clone())
    if isinstance(held, NegativeBinomialDuration):
        log_share = torch.nn.functional.logsigmoid(held.log_odds.detach())
        return Durations(kind, longest, log_rate=log_share, log_shape=held.log_shape.detach().clone())
    return Durations(kind, longest, table=held().exp())


def num_free(model: FrameModel, forbidden: Tensor | None) -> int:
    """How many numbers of a model are free, whatever values they took: what sums to 1 has one less."""
    config, z = model.config, model.config.num_states
    longest = config.max_duration if config.has_segments else 1
    each = {"poisson": min(1, longest - 1), "negative_binomial": min(2, longest - 1), "categorical": longest - 1}
    width, kind = config.num_features, config.observations
    if kind == "gaussian":
        observed = z * width + (width if config.tied_variance else z * width)
    else:
        observed = z * (width - 1 if kind == "categorical" else width)
    moves = _free_moves(z, config.own_rank, 0 if forbidden is None else int(forbidden.sum()), config.may_repeat)
    return z - 1 + moves + observed + z * each[config.durations]


def _free_moves(z: int, rank: int | None, num_forbidden: int, diagonal: bool) -> int:
    """The dimension of the transitions.

    Matrices of rank r have r (2 z - r), and z less where rows sum to 1: of the z (r - 1) + r (z - 1) numbers of two
    factors, M and its inverse between them change r (r - 1) without changing the product. Without a diagonal rows are
    known up to a factor, too; but there are never more than z (z - 2).
    """
    if rank is None:
        return z * z - num_forbidden - z
    rank = min(rank, z)
    found = rank * (2 * z - rank) - z
    return found if diagonal else min(found, z * (z - 2))
