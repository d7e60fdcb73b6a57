"""A fit: parameters and arrays validated, a model built and initialised, then steps of EM or of gradients."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.decoding.segment_table import cut_short, gain_of_longer
from rankfold.errors import DomainError, UnsupportedError
from rankfold.estimators.check_parameters import driven_parts, expect_parameters, expect_same, groups_of, has_counts
from rankfold.estimators.fit_prior import expect_fixed, features_prior, fixed_of, kind_name, whole_prior
from rankfold.estimators.inputs import (
    Inputs,
    expect_names,
    expect_observed,
    expect_width,
    names_of,
    read_features,
    weights_of,
    with_inputs,
)
from rankfold.estimators.known_tables import fill_start, known_tables, modules_of, observation_sizes, own_names
from rankfold.estimators.symbols import collect_symbols, read_symbols, symbol_ids
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig, frame_family
from rankfold.models.frame_model import FrameModel
from rankfold.params.observations import OBSERVATIONS, CollapseError
from rankfold.params.prior import Prior
from rankfold.training.batch_em import mix
from rankfold.training.em import (
    Counts,
    Group,
    Running,
    em,
    expect,
    group,
    log_prior,
    maximise,
    stepwise,
    with_statistics,
)
from rankfold.training.initialisation import initialise

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
    weights: tuple[float, ...] | None = None  # of the sequences; None: all 1
    inputs: list[Tensor] | None = None  # "t k"   that drive start or transitions
    num_columns: int = 1  # of X

    @property
    def num_frames(self) -> int:
        """Of all sequences."""
        return sum(x.shape[0] for x in self.sequences)

    def run(self, algorithm: str) -> Outcome:
        """The best of `n_init` starts, each followed to its end; one that collapses is passed over, unless all do."""
        if algorithm not in ("em", "minibatch", "sgd"):
            raise UnsupportedError(f'algorithm is {algorithm!r}, but must be "em", "minibatch" or "sgd".')
        if algorithm == "minibatch" and not has_counts(self.params):
            raise UnsupportedError(
                'algorithm is "minibatch", but with input_driven there are no counts that add up.\n  Use "em" or "sgd".'
            )
        outcome = self._best(algorithm)
        longest, most = self.config.max_duration, max(x.shape[0] for x in self.sequences)
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
        if algorithm == "minibatch":
            return self._in_batches(model, groups)
        tell = _teller() if self.params["verbose"] else None
        steps, tol = self.params["max_iter"], self.params["tol"]
        fitted = em(model, groups, self.prior, num_steps=steps, tol=tol, tell=tell)
        return Outcome(model, fitted.history, fitted.converged, fitted.history[-1], fitted.counts)

    def _in_batches(self, model: FrameModel, groups: list[Group]) -> Outcome:
        """EM on running counts, moved towards those of `batch_size` sequences at a time; not monotone.

        Running counts begin with those of all sequences. A step of pass k moves them by (1 - momentum) k^-0.6 of the
        way, such that they settle. History: the objective summed over the steps of a pass, each before its own.
        """
        params, size = self.params, self.params["batch_size"]
        num_frames = self.num_frames
        running, converged = expect(model, groups).flat(), False
        history: list[float] = []
        tell = _teller() if params["verbose"] else None
        for number in range(1, params["max_iter"] + 1):
            order, value = self.rng.permutation(len(self.sequences)), 0.0
            for at in range(0, len(order), size):
                which = [int(i) for i in order[at : at + size]]
                counts = expect(model, with_statistics(self._groups(which), model, self.prior))
                frames = sum(len(self.sequences[i]) for i in which)
                value += counts.log_likelihood + float(log_prior(model, self.prior).detach()) * frames / num_frames
                share = (1 - params["momentum"]) * number**-0.6
                running = mix(running, counts.times(num_frames / frames).flat(), share)
                maximise(model, counts.of_flat(running), self.prior)
            gain = value - history[-1] if history else math.inf
            if tell is not None:
                tell(len(history), value, gain)
            history.append(value)
            if params["tol"] is not None and 0 <= gain < params["tol"] * num_frames:
                converged = True
                break
        counts = expect(model, groups)
        objective = counts.log_likelihood + float(log_prior(model, self.prior).detach())
        return Outcome(model, history, converged, objective, counts)

    def _groups(self, which: list[int] | None = None) -> list[Group]:
        every = range(len(self.sequences)) if which is None else which
        sequences = [self.sequences[i] for i in every]
        labels = None if self.labels is None else [self.labels[i] for i in every]
        weights = None if self.weights is None else [self.weights[i] for i in every]
        inputs = None if self.inputs is None else [self.inputs[i] for i in every]
        found = group(sequences, labels, self.config.num_states, weights, inputs)
        return [one._replace(which=[every[i] for i in one.which]) for one in found]

    def _started(self) -> FrameModel:
        start, device = self.params["start"] or {}, self.sequences[0].device
        model = build_model(self.config)
        _set_networks(model, self.params.get("input_driven", ()))
        model = model.to(device, getattr(torch, self.params["dtype"]))
        # Means that will be replaced need not be looked for.
        known = known_tables(model)
        given = {name: start[word] for name, word in own_names(start, known, "start").items()}
        near = self.params["init"] == "kmeans" and not {"mean", "probability", "rate"} & set(given)
        expect_fixed(self.prior, fixed_of(self.params["fixed"], self.config.num_states)[0], known, given)
        if set(known) - set(given):  # where all tables are given, there is nothing to look for
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
        hold = _holder(model, self.prior)
        optimiser = torch.optim.Adam(model.parameters(), lr=self.params["learning_rate"])
        num_frames = self.num_frames
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
                hold()
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
        size = sum(len(self.sequences[i]) for i in which)
        optimiser.zero_grad()
        prior = log_prior(model, self.prior)
        if prior.requires_grad:  # without any it is 0
            (-prior / num_frames).backward()  # type: ignore[no-untyped-call]
        for one in self._groups(which):
            value = model.log_likelihood(one.batch, allowed=one.allowed).sum() * one.weight
            _expect_finite(float(value.detach()))
            (-value / size).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        model.observation.keep_within(self.prior)

    @torch.no_grad()
    def _objective(self, model: FrameModel) -> float:
        groups = self._groups()
        found = (one.weight * float(model.log_likelihood(one.batch, allowed=one.allowed).sum()) for one in groups)
        return sum(found) + float(log_prior(model, self.prior))


class Parts:
    """The sequences of a fit, read part by part whenever they are gone through; never all of them at once."""

    def __init__(self, estimator: Any, parts: Iterable[Any]) -> None:
        if iter(parts) is parts:
            raise DomainError(
                f"parts is a {type(parts).__name__}, which can be gone through once, but every step reads all parts.\n"
                "  Give a list, or an object whose __iter__ begins anew."
            )
        self.estimator, self.parts, self.num_frames = estimator, parts, 0

    def first(self) -> Fit:
        """The fit of the first part alone."""
        for x in self.parts:
            return prepare_fit(self.estimator, x, None, None)
        raise DomainError("parts is empty, but at least one part was expected.")

    def __iter__(self) -> Iterator[Group]:
        self.num_frames = 0
        for x in self.parts:
            found = prepare_fit(self.estimator, x, None, None, again=True)
            self.num_frames += found.num_frames
            yield from with_statistics(found._groups(), self.estimator.model_, found.prior)

    def run(self, found: Fit) -> Outcome:
        """EM from the estimator's model on: each step adds up the expected counts of all parts."""
        model, params = self.estimator.model_, found.params
        tell = _teller() if params["verbose"] else None
        fitted = em(model, self, found.prior, num_steps=params["max_iter"], tol=params["tol"], tell=tell)
        return Outcome(model, fitted.history, fitted.converged, fitted.history[-1], fitted.counts)


