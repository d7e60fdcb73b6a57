"""The parameters of an estimator, validated at the start of `fit`; errors say what was expected and what to do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.params.observations import OBSERVATIONS

CHOICES = {
    "durations": ("poisson", "negative_binomial", "categorical"),
    "init": ("kmeans", "random"),
    "missing": ("feature", "row", "error"),
    "covariance_type": ("diag", "full", "tied", "spherical", "low_rank"),
    "dtype": ("float64", "float32"),
}
WHOLE = ("n_states", "min_duration", "n_init", "max_iter", "batch_size", "covariance_rank", "n_mix", "order")
WHOLE_OR_NONE = ("rank", "n_symbols", "max_duration", "input_rank")
AT_LEAST_ZERO = ("min_variance", "variance_prior", "smoothing", "sticky", "mean_weight", "input_prior")
# What a fit is made with, and another step cannot change.
FIXED = (
    "n_states", "observations", "rank", "tied_variance", "min_variance", "variance_prior", "forbidden", "n_symbols",
    "max_duration", "min_duration", "tied_states", "durations", "self_transitions", "censored", "ends", "dtype",
    "device", "covariance_type", "covariance_rank", "n_mix", "n_inputs", "order", "chains", "parents",
)  # fmt: skip
# What each is a prior of, in the words of `ObservationModule.priors`.
PRIORS = {"mean_prior": "mean", "mean_weight": "mean", "variance_prior": "variance", "emission_prior": "emission"}
DEPENDENT = tuple(name for name, kind in OBSERVATIONS.items() if kind.needs == "inputs")  # on inputs
TRUTHS = ("tied_variance", "self_transitions", "censored", "verbose", "ends")


def expect_parameters(params: Mapping[str, Any]) -> None:
    """Raise unless every parameter is one that a fit can use."""
    expect_kind(params["observations"])
    for name, choices in CHOICES.items():
        if name in params and not (isinstance(params[name], str) and params[name] in choices):
            raise DomainError(f"{name} is {params[name]!r}, but must be one of {', '.join(map(repr, choices))}.")
    for name in (*WHOLE, *WHOLE_OR_NONE):
        value = params.get(name)
        if value is None and (name in WHOLE_OR_NONE or name not in params):
            continue
        expect_number(name, value)
    for name in (name for name in AT_LEAST_ZERO if name in params):
        if not _is_number(params[name]) or not 0 <= params[name] < float("inf"):
            raise DomainError(f"{name} is {params[name]!r}, but must be a number of at least 0.")
    for name in TRUTHS:
        if name in params and not isinstance(params[name], bool | np.bool_):
            raise DomainError(f"{name} is {params[name]!r}, but must be True or False.")
    _expect_heeded(params)
    if isinstance(params["n_inputs"], bool) or not isinstance(params["n_inputs"], int | np.integer):
        raise DomainError(f"n_inputs is {params['n_inputs']!r}, but must be a whole number of at least 0.")
    if params["n_inputs"] < 0 or (params["n_inputs"] > 0 and params["observations"] not in DEPENDENT):
        raise DomainError(
            f"n_inputs is {params['n_inputs']} and observations {params['observations']!r}, but a regression has at "
            "least one input among the columns of X, and nothing else has any.\n"
            "  Inputs that drive transitions, or stand by themselves, are inputs=... of fit."
        )
    _expect_driven(params)
    tied = params.get("tied_states")
    if tied is not None:
        given = np.asarray(tied)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise DomainError(f"tied_states is {tied!r:.60}, but the number of a group for each state was expected.")
    if params.get("end_prior") is not None and not params["ends"]:
        raise DomainError("end_prior is given, but sequences have no end probabilities.\n  Set ends=True.")
    if params["tol"] is not None and (not _is_number(params["tol"]) or np.isnan(params["tol"])):
        raise DomainError(f"tol is {params['tol']!r}, but must be a number, or None to take all max_iter steps.")
    if not _is_number(params["momentum"]) or not 0 <= params["momentum"] < 1:
        raise DomainError(f"momentum is {params['momentum']!r}, but must be at least 0 and below 1.")
    if not _is_number(params["learning_rate"]) or not 0 < params["learning_rate"] < float("inf"):
        raise DomainError(f"learning_rate is {params['learning_rate']!r}, but must be above 0.")
    if params["start"] is not None and not isinstance(params["start"], Mapping):
        raise DomainError(f"start is a {type(params['start']).__name__}, but must be a dict of arrays.")
    _expect_device(params["device"])
    expect_seed(params["random_state"])
    if params.get("self_transitions") is False and params["n_states"] < 2:
        raise DomainError(
            "n_states is 1 and no segment follows one of its own state: nothing can follow.\n"
            "  Set self_transitions=True, or take more states."
        )


def driven_parts(given: Any) -> tuple[str, ...]:
    """What inputs drive of start and transitions: a name, names, or the keys of a mapping to networks."""
    return (given,) if isinstance(given, str) else tuple(name for name in given if name != "observations")


def has_counts(params: Mapping[str, Any]) -> bool:
    """Whether expected counts of fixed size are all that EM needs, so that it can go on with other sequences."""
    return not params.get("input_driven")


def heeded_priors(observations: Any) -> set[str]:
    """The names in `PRIORS` that these observations, or some of their columns, heed."""
    names = [observations] if isinstance(observations, str) else observations
    tables = {table for name in names for table in OBSERVATIONS[name.partition(":")[0]].priors}
    return {name for name, table in PRIORS.items() if table in tables}


def groups_of(params: Mapping[str, Any]) -> tuple[int, ...]:
    """The group of each state; none without `tied_states`."""
    tied = params.get("tied_states")
    return () if tied is None else tuple(int(x) for x in tied)


def _expect_heeded(params: Mapping[str, Any]) -> None:
    """Raise on counts and priors of tables, or entries of them, that the model does not have."""
    if params.get("sticky") and not params.get("self_transitions", True):
        raise DomainError(
            f"sticky is {params['sticky']:g}, but self_transitions is False: no segment follows one of its own state.\n"
            "  Leave sticky out, or set self_transitions=True."
        )
    observations = params["observations"]
    heeded = heeded_priors(observations)
    for name, table in PRIORS.items():
        given = params.get(name)
        if name in heeded or given is None or (name in AT_LEAST_ZERO and given == 0):
            continue
        having = ", ".join(kind for kind, own in OBSERVATIONS.items() if table in own.priors)
        raise DomainError(
            f"{name} is {given!r:.60}, but observations are {observations!r:.60}, which have no prior of that kind: "
            f"only {having} have.\n  Leave {name} out."
        )


def _expect_driven(params: Mapping[str, Any]) -> None:
    given = params.get("input_driven", ())
    if not isinstance(given, str | list | tuple | Mapping) or not set(driven_parts(given)) <= {"transition", "start"}:
        raise DomainError(
            f'input_driven is {given!r:.80}, but inputs drive "transition", "start" or both: a tuple of these, or a '
            'dict with a torch.nn.Module, or None, for each ("observations" of regressions take a module, too).'
        )
    if isinstance(given, Mapping):
        for name, network in given.items():
            if not isinstance(network, torch.nn.Module | None):
                raise DomainError(
                    f"input_driven[{name!r}] is a {type(network).__name__}, but a torch.nn.Module from inputs to "
                    'logits (observations "regression": to means) was expected, or None for a linear one.'
                )
    if "observations" in given and params["observations"] not in DEPENDENT:
        raise UnsupportedError(
            f'input_driven has "observations", a network, but observations are {params["observations"]!r}: '
            f"{', '.join(DEPENDENT)} take one."
        )
    if not driven_parts(given):
        return
    if params["rank"] is not None:
        raise UnsupportedError(
            "input_driven and a rank: transitions that inputs drive are written out for each frame.\n"
            "  Use rank=None; input_rank is the rank of their weights."
        )
    if isinstance(params["fixed"], Mapping) and not all(x is True for x in params["fixed"].values()):
        raise UnsupportedError("input_driven and fixed entries: only whole tables of a regression are fixed.")


def expect_kind(given: Any) -> None:
    """Raise unless observations are a name of the catalogue, or names for each column."""
    if isinstance(given, str):
        if given not in OBSERVATIONS or given == "product":
            names = ", ".join(repr(name) for name in OBSERVATIONS if name != "product")
            raise DomainError(f"observations is {given!r}, but must be one of {names}; or a list, one for each column.")
        return
    if not isinstance(given, list | tuple) or not given or not all(isinstance(name, str) for name in given):
        raise DomainError(f"observations is {given!r:.60}, but a name was expected, or a list of one for each column.")
    for name in given:
        kind = OBSERVATIONS.get(name.partition(":")[0])
        if kind is None or not kind.joins:
            welcome = ", ".join(x for x, own in OBSERVATIONS.items() if own.joins)
            raise DomainError(f"observations has {name!r} for a column, but columns are of {welcome}.")


def expect_number(name: str, value: Any) -> None:
    """Raise unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise DomainError(f"{name} is {value!r}, but must be a whole number of at least 1.")


