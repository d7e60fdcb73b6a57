"""The parameters of an estimator, checked when `fit` begins: what came, what was expected, what to do.

Read next: `hmm.py`, which says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DomainError, ShapeError, UnsupportedError

CHOICES = {
    "observations": ("gaussian", "bernoulli", "categorical"),
    "durations": ("poisson", "negative_binomial", "categorical"),
    "init": ("kmeans", "random"),
    "missing": ("feature", "row", "error"),
    "dtype": ("float64", "float32"),
}
WHOLE = ("n_states", "max_duration", "n_init", "max_iter", "batch_size")
WHOLE_OR_NONE = ("rank", "n_symbols")
AT_LEAST_ZERO = ("min_variance", "variance_prior", "smoothing")
TRUTHS = ("tied_variance", "self_transitions", "censored")


def expect_parameters(params: Mapping[str, Any]) -> None:
    """Raise unless every parameter is one that a fit can use."""
    for name, choices in CHOICES.items():
        if name in params and params[name] not in choices:
            raise DomainError(f"{name} is {params[name]!r}, but must be one of {', '.join(map(repr, choices))}.")
    for name in (*WHOLE, *WHOLE_OR_NONE):
        value = params.get(name)
        if value is None and (name in WHOLE_OR_NONE or name not in params):
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise DomainError(f"{name} is {value!r}, but must be a whole number of at least 1.")
    for name in AT_LEAST_ZERO:
        if not _is_number(params[name]) or not 0 <= params[name] < float("inf"):
            raise DomainError(f"{name} is {params[name]!r}, but must be a number of at least 0.")
    for name in TRUTHS:
        if name in params and not isinstance(params[name], bool | np.bool_):
            raise DomainError(f"{name} is {params[name]!r}, but must be True or False.")
    if params["tol"] is not None and not _is_number(params["tol"]):
        raise DomainError(f"tol is {params['tol']!r}, but must be a number, or None to take all max_iter steps.")
    if not _is_number(params["learning_rate"]) or not params["learning_rate"] > 0:
        raise DomainError(f"learning_rate is {params['learning_rate']!r}, but must be above 0.")
    if params["start"] is not None and not isinstance(params["start"], Mapping):
        raise DomainError(f"start is a {type(params['start']).__name__}, but must be a dict of arrays.")
    if params.get("self_transitions") is False and params["n_states"] < 2:
        raise DomainError(
            "n_states is 1 and no segment follows one of its own state: nothing can follow.\n"
            "  Set self_transitions=True, or take more states."
        )


def checked_forbidden(given: Any, num_states: int, *, diagonal: bool, rank: int | None) -> NDArray[np.bool_] | None:
    """Which moves are forbidden, "z z"; None if none is. Without self-transitions the diagonal is among them."""
    if given is not None and rank is not None:
        raise UnsupportedError(
            "forbidden moves and a rank: a low-rank matrix has no entries to set to 0.\n  Use rank=None."
        )
    if rank is not None or (given is None and diagonal):
        return None
    table = np.zeros((num_states, num_states), bool) if given is None else np.asarray(given)
    if table.shape != (num_states, num_states) or table.dtype != bool:
        raise ShapeError(
            f"forbidden has shape {table.shape} of {table.dtype}, but truth values of shape {(num_states, num_states)} "
            "were expected."
        )
    table = table | np.eye(num_states, dtype=bool) if not diagonal else table.copy()
    if table.all(1).any():
        raise DomainError(f"forbidden leaves state {int(table.all(1).argmax())} no move at all.")
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