def _holder(model: FrameModel, prior: Prior) -> Callable[[], None]:
    """A function that sets back what is fixed, after a gradient step."""
    entries = prior.fixed_entries
    names = prior.fixed if entries is None else prior.fixed | {"transition"}
    tables = {name: known.value.clone() for name, known in known_tables(model).items() if name in names}

    def hold() -> None:
        for module in modules_of(model):
            own = {name: tables[name] for name in module.tables() if name in prior.fixed}
            if own:
                module.fill(**own)
        if entries is not None:
            model.dynamics.hold(entries, tables["transition"])

    return hold


def _teller() -> Callable[[int, float, float], None]:
    """Prints a line for each step on standard error: its number, the objective before it, the gain."""

    def tell(step: int, value: float, gain: float) -> None:
        print(f"{step:>6} {value:>18.6f} {gain:>+14.6f}" if step else f"{step:>6} {value:>18.6f}", file=sys.stderr)

    return tell


def _expect_finite(value: float) -> None:
    if not math.isfinite(value):
        raise CollapseError(
            "a gradient step met a sequence that is impossible under the model.\n"
            '  Lower learning_rate, or use algorithm="em".'
        )


def _set_networks(model: FrameModel, given: Any) -> None:
    """The user's own networks, copied, in place of regressions on inputs; of observations next to them."""
    for name, network in given.items() if isinstance(given, Mapping) else ():
        if network is not None:
            owner = model.dynamics
            if name == "observations":
                owner, name = getattr(model.observation, "groups", model.observation), "network"
            setattr(owner, name, copy.deepcopy(network))


