"""Model selection: fits of every combination of settings, compared by a criterion; a table, and the best of them."""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankfold.errors import DomainError
from rankfold.estimators.base import Estimator
from rankfold.estimators.inputs import read_features
from rankfold.estimators.symbols import read_symbols

Criterion = Literal["bic", "aic", "held_out"]


@dataclass(frozen=True)
class Candidate:
    """One combination of settings, and how its fit did."""

    settings: dict[str, Any]
    parameters: int  # that are free
    log_likelihood: float  # of the sequences it was fitted to, in nats
    bic: float
    aic: float
    held_out: float | None  # the log-likelihood of the held-out frames, in nats per frame
    converged: bool


@dataclass(frozen=True)
class Selection:
    """The candidates in the order they were fitted, and the best estimator, fitted."""

    criterion: Criterion
    candidates: list[Candidate]
    best: Any
    best_index: int

    def __str__(self) -> str:
        """A table with a row for each candidate; a star marks the best."""
        names = list(self.candidates[0].settings)
        held_out = self.criterion == "held_out"
        rows = [["", *names, "parameters", "log L", "BIC", "AIC", *(["held-out / frame"] if held_out else [])]]
        for i, one in enumerate(self.candidates):
            values = [str(one.settings[name]) for name in names]
            numbers = [f"{one.parameters:,}", f"{one.log_likelihood:.1f}", f"{one.bic:.1f}", f"{one.aic:.1f}"]
            numbers += [f"{one.held_out:.4f}"] if held_out else []
            rows.append(["*" if i == self.best_index else "", *values, *numbers])
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def select(
    estimator: Estimator,
    X: Any,
    settings: Mapping[str, Iterable[Any]],
    *,
    criterion: Criterion = "bic",
    lengths: Any = None,
    labels: Any = None,
    inputs: Any = None,
    share: float = 0.25,
    n_init: int = 3,
    verbose: bool = False,
) -> Selection:
    """The best of all combinations of settings, `{"n_states": range(2, 7), "covariance_type": ["diag", "full"]}`.

    "bic", "aic": the smallest, of fits to all sequences. "held_out": the largest log-likelihood of a `share` of the
    sequences that the fits have not seen, the last ones; the winner is then fitted to all. Each fit is the best of
    `n_init` starts. `labels` and `inputs` as in `fit`: likelihoods are of frames and labels, held out or not. A
    candidate that cannot be fitted raises: nothing is passed over.
    """
    if criterion not in ("bic", "aic", "held_out"):
        raise DomainError(f'criterion is {criterion!r}, but must be "bic", "aic" or "held_out".')
    for name, values in settings.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise DomainError(
                f"settings have {values!r:.40} for {name!r}, but a list of values was expected: [{values!r:.40}]."
            )
    settings = {name: list(values) for name, values in settings.items()}
    names = list(settings)
    if not names or not all(settings.values()):
        raise DomainError(f"settings are {settings!r:.80}, but at least one with at least one value was expected.")
    if strange := [name for name in names if name not in estimator.get_params()]:
        raise DomainError(
            f"settings have {strange[0]!r}, but {type(estimator).__name__} has {', '.join(estimator.get_params())}."
        )
    sequences = _sequences(estimator, X, lengths)
    beside: dict[str, Any] = {"labels": _beside(sequences, labels), "inputs": _beside(sequences, inputs)}
    num = _seen(sequences, share) if criterion == "held_out" else None
    seen, by = sequences[:num], {name: x and x[:num] for name, x in beside.items()}
    held, by_held = (sequences[num:], {name: x and x[num:] for name, x in beside.items()}) if num else ([], {})
    found, fitted = [], []
    for values in itertools.product(*settings.values()):
        chosen = dict(zip(names, values, strict=True))
        model = type(estimator)(**{**estimator.get_params(), "n_init": n_init, **chosen})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "EM has not converged|too little data")
            model.fit(seen, **by)
        held_out = None
        if held:
            held_out = model.score(held, **by_held) / sum(map(len, held))
        candidate = Candidate(
            chosen, model.n_parameters(), model.score(seen, **by), model.bic(seen, **by), model.aic(seen, **by),
            held_out, model.converged_,
        )  # fmt: skip
        if verbose:
            value = getattr(candidate, criterion)
            print(f"{chosen}: {criterion} {value:.4f}", file=sys.stderr)
        found.append(candidate)
        fitted.append(model)
    scores = [-math.inf if one.held_out is None else one.held_out for one in found]
    best = int(np.argmax(scores)) if criterion == "held_out" else int(np.argmin([getattr(x, criterion) for x in found]))
    return Selection(criterion, found, fitted[best].fit(sequences, **beside) if held else fitted[best], best)


def _sequences(estimator: Estimator, x: Any, lengths: Any) -> list[Any]:
    params: Any = estimator.get_params()
    if params["observations"] == "categorical":
        return list(read_symbols(x, lengths, None, num_states=1).sequences)
    if isinstance(x, list | tuple):
        return list(x)
    return list(read_features(x, lengths, None, num_states=1, missing=params["missing"]).sequences)


def _beside(sequences: list[Any], given: Any) -> list[Any] | None:
    """Labels or inputs of each sequence, of one array for all by their lengths; `fit` says what is wrong with them."""
    if given is None or isinstance(given, list | tuple):
        return given if given is None else list(given)
    return np.split(np.asarray(given), np.cumsum([len(one) for one in sequences])[:-1])


def _seen(sequences: list[Any], share: float) -> int:
    """How many sequences, the first ones, are not held out."""
    if not 0 < share < 1:
        raise DomainError(f"share is {share!r}, but must be between 0 and 1.")
    if len(sequences) < 2:
        raise DomainError(
            "a single sequence came, but held-out likelihood needs several.\n"
            '  Cut it into parts, or use criterion="bic".'
        )
    return len(sequences) - min(max(1, round(share * len(sequences))), len(sequences) - 1)
