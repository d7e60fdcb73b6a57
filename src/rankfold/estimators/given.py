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


def with_given(tables: Tables, given: Mapping[str, Any]) -> Tables:
    """The tables with some of them replaced; raises on other names, shapes, and on what is no distribution."""
    known = _known(tables)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise DomainError(f"start has {unknown[0]!r}, but a model of this kind has {', '.join(known)}.")
    found = {name: _like(given[name], name, own, axis) for name, (own, axis) in known.items() if name in given}
    if bool((found.get("variance", torch.ones(1)) <= 0).any()):
        raise DomainError("start['variance'] has entries that are not above 0.")
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
        moves=moves,
        observed=tables.observed._replace(**own),
        durations=durations,
    )


def _known(tables: Tables) -> dict[str, tuple[Tensor, int | None]]:
    """What may be given: its present value, and the axis along which it sums to 1."""
    moves, observed, durations = tables.moves, tables.observed, tables.durations
    known: dict[str, tuple[Tensor | None, int | None]] = {"initial": (tables.initial, 0)}
    if moves.low_rank:
        known.update(left=(moves.tables[0], 1), right=(moves.tables[1], 0))
    else:
        known.update(transition=(moves.tables[0], 1))
    known.update(
        mean=(observed.mean, None), variance=(observed.variance, None), probability=(observed.probability, None)
    )
    if durations is not None:
        known.update(log_rate=(durations.log_rate, None), log_shape=(durations.log_shape, None))
        known.update(duration=(durations.table, 1))
    return {name: (own, axis) for name, (own, axis) in known.items() if own is not None}


def _like(given: Any, name: str, own: Tensor, axis: int | None) -> Tensor:
    x = torch.as_tensor(np.asarray(given, dtype=np.float64)).to(own)
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
