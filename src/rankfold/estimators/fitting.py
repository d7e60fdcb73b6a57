"""What a fit prepares, in order: parameters checked, arrays checked, frames turned into tensors; then starts and steps.

Read next: `start.py` for the starts, `em.py` and `sgd.py` for the steps.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.decoding.segments import cut_short, gain_of_longer
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.estimators.em import Priors, em, log_prior, maximised
from rankfold.estimators.expectation import Counts, Tables, expected, potentials
from rankfold.estimators.given import with_given
from rankfold.estimators.inputs import Given, expect_names, given_features, names_of
from rankfold.estimators.observations import Bernoulli, Categorical, CollapseError, Family, Gaussian
from rankfold.estimators.packed import Group, pack
from rankfold.estimators.sgd import descend
from rankfold.estimators.start import Shape, drawn
from rankfold.estimators.symbols import given_symbols, known_symbols, symbol_ids
from rankfold.estimators.wanted import checked_forbidden, expect_parameters, expect_same
from rankfold.estimators.wrapped import model_of, tables_of
from rankfold.models.frame_model import FrameModel
from rankfold.recursions.segments.potentials import SegmentPotentials

# Where the search for a longest duration begins and ends, in frames: a step's cost grows with it.
FIRST_CHOSEN, MOST_CHOSEN = 20, 1280


class Outcome(NamedTuple):
    """The best of several starts."""

    model: FrameModel
    history: list[float]
    converged: bool
    value: float  # the objective, by which starts are compared
    tables: Tables
    counts: Counts  # of all sequences

    def running(self, num_frames: int) -> Running:
        """What online EM goes on from: a fit counts as many calls as it took steps."""
        return Running(len(self.history), self.tables, self.counts.scaled(1 / num_frames), num_frames)


class Running(NamedTuple):
    """What online EM remembers."""

    calls: int
    tables: Tables
    counts: Counts  # a frame
    frames: int  # how many there were


class Fit(NamedTuple):
    """Everything a fit needs."""

    params: Mapping[str, Any]
    shape: Shape
    family: Family
    sequences: list[Tensor]  # "t f" or "t"
    labels: list[Tensor] | None  # "t"
    symbols: NDArray[Any] | None
    names: tuple[str, ...] | None  # of the features
    rng: np.random.Generator

    @property
    def priors(self) -> Priors:
        return Priors(self.params["smoothing"], self.shape.forbidden)

    def run(self, algorithm: str) -> Outcome:
        """The best of `n_init` starts, each followed to its end; one that collapses is passed over, unless all do."""
        if algorithm not in ("em", "sgd"):
            raise UnsupportedError(f'algorithm is {algorithm!r}, but must be "em" or "sgd".')
        outcome = self._best(algorithm)
        longest, most = self.shape.longest, max(map(len, self.sequences))
        # None: there is nothing to choose, or nothing that would gain.
        cut = self._cut_short(outcome.tables) if longest < most else None
        if cut is None:
            return outcome
        if self.params["max_duration"] is None and longest < MOST_CHOSEN:
            return self._replace(shape=self.shape._replace(longest=min(2 * longest, most))).run(algorithm)
        warnings.warn(cut, stacklevel=4)
        return outcome

    def _cut_short(self, tables: Tables) -> str | None:
        parts = (potentials(group, tables, self.family) for group in self._groups())
        gains = [x for p in parts if isinstance(p, SegmentPotentials) for x in gain_of_longer(p).tolist()]
        return cut_short(gains, self.shape.longest, "max_duration")

    def _best(self, algorithm: str) -> Outcome:
        outcomes, collapsed = [], []
        for _ in range(self.params["n_init"]):
            try:
                outcomes.append(self._once(algorithm))
            except CollapseError as error:
                collapsed.append(error)
        if not outcomes:
            raise collapsed[-1]
        return max(outcomes, key=lambda outcome: outcome.value)

    def _once(self, algorithm: str) -> Outcome:
        p, tables = self.params, self._started()
        if algorithm == "sgd":
            found = descend(
                self._model(tables), self.sequences, self.labels, self.rng,
                log_prior=lambda model: log_prior(tables_of(model), self.family, self.priors),
                floor=self.family.floor if isinstance(self.family, Gaussian) else None,
                learning_rate=p["learning_rate"], batch_size=p["batch_size"], num_passes=p["max_iter"], tol=p["tol"],
            )  # fmt: skip
            with torch.no_grad():
                tables = tables_of(copy.deepcopy(found.model).double())
            return Outcome(*found, tables, expected(self._groups(), tables, self.family))
        groups = self._groups()
        fitted = em(groups, tables, self.family, self.priors, num_steps=p["max_iter"], tol=p["tol"])
        tables, history = fitted.tables, fitted.history
        return Outcome(self._model(tables), history, fitted.converged, history[-1], tables, fitted.counts)

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.params["dtype"])
        return found

    def _model(self, tables: Tables) -> FrameModel:
        return model_of(tables, categorical=self.symbols is not None, dtype=self.dtype)

    def _groups(self) -> list[Group]:
        prepared = [self.family.prepare(x) for x in self.sequences]
        return pack(prepared, self.labels, self.shape.num_states, self.dtype)

    def _started(self) -> Tables:
        given = self.params["start"] or {}
        # Means that will be replaced need not be looked for.
        spread_out = self.params["init"] == "kmeans" and not {"mean", "probability"} & set(given)
        tables = drawn(self.shape, self.family, self.sequences, self.labels, self.rng, spread_out=spread_out)
        return with_given(tables, given, self.family, self.shape.forbidden)

    def advance(self, running: Running | None) -> tuple[FrameModel, Running, float]:
        """One step of online EM: these sequences' counts, mixed into the running ones; and their value before it."""
        tables = self._started() if running is None else running.tables
        groups = self._groups()
        counts = expected(groups, tables, self.family)
        value = counts.log_likelihood + float(log_prior(tables, self.family, self.priors))
        num = sum(map(len, self.sequences))
        counts = counts.scaled(1 / num)
        calls, frames = 1, num
        if running is not None:
            calls, frames = running.calls + 1, running.frames + num
            share = calls**-0.6
            counts = running.counts.scaled(1 - share).plus(counts.scaled(share))
        tables = maximised(counts.scaled(frames), tables, self.family, self.priors)
        return self._model(tables), Running(calls, tables, counts, frames), value


