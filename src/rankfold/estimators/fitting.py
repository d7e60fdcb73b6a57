"""A fit: parameters and arrays validated, a model built and initialised, then steps of EM or of gradients."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.decoding.segment_table import cut_short, gain_of_longer
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.estimators.check_parameters import expect_parameters, expect_same, forbidden_table
from rankfold.estimators.inputs import Inputs, expect_names, expect_width, names_of, read_features
from rankfold.estimators.symbols import collect_symbols, read_symbols, symbol_ids
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig, frame_family
from rankfold.models.frame_model import FrameModel
from rankfold.params.observations import OBSERVATIONS, CollapseError
from rankfold.params.prior import Prior, Table
from rankfold.training.em import Counts, Group, Running, em, expect, group, log_prior, stepwise, with_statistics
from rankfold.training.initialisation import initialise


def fill_start(model: FrameModel, start: Mapping[str, Any], prior: Prior) -> None:
    """Set some tables of the model; raises on other names or shapes, and unless rows are distributions.

    Raises, too, on tables that the fit's own constraints rule out: EM would step away from it, to a lower likelihood.
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


# The range of the search for `max_duration`, in frames: a step's cost grows with it.
FIRST_CHOSEN, MOST_CHOSEN = 20, 1280


class Outcome(NamedTuple):
    """The best of several starts."""

    model: FrameModel
    history: list[float]
    converged: bool
    value: float  # the objective, by which starts are compared
    counts: Counts  # of all sequences

    def running(self, num_frames: int) -> Running:
        """The state from which stepwise EM goes on: a fit counts as many calls as it took steps."""
        return Running(len(self.history), self.counts.times(1 / num_frames), num_frames)