def fixed_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that another step cannot change, as they are now."""
    return {name: copy.copy(params[name]) for name in FIXED if name in params}


def expect_same(params: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raise if parameters changed that make the model that `partial_fit` goes on with."""
    for name, value in before.items():
        if not np.array_equal(np.asarray(params[name]), np.asarray(value)):
            raise DomainError(
                f"{name} is {params[name]!r:.60}, but partial_fit goes on with a model of {name} {value!r:.60}.\n"
                "  Call fit for another model, or set it back."
            )


def _expect_device(name: Any) -> None:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise DomainError(f'device is {name!r}, but must be "cpu" or "cuda".') from None
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f'device is {name!r}, but must be "cpu" or "cuda".')
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise UnsupportedError(
            f"device is {str(name)!r}, but torch sees {torch.cuda.device_count()} CUDA devices here.\n"
            '  Use device="cpu".'
        )


def expect_seed(source: Any) -> None:
    """Raise unless it is a seed, or a source of chance."""
    whole = isinstance(source, int | np.integer) and not isinstance(source, bool) and source >= 0
    if not (source is None or whole or isinstance(source, np.random.Generator | np.random.RandomState)):
        raise DomainError(
            f"random_state is {source!r:.60}, but must be None, a whole number of at least 0, or numpy's Generator."
        )


