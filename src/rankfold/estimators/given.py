"""Tables a user gives EM to begin with, checked; the others stay what they were.

Read next: `start.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError
from rankfold.estimators.expectation import Tables
from rankfold.estimators.moves import Moves
from rankfold.estimators.observations import Categorical, Family, Gaussian


def with_given(tables: Tables, given: Mapping[str, Any], family: Family, forbidden: Tensor | None) -> Tables:
    """The tables with some of them replaced; raises on other names, shapes, and on what is no distribution.

    Raises, too, on what the fit's own constraints rule out: EM would step away from it, to a lower likelihood.
    """
    known = _known(tables, categorical=isinstance(family, Categorical))
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise DomainError(f"start has {unknown[0]!r}, but a model of this kind has {', '.join(known)}.")
    found = {name: _like(given[name], name, own, axis) for name, (own, axis) in known.items() if name in given}
    _expect_allowed(found, family, forbidden, negative_binomial=known.get("log_shape") is not None)
    moves, durations = tables.moves, tables.durations
    names = ("left", "right") if moves.low_rank else ("transition",)
    moves = moves._replace(tables=tuple(found.get(name, own) for name, own in zip(names, moves.tables, strict=True)))
    own = {name: found[name] for name in ("mean", "variance", "probability") if name in found}
    if durations is not None:
        renamed = {"log_rate": "log_rate", "log_shape": "log_shape", "duration": "table"}
        parts: dict[str, Any] = {renamed[name]: found[name] for name in renamed if name in found}
        durations = durations._replace(**parts)
    return tables._replace(
        initial=found.get("initial", tables.initial),
        moves=_expect_ways_out(moves),
        observed=tables.observed._replace(**own),
        durations=durations,
    )


def _expect_allowed(
    found: Mapping[str, Tensor], family: Family, forbidden: Tensor | None, *, negative_binomial: bool
) -> None:
    if "variance" in found:
        if bool((found["variance"] <= 0).any()):
            raise DomainError("start['variance'] has entries that are not above 0.")
        if isinstance(family, Gaussian) and bool((below := found["variance"] < family.floor).any()):
            at = below.nonzero()[0].tolist()
            least = float(family.floor[at[-1]])
            raise DomainError(
                f"start['variance']{_place(at)} is {float(found['variance'][tuple(at)]):g}, but min_variance keeps "
                f"the variances of feature {at[-1]} at {least:g} or more.\n"
                "  Raise it to that, or lower min_variance, a share of the feature's variance in all frames."
            )
    if "transition" in found and forbidden is not None:
        ruled_out = forbidden & (found["transition"] > 0)
        if bool(ruled_out.any()):
            at = ruled_out.nonzero()[0].tolist()
            why = "a segment follows one of its own state" if at[0] == at[1] else "that move is forbidden"
            raise DomainError(
                f"start['transition']{_place(at)} is {float(found['transition'][tuple(at)]):g}, but {why}.\n"
                "  Set it to 0, and let the row sum to 1 again; or allow it (forbidden, self_transitions)."
            )
    if negative_binomial and bool((found.get("log_rate", torch.full((1,), -1.0)) >= 0).any()):
        raise DomainError(
            "start['log_rate'] has entries that are not below 0, but of negative binomial durations it is the log of "
            "a share below 1."
        )


def _expect_ways_out(moves: Moves) -> Moves:
    """Raise if low-rank factors lead a state nowhere but to itself, and it may not follow itself."""
    if moves.low_rank and not moves.diagonal:
        left, right = moves.tables
        # A way out of z is a rank it goes to that leads elsewhere, too.
        elsewhere = (right > 0).sum(0) > (right > 0).long()
        stuck = ~((left > 0) & elsewhere).any(1)
        if bool(stuck.any()):
            raise DomainError(
                f"start['left'] and start['right'] lead state {int(stuck.nonzero()[0])} to itself alone, but no "
                "segment follows one of its own state."
            )
    return moves


def _place(at: list[int]) -> str:
    return "[" + ", ".join(map(str, at)) + "]"


def _known(tables: Tables, *, categorical: bool) -> dict[str, tuple[Tensor, int | None]]:
    """What may be given: its present value, and the axis along which it sums to 1."""
    moves, observed, durations = tables.moves, tables.observed, tables.durations
    known: dict[str, tuple[Tensor | None, int | None]] = {"initial": (tables.initial, 0)}
    if moves.low_rank:
        known.update(left=(moves.tables[0], 1), right=(moves.tables[1], 0))
    else:
        known.update(transition=(moves.tables[0], 1))
    known.update(
        mean=(observed.mean, None),
        variance=(observed.variance, None),
        probability=(observed.probability, 1 if categorical else None),
    )
    if durations is not None:
        known.update(log_rate=(durations.log_rate, None), log_shape=(durations.log_shape, None))
        known.update(duration=(durations.table, 1))
    return {name: (own, axis) for name, (own, axis) in known.items() if own is not None}


def _like(given: Any, name: str, own: Tensor, axis: int | None) -> Tensor:
    try:
        x = torch.as_tensor(np.asarray(given, dtype=np.float64)).to(own)
    except (TypeError, ValueError) as error:
        raise DomainError(f"start[{name!r}] is no array of numbers ({error}).") from None
    if x.shape != own.shape:
        raise ShapeError(f"start[{name!r}] has shape {tuple(x.shape)}, but {tuple(own.shape)} was expected.")
    if not bool(x.isfinite().all()):
        raise DomainError(f"start[{name!r}] has entries that are not finite.")
    if name == "probability" and bool(((x < 0) | (x > 1)).any()):
        raise DomainError("start['probability'] has entries outside 0..1.")
    if axis is not None:
        sums = x.sum(axis)
        if bool((x < 0).any()) or not torch.allclose(sums, torch.ones_like(sums)):
            raise DomainError(f"start[{name!r}] is no distribution: its sums along axis {axis} are not 1.")
    return x