class Fit(NamedTuple):
    """Everything a fit needs."""

    params: Mapping[str, Any]
    config: FrameConfig
    prior: Prior
    sequences: list[Tensor]  # "t f" or "t"
    labels: list[Tensor] | None  # "t"
    symbols: NDArray[Any] | None
    names: tuple[str, ...] | None  # of the features
    rng: np.random.Generator

    def run(self, algorithm: str) -> Outcome:
        """The best of `n_init` starts, each followed to its end; one that collapses is passed over, unless all do."""
        if algorithm not in ("em", "sgd"):
            raise UnsupportedError(f'algorithm is {algorithm!r}, but must be "em" or "sgd".')
        outcome = self._best(algorithm)
        longest, most = self.config.max_duration, max(map(len, self.sequences))
        # None: there is nothing to choose, or nothing that would gain.
        cut = self._cut_short(outcome.model) if self.config.has_segments and longest < most else None
        if cut is None:
            return outcome
        if self.params["max_duration"] is None and longest < MOST_CHOSEN:
            longer = dataclasses.replace(self.config, max_duration=min(2 * longest, most))
            return self._replace(config=longer).run(algorithm)
        warnings.warn(cut, stacklevel=4)
        return outcome

    def _cut_short(self, model: FrameModel) -> str | None:
        with torch.no_grad():
            found = [gain_of_longer(model.potentials(one.batch, allowed=one.allowed)) for one in self._groups()]
        return cut_short(torch.cat(found).tolist(), self.config.max_duration, "max_duration")

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
        model = self._started()
        groups = with_statistics(self._groups(), model, self.prior)
        if algorithm == "sgd":
            history, converged, value = self._descend(model)
            return Outcome(model, history, converged, value, expect(model, groups))
        fitted = em(model, groups, self.prior, num_steps=self.params["max_iter"], tol=self.params["tol"])
        return Outcome(model, fitted.history, fitted.converged, fitted.history[-1], fitted.counts)

    def _groups(self) -> list[Group]:
        return group(self.sequences, self.labels, self.config.num_states)

    def _started(self) -> FrameModel:
        start, device = self.params["start"] or {}, self.sequences[0].device
        model = build_model(self.config).to(device, getattr(torch, self.params["dtype"]))
        # Means that will be replaced need not be looked for.
        near = self.params["init"] == "kmeans" and not {"mean", "probability"} & set(start)
        initialise(model, self.sequences, self.labels, self.prior, self.rng, near=near)
        fill_start(model, start, self.prior)
        return model

    def advance(self, model: FrameModel | None, running: Running | None) -> tuple[FrameModel, Running, float]:
        """One step of stepwise EM: these sequences' counts, mixed into the running ones; and their value before it."""
        model = self._started() if model is None else copy.deepcopy(model)
        groups = with_statistics(self._groups(), model, self.prior)
        running, value = stepwise(model, groups, self.prior, running)
        return model, running, value

    def _descend(self, model: FrameModel) -> tuple[list[float], bool, float]:
        """Adam on the objective of EM, `batch_size` sequences per step; keeps the best parameters after any pass.

        A step takes the gradient of its sequences' share of likelihood and prior. Not monotone. It stops where a pass
        gains, and less than `tol` per frame. Returned: the objective after each pass, and that of the model.
        """
        tol, size = self.params["tol"], self.params["batch_size"]
        optimiser = torch.optim.Adam(model.parameters(), lr=self.params["learning_rate"])
        num_frames = sum(map(len, self.sequences))
        best = self._objective(model)
        if not math.isfinite(best):
            raise DomainError(
                "the start has no finite objective: a zero under smoothing, or a sequence that is impossible.\n"
                '  Gradient steps never leave a 0: give entries above 0, or use algorithm="em".'
            )
        kept, history, converged = copy.deepcopy(model.state_dict()), [], False
        for _ in range(self.params["max_iter"]):
            order = self.rng.permutation(len(self.sequences))
            for at in range(0, len(order), size):
                self._gradient_step(model, optimiser, [int(i) for i in order[at : at + size]], num_frames)
            history.append(self._objective(model))
            _expect_finite(history[-1])
            if history[-1] > best:
                best, kept = history[-1], copy.deepcopy(model.state_dict())
            if tol is not None and len(history) > 1 and 0 <= history[-1] - history[-2] < tol * num_frames:
                converged = True
                break
        model.load_state_dict(kept)
        return history, converged, best

    def _gradient_step(
        self, model: FrameModel, optimiser: torch.optim.Optimizer, which: list[int], num_frames: int
    ) -> None:
        some = [self.sequences[i] for i in which]
        labels = None if self.labels is None else [self.labels[i] for i in which]
        size = sum(map(len, some))
        optimiser.zero_grad()
        prior = log_prior(model, self.prior)
        if prior.requires_grad:  # without any it is 0
            (-prior / num_frames).backward()  # type: ignore[no-untyped-call]
        for one in group(some, labels, self.config.num_states):
            value = model.log_likelihood(one.batch, allowed=one.allowed).sum()
            _expect_finite(float(value.detach()))
            (-value / size).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        model.observation.keep_within(self.prior)

    @torch.no_grad()
    def _objective(self, model: FrameModel) -> float:
        found = (float(model.log_likelihood(one.batch, allowed=one.allowed).sum()) for one in self._groups())
        return sum(found) + float(log_prior(model, self.prior))


def _expect_finite(value: float) -> None:
    if not math.isfinite(value):
        raise CollapseError(
            "a gradient step met a sequence that is impossible under the model.\n"
            '  Lower learning_rate, or use algorithm="em".'
        )