def forbidden_table(given: Any, num_states: int, *, diagonal: bool, rank: int | None) -> NDArray[np.bool_] | None:
    """Which transitions are forbidden, "z z"; None if none is. Without self-transitions the diagonal is among them."""
    if given is not None and rank is not None:
        raise UnsupportedError(
            "forbidden transitions and a rank: a low-rank matrix has no entries to set to 0.\n  Use rank=None."
        )
    if rank is not None or (given is None and diagonal):
        return None
    if isinstance(given, str):
        given = _graph(given, num_states)
    try:
        table = np.zeros((num_states, num_states), bool) if given is None else np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"forbidden is no matrix ({error!s:.80}).") from None
    if table.shape != (num_states, num_states) or table.dtype != bool:
        raise ShapeError(
            f"forbidden has shape {table.shape} of {table.dtype}, but truth values of shape {(num_states, num_states)} "
            "were expected."
        )
    table = table | np.eye(num_states, dtype=bool) if not diagonal else table.copy()
    if table.all(1).any():
        raise DomainError(f"forbidden leaves state {int(table.all(1).argmax())} no transition at all.")
    return table


def _graph(name: str, num_states: int) -> NDArray[np.bool_]:
    """What a named graph of states forbids."""
    source, target = np.indices((num_states, num_states))
    if name == "left_to_right":
        found: NDArray[np.bool_] = target < source
        return found
    if name == "linear":
        return (target < source) | (target > source + 1)
    kind, _, reach = name.partition(":")
    if kind == "band" and reach.isascii() and reach.isdigit():
        apart: NDArray[np.bool_] = np.abs(target - source) > int(reach)
        return apart
    raise DomainError(
        f'forbidden is {name!r}, but must be "left_to_right", "linear", "band:2" (at most 2 apart in number), or '
        'truth values "z z".'
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