def prepare_fit(
    estimator: Any,
    x: Any,
    lengths: Any,
    labels: Any,
    weights: Any = None,
    inputs: Any = None,
    *,
    again: bool = False,
) -> Fit:
    """The parameters and the sequences, validated. `again`: the scale and the symbols of the last fit are kept."""
    params = estimator._fit_params()
    expect_parameters(params)
    names = names_of(x)
    if again:
        expect_same(params, estimator._made_with)
        expect_names(getattr(estimator, "feature_names_in_", None), names, type(estimator).__name__)
    kind, num_states = OBSERVATIONS[kind_name(params["observations"])], params["n_states"]
    driven = driven_parts(params.get("input_driven", ()))
    apart = kind.needs == "inputs" and not params["n_inputs"]
    if apart and inputs is None:
        raise DomainError(
            "n_inputs is 0 and no inputs came, but a regression has at least one input.\n"
            "  Give inputs=..., or n_inputs, the number of the last columns of X that are inputs."
        )
    dtype, device = getattr(torch, params["dtype"]), torch.device(params["device"])
    symbols, columns = None, 1
    if kind.symbols:
        given = read_symbols(x, lengths, labels, num_states=num_states)
        symbols = estimator.symbols_ if again else collect_symbols(given, params["n_symbols"])
        ids: list[NDArray[Any]] = list(symbol_ids(given, symbols))
        given = with_inputs(given._replace(sequences=ids), inputs, observed=False, driven=bool(driven), num=None)
        sequences, width = [torch.from_numpy(row).to(device) for row in ids], len(symbols)
    else:
        given = read_features(
            x, lengths, labels, num_states=num_states, missing=params["missing"], dtype=params["dtype"]
        )
        width = given.sequences[0].shape[1]
        if again:
            expect_width(width, estimator)
        columns = width
        given = with_inputs(given, inputs, observed=apart, driven=bool(driven), num=None)
        width = given.sequences[0].shape[1]
        if apart:
            params = {**params, "n_inputs": width - columns}
        sequences = [torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype) for rows in given.sequences]
    known = None if given.labels is None else [torch.from_numpy(y).to(device) for y in given.labels]
    prior = estimator._prior if again else features_prior(params, sequences)
    config = _config(params, given, width, estimator if again else None)
    if not kind.symbols:
        expect_observed(given.sequences, config)
    prior = whole_prior(params, prior, width, device)
    each = weights_of(weights, given)
    rng = generator_of(params["random_state"])
    beside = None if given.inputs is None else [torch.from_numpy(u).to(device) for u in given.inputs]
    return Fit(params, config, prior, sequences, known, symbols, names, rng, each, beside, columns)


def _config(params: Mapping[str, Any], given: Inputs, width: int, like: Any) -> FrameConfig:
    longest, most = params.get("max_duration", 1), max(given.lengths)
    has_segments, rank = "max_duration" in params, params["rank"]
    if longest is None:
        longest = (
            like.model_.config.max_duration
            if like is not None
            else min(FIRST_CHOSEN + params["min_duration"] - 1, most)
        )
    elif has_segments and longest > most and like is None:
        raise DomainError(
            f"max_duration is {longest}, but the longest sequence has {most} frames.\n"
            f"  Set max_duration to at most {most}."
        )
    _, sizes = observation_sizes(params, {})
    if sizes["observations"] == "logistic":
        highest = max(float(np.nanmax(np.append(x[:, 0], 1.0))) for x in given.sequences)
        classes = params["n_symbols"] or int(highest) + 1
        sizes["num_classes"] = classes if like is None else like.model_.config.num_classes
    if given.inputs is not None:
        driven = driven_parts(params["input_driven"])
        sizes |= {"driven": driven, "num_drivers": given.inputs[0].shape[1], "drivers_rank": params["input_rank"] or 0}
    if sizes["columns"]:
        sizes["columns"] = _counted(sizes["columns"], given, params["n_symbols"], like)
    return FrameConfig(
        family=frame_family(segments=has_segments, low_rank=rank is not None),
        num_states=int(params["n_states"]),
        num_features=width,
        rank=1 if rank is None else int(rank),
        max_duration=int(longest),
        durations=params.get("durations", "poisson"),
        self_transitions=bool(params.get("self_transitions", True)),
        censored=bool(params.get("censored", False)),
        ends=bool(params.get("ends", False)),
        min_duration=int(params.get("min_duration", 1)),
        tied_states=groups_of(params),
        min_variance=0.0,
        chains=params.get("chains", ()),
        parents=params.get("parents", ()),
        **sizes,
    )


def _counted(columns: tuple[str, ...], given: Inputs, num_symbols: int | None, like: Any) -> tuple[str, ...]:
    """The kinds of columns, with the number of symbols where it is not said: `n_symbols`, or those of the data."""
    if like is not None:
        found: tuple[str, ...] = like.model_.config.columns
        return found
    width = given.sequences[0].shape[1]
    if len(columns) != width:
        raise DomainError(f"observations names {len(columns)} columns, but X has {width}.")
    counted = []
    for i, name in enumerate(columns):
        if name == "categorical":
            most = max(float(np.nanmax(np.append(x[:, i], 0.0))) for x in given.sequences)
            name = f"categorical:{num_symbols or int(most) + 1}"
        counted.append(name)
    return tuple(counted)


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