def prepare_fit(estimator: Any, x: Any, lengths: Any, labels: Any, *, again: bool = False) -> Fit:
    """The parameters and the sequences, validated. `again`: the scale and the symbols of the last fit are kept."""
    params = estimator.get_params()
    expect_parameters(params)
    names = names_of(x)
    if again:
        expect_same(params, estimator._made_with)
        expect_names(getattr(estimator, "feature_names_in_", None), names, type(estimator).__name__)
    kind, num_states = OBSERVATIONS[params["observations"]], params["n_states"]
    dtype, device = getattr(torch, params["dtype"]), torch.device(params["device"])
    symbols = None
    if kind.symbols:
        given = read_symbols(x, lengths, labels, num_states=num_states)
        symbols = estimator.symbols_ if again else collect_symbols(given, params["n_symbols"])
        ids: list[NDArray[Any]] = list(symbol_ids(given, symbols))
        given = given._replace(sequences=ids)
        sequences, width = [torch.from_numpy(row).to(device) for row in ids], len(symbols)
    else:
        given = read_features(
            x, lengths, labels, num_states=num_states, observations=params["observations"], missing=params["missing"],
            dtype=params["dtype"],
        )  # fmt: skip
        width = given.sequences[0].shape[1]
        if again:
            expect_width(width, estimator)
        sequences = [torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype) for rows in given.sequences]
    known = None if given.labels is None else [torch.from_numpy(y).to(device) for y in given.labels]
    prior = estimator._prior if again else _features_prior(params, sequences)
    config = _config(params, given, width, estimator if again else None)
    forbidden = forbidden_table(
        params["forbidden"], num_states, diagonal=params.get("self_transitions", True), rank=params["rank"]
    )
    prior = prior._replace(
        smoothing=params["smoothing"], forbidden=None if forbidden is None else torch.from_numpy(forbidden).to(device)
    )
    return Fit(params, config, prior, sequences, known, symbols, names, generator_of(params["random_state"]))


def _features_prior(params: Mapping[str, Any], sequences: list[Tensor]) -> Prior:
    """The scale of the features, and the prior of the variances; raises where a feature is constant or missing."""
    kind = OBSERVATIONS[params["observations"]]
    if kind.symbols:
        return Prior()
    frames = torch.cat(sequences).double()
    here = ~frames.isnan()
    if not bool(here.any(0).all()):
        which = int((~here.any(0)).nonzero()[0])
        raise DataError(f"feature {which} has no value in every frame: it tells no states apart.\n  Leave it out.")
    if not kind.measured:
        return Prior()
    if int(here.all(1).sum()) == 1 == int(here.any(1).sum()):
        raise DataError(
            "a single frame (one sample) has no variance: there is nothing to fit.\n  Give sequences of several frames."
        )
    centre = frames.nanmean(0)
    spread = (frames - centre).square().nanmean(0)
    low = torch.where(here, frames, float("inf")).amin(0)
    high = torch.where(here, frames, float("-inf")).amax(0)
    if bool((low == high).any()):
        which = int((low == high).nonzero()[0])
        raise DataError(
            f"feature {which} has the same value, {float(centre[which]):g}, in every frame: it has no variance and "
            "tells no states apart.\n  Leave it out."
        )
    held = torch.finfo(getattr(torch, params["dtype"]))
    if bool((spread < held.tiny / held.eps).any()):
        which = int(spread.argmin())
        raise DataError(
            f"feature {which} has a variance of {float(spread[which]):g}, too small for {params['dtype']}.\n"
            "  Rescale the feature."
        )
    # A prior is of each state's variance: a shared one has seen the frames of all.
    frames_seen = params["variance_prior"] * (params["n_states"] if params["tied_variance"] else 1)
    return Prior(
        centre=centre, spread=spread, min_variance=params["min_variance"] * spread, variance_frames=frames_seen
    )


def _config(params: Mapping[str, Any], given: Inputs, width: int, like: Any) -> FrameConfig:
    longest, most = params.get("max_duration", 1), max(given.lengths)
    has_segments, rank = "max_duration" in params, params["rank"]
    if longest is None:
        longest = like.model_.config.max_duration if like is not None else min(FIRST_CHOSEN, most)
    elif has_segments and longest > most and like is None:
        raise DomainError(
            f"max_duration is {longest}, but the longest sequence has {most} frames.\n"
            f"  Set max_duration to at most {most}."
        )
    return FrameConfig(
        family=frame_family(segments=has_segments, low_rank=rank is not None),
        observations=params["observations"],
        num_states=int(params["n_states"]),
        num_features=width,
        rank=1 if rank is None else int(rank),
        max_duration=int(longest),
        durations=params.get("durations", "poisson"),
        self_transitions=bool(params.get("self_transitions", True)),
        censored=bool(params.get("censored", False)),
        tied_variance=bool(params["tied_variance"]) and OBSERVATIONS[params["observations"]].measured,
        min_variance=0.0,
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
