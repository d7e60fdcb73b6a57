"""The priors and constraints of a fit, from an estimator's parameters and the scale of its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError, has_nan
from rankfold.estimators.check_parameters import forbidden_table, groups_of
from rankfold.estimators.known_tables import own_choices, own_names
from rankfold.params.observations import OBSERVATIONS
from rankfold.params.prior import Prior


def kind_name(observations: Any) -> str:
    """The name in the catalogue: a list of kinds of columns is a product."""
    return observations if isinstance(observations, str) else "product"


def features_prior(params: Mapping[str, Any], sequences: list[Tensor]) -> Prior:
    """The scale of the features, and the prior of the variances; raises where a feature is constant or missing."""
    kind = OBSERVATIONS[kind_name(params["observations"])]
    if kind.symbols:
        return Prior()
    columns = () if isinstance(params["observations"], str) else params["observations"]
    frames = kind.on_scale((torch.cat(sequences) if len(sequences) > 1 else sequences[0]).double(), columns)
    complete = not has_nan(frames)
    here = frames.new_ones((), dtype=torch.bool).expand_as(frames) if complete else ~frames.isnan()
    if not complete and not bool(here.any(0).all()):
        which = int((~here.any(0)).nonzero()[0])
        raise DataError(f"feature {which} has no value in every frame: it tells no states apart.\n  Leave it out.")
    mean_of = Tensor.mean if complete else Tensor.nanmean  # which takes three times as long
    centre = mean_of(frames, 0)
    spread = mean_of((frames - centre).square_(), 0)
    measured = [
        i for i in range(frames.shape[1]) if (OBSERVATIONS[columns[i].partition(":")[0]] if columns else kind).measured
    ]
    if measured:
        _expect_spread(params, frames, here, spread, measured, complete=complete)
    # A prior is of each state's variance: a shared one has seen the frames of all that share it.
    tied = params["tied_variance"] or params["covariance_type"] == "tied" or kind.shares_covariance
    each = params["n_mix"] if params["observations"] == "gaussian_mixture" else params["n_states"]
    frames_seen = params["variance_prior"] * (each if tied else 1)
    return Prior(
        centre=centre, spread=spread, min_variance=params["min_variance"] * spread, variance_frames=frames_seen
    )


def _expect_spread(
    params: Mapping[str, Any], frames: Tensor, here: Tensor, spread: Tensor, measured: list[int], *, complete: bool
) -> None:
    """Raise where there is a single frame, or one of the `measured` features is constant."""
    if len(frames) == 1 if complete else int(here.all(1).sum()) == 1 == int(here.any(1).sum()):
        raise DataError(
            "a single frame (one sample) has no variance: there is nothing to fit.\n  Give sequences of several frames."
        )
    # Features whose first and last values differ are not looked at any further.
    differ = frames[0] != frames[-1]
    unlike = (differ if complete else differ & here[0] & here[-1]).tolist()
    for which in (i for i in measured if not unlike[i]):
        values = frames[here[:, which], which]
        if bool((values == values[0]).all()):
            raise DataError(
                f"feature {which} has the same value, {float(values[0]):g}, in every frame: it has no variance and "
                "tells no states apart.\n  Leave it out."
            )
    held = torch.finfo(getattr(torch, params["dtype"]))
    small = (spread < held.tiny / held.eps).tolist()
    if any(small[i] for i in measured):
        which = measured[int(spread[measured].argmin())]
        raise DataError(
            f"feature {which} has a variance of {float(spread[which]):g}, too small for {params['dtype']}.\n"
            "  Rescale the feature."
        )


def whole_prior(params: Mapping[str, Any], scale: Prior, width: int, device: torch.device) -> Prior:
    """The prior of a fit: Dirichlet counts, sticky transitions, the prior of means, what is forbidden and fixed."""
    num_states = params["n_states"]
    forbidden = forbidden_table(
        params["forbidden"], num_states, diagonal=params.get("self_transitions", True), rank=params["rank"]
    )
    names, entries = fixed_of(params["fixed"], num_states)
    transition = _pseudo_counts(params, "transition_prior", (num_states, num_states), device)
    if params["sticky"]:
        transition = transition + params["sticky"] * torch.eye(num_states, dtype=torch.float64, device=device)
    if params["rank"] is not None and (isinstance(transition, Tensor) or entries is not None):
        raise UnsupportedError(
            "transition_prior, sticky or fixed entries and a rank: a low-rank matrix has no entries of its own.\n"
            "  Use smoothing, or rank=None."
        )
    mean = scale.centre
    if params["mean_prior"] is not None:
        mean = torch.as_tensor(_array(params["mean_prior"], "mean_prior"), device=device)
        if mean.shape not in ((), (width,)):
            raise ShapeError(f"mean_prior has shape {tuple(mean.shape)}, but () or {(width,)} was expected.")
    return scale._replace(
        smoothing=params["smoothing"],
        forbidden=None if forbidden is None else torch.from_numpy(forbidden).to(device),
        initial=_pseudo_counts(params, "initial_prior", (num_states,), device),
        transition=transition,
        emission=_emission_counts(params, width, device),
        mean=mean,
        mean_frames=float(params["mean_weight"]),
        end=_pseudo_counts(params, "end_prior", (num_states, 2), device) if params.get("ends") else 0.0,
        weight_precision=float(params.get("input_prior", 0.0)),
        fixed=frozenset(own for name in names for own in own_choices(name)),
        fixed_entries=None if entries is None else torch.from_numpy(entries).to(device),
    )


def _array(given: Any, name: str) -> Any:
    try:
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DomainError(f"{name} is no array of numbers ({error!s:.80}).") from None
    if not np.isfinite(found).all():
        raise DomainError(f"{name} has entries that are not finite.")
    return found


def _pseudo_counts(params: Mapping[str, Any], name: str, shape: tuple[int, ...], device: torch.device) -> Any:
    """Concentrations of a Dirichlet prior, less one: counts that are added; 0.0 where there is none."""
    given = params[name]
    if given is None:
        return 0.0
    found = _array(given, name)
    if found.ndim and found.shape not in (shape, shape[-1:]):
        raise ShapeError(
            f"{name} has shape {found.shape}, but a number, or shape {shape[-1:]} or {shape}, was expected."
        )
    if (found < 1).any():
        raise DomainError(
            f"{name} has the entry {float(found.min()):g}, but concentrations of a Dirichlet prior are at least 1 "
            "here: below, its density has no maximum."
        )
    if (found == 1).all():
        return 0.0
    return torch.as_tensor(np.broadcast_to(found - 1, shape).copy(), device=device)


def _emission_counts(params: Mapping[str, Any], width: int, device: torch.device) -> Any:
    """Those of symbols; a number alone where columns are of different kinds."""
    if isinstance(params["observations"], str):
        num_groups = len(set(groups_of(params))) or params["n_states"]
        return _pseudo_counts(params, "emission_prior", (num_groups, width), device)
    if np.ndim(params["emission_prior"]):
        raise ShapeError(
            f"emission_prior has shape {np.shape(params['emission_prior'])}, but where observations are a list it is "
            "one number, for all columns of symbols."
        )
    found = _pseudo_counts(params, "emission_prior", (1,), device)
    return found if isinstance(found, float) else float(found)


def fixed_of(given: Any, num_states: int) -> tuple[frozenset[str], Any]:
    """The names of tables that stay as they are, and which entries of the transition do, "z z"."""
    if given is None:
        return frozenset(), None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DomainError(f'fixed is {given!r:.60}, but a tuple of names was expected: fixed=("transition",).')
    if not isinstance(given, Mapping):
        names = tuple(given)
        if not all(isinstance(name, str) for name in names):
            raise DomainError(f"fixed is {given!r:.60}, but names of tables were expected.")
        return frozenset(names), None
    whole: list[str] = []
    entries = None
    for name, value in given.items():
        if value is True:
            whole.append(name)
            continue
        if name != "transition":
            raise UnsupportedError(f"fixed[{name!r}] has entries, but only those of 'transition' can be fixed alone.")
        entries = np.asarray(value)
        if entries.shape != (num_states, num_states) or entries.dtype != bool:
            raise ShapeError(
                f"fixed['transition'] has shape {entries.shape} of {entries.dtype}, but truth values of shape "
                f"{(num_states, num_states)} were expected."
            )
    return frozenset(whole), entries


def expect_fixed(prior: Prior, fixed: Iterable[str], known: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Raise unless what is fixed is there: a table of the model, given by `start`, that keeps to the constraints."""
    names = {*fixed, "transition"} if prior.fixed_entries is not None else set(fixed)
    for own, name in own_names(dict.fromkeys(sorted(names)), known, "fixed").items():
        if own not in start:
            raise DomainError(
                f"{name!r} is fixed, but not given.\n  Give it: start={{{name!r}: ...}}, or {name}= of from_tables."
            )
    if prior.fixed_entries is not None and prior.forbidden is not None:
        table = torch.as_tensor(np.asarray(start["transition"], dtype=np.float64)).to(prior.forbidden.device)
        clash = prior.fixed_entries & prior.forbidden & (table > 0)
        if bool(clash.any()):
            at = clash.nonzero()[0].tolist()
            raise DomainError(
                f"transition {at[0]} to {at[1]} is fixed at {float(table[tuple(at)]):g}, but forbidden.\n"
                "  Fix it at 0, or allow it."
            )
