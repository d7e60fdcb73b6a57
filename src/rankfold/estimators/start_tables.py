"""Tables a user gives a fit to begin with (`start=`), validated; the others stay what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError
from rankfold.models.frame_model import FrameModel
from rankfold.params.prior import Prior, Table


def fill_start(model: FrameModel, start: Mapping[str, Any], prior: Prior) -> None:
    """Set some tables of the model; raises on other names, shapes, and on what is no distribution.

    Raises, too, on what the fit's own constraints rule out: EM would step away from it, to a lower likelihood.
    """
    modules: list[Any] = [x for x in (model.dynamics, model.observation, model.duration) if x is not None]
    known = {name: table for module in modules for name, table in module.tables().items()}
    unknown = sorted(set(start) - set(known))
    if unknown:
        raise DomainError(f"start has {unknown[0]!r}, but a model of this kind has {', '.join(known)}.")
    found = {name: _like(start[name], name, table) for name, table in known.items() if name in start}
    _expect_allowed(found, prior, negative_binomial="log_shape" in known)
    for module in modules:
        own = {name: found[name] for name in module.tables() if name in found}
        if own:
            module.fill(**own)
    tables = {**{name: table.value for name, table in known.items()}, **found}
    if "left" in tables and not model.config.may_repeat:
        _expect_ways_out(tables["left"], tables["right"])


def _expect_allowed(found: Mapping[str, Tensor], prior: Prior, *, negative_binomial: bool) -> None:
    if "variance" in found:
        if bool((found["variance"] <= 0).any()):
            raise DomainError("start['variance'] has entries that are not above 0.")
        floor = torch.as_tensor(prior.min_variance).to(found["variance"]).expand_as(found["variance"])
        if bool((below := found["variance"] < floor).any()):
            at = below.nonzero()[0].tolist()
            least = float(floor[tuple(at)])
            raise DomainError(
                f"start['variance']{_place(at)} is {float(found['variance'][tuple(at)]):g}, but min_variance keeps "
                f"the variances of feature {at[-1]} at {least:g} or more.\n"
                "  Raise it to that, or lower min_variance, a share of the feature's variance in all frames."
            )
    if "transition" in found and prior.forbidden is not None:
        ruled_out = prior.forbidden & (found["transition"] > 0)
        if bool(ruled_out.any()):
            at = ruled_out.nonzero()[0].tolist()
            why = "a segment follows one of its own state" if at[0] == at[1] else "that transition is forbidden"
            raise DomainError(
                f"start['transition']{_place(at)} is {float(found['transition'][tuple(at)]):g}, but {why}.\n"
                "  Set it to 0, and let the row sum to 1 again; or allow it (forbidden, self_transitions)."
            )
    if negative_binomial and bool((found.get("log_rate", torch.full((1,), -1.0)) >= 0).any()):
        raise DomainError(
            "start['log_rate'] has entries that are not below 0, but of negative binomial durations it is the log of "
            "a share below 1."
        )


def _expect_ways_out(left: Tensor, right: Tensor) -> None:
    """Raise if low-rank factors lead a state nowhere but to itself, and it may not follow itself."""
    # A way out of z is a rank it goes to that leads elsewhere, too.
    elsewhere = (right > 0).sum(0) > (right > 0).long()
    stuck = ~((left > 0) & elsewhere).any(1)
    if bool(stuck.any()):
        raise DomainError(
            f"start['left'] and start['right'] lead state {int(stuck.nonzero()[0])} to itself alone, but no "
            "segment follows one of its own state."
        )


def _place(at: list[int]) -> str:
    return "[" + ", ".join(map(str, at)) + "]"


def _like(given: Any, name: str, table: Table) -> Tensor:
    own, axis = table
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