def prepared(estimator: Any, x: Any, lengths: Any, labels: Any, *, again: bool = False) -> Fit:
    """The parameters and the sequences, checked. `again`: the scale and the symbols of the last fit are kept."""
    params = estimator.get_params()
    expect_parameters(params)
    names = names_of(x)
    if again:
        expect_same(params, estimator._made_with)
        expect_names(getattr(estimator, "feature_names_in_", None), names, type(estimator).__name__)
    kind, num_states = params["observations"], params["n_states"]
    dtype, device = getattr(torch, params["dtype"]), torch.device(params["device"])
    symbols = None
    family: Family
    if kind == "categorical":
        given = given_symbols(x, lengths, labels, num_states=num_states)
        symbols = estimator.symbols_ if again else known_symbols(given, params["n_symbols"])
        ids: list[NDArray[Any]] = list(symbol_ids(given, symbols))
        given = given._replace(sequences=ids)
        sequences = [torch.from_numpy(row).to(device) for row in ids]
        family = Categorical(len(symbols), params["smoothing"])
    else:
        given = given_features(
            x, lengths, labels, num_states=num_states, binary=kind == "bernoulli", missing=params["missing"],
            dtype=params["dtype"],
        )  # fmt: skip
        width = given.sequences[0].shape[1]
        if again and width != estimator.n_features_in_:
            raise DomainError(
                f"X has {width} features, but {type(estimator).__name__} is expecting {estimator.n_features_in_} "
                "features as input."
            )
        sequences = [torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype) for rows in given.sequences]
        family = _features(params, sequences, estimator if again else None)
    known = None if given.labels is None else [torch.from_numpy(y).to(device) for y in given.labels]
    shape = _shape(params, given, device, estimator if again else None)
    return Fit(params, shape, family, sequences, known, symbols, names, generator_of(params["random_state"]))


def _features(params: Mapping[str, Any], sequences: list[Tensor], like: Any) -> Family:
    binary = params["observations"] == "bernoulli"
    if like is not None:
        kept: Family = Bernoulli(params["smoothing"]) if binary else like._family
        return kept
    frames = torch.cat(sequences).double()
    here = ~frames.isnan()
    if not bool(here.any(0).all()):
        which = int((~here.any(0)).nonzero()[0])
        raise DataError(f"feature {which} has no value in every frame: it tells no states apart.\n  Leave it out.")
    if binary:
        return Bernoulli(params["smoothing"])
    if int(here.all(1).sum()) == 1 == int(here.any(1).sum()):
        raise DataError(
            "a single frame (one sample) has no variance: there is nothing to fit.\n  Give sequences of several frames."
        )
    shift = frames.nanmean(0)
    spread = (frames - shift).square().nanmean(0)
    low = torch.where(here, frames, float("inf")).amin(0)
    high = torch.where(here, frames, float("-inf")).amax(0)
    if bool((low == high).any()):
        which = int((low == high).nonzero()[0])
        raise DataError(
            f"feature {which} has the same value, {float(shift[which]):g}, in every frame: it has no variance and "
            "tells no states apart.\n  Leave it out."
        )
    held = torch.finfo(getattr(torch, params["dtype"]))
    if bool((spread < held.tiny / held.eps).any()):
        which = int(spread.argmin())
        raise DataError(
            f"feature {which} has a variance of {float(spread[which]):g}, too small for {params['dtype']}.\n"
            "  Rescale the feature."
        )
    floor = params["min_variance"] * spread
    return Gaussian(shift, spread, floor, params["tied_variance"], params["variance_prior"])


def _shape(params: Mapping[str, Any], given: Given, device: torch.device, like: Any) -> Shape:
    num_states, longest = params["n_states"], params.get("max_duration", 1)
    diagonal = params.get("self_transitions", True)
    if longest is None:
        longest = like.model_.config.max_duration if like is not None else min(FIRST_CHOSEN, max(given.lengths))
    elif "max_duration" in params and longest > max(given.lengths) and like is None:
        raise DomainError(
            f"max_duration is {longest}, but the longest sequence has {max(given.lengths)} frames.\n"
            f"  Set max_duration to at most {max(given.lengths)}."
        )
    forbidden = checked_forbidden(params["forbidden"], num_states, diagonal=diagonal, rank=params["rank"])
    return Shape(
        num_states,
        params["rank"],
        diagonal,
        None if forbidden is None else torch.from_numpy(forbidden).to(device),
        params.get("durations"),
        longest,
        params.get("censored", False),
    )


def generator_of(random_state: Any) -> np.random.Generator:
    """A generator from a seed, another generator, or None for chance."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31 - 1))
    return np.random.default_rng(random_state)


def torch_generator(rng: np.random.Generator, device: torch.device) -> torch.Generator:
    """torch's generator, seeded by NumPy's."""
    return torch.Generator(device).manual_seed(int(rng.integers(2**63 - 1)))
