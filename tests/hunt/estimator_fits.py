"""Each algorithm of the estimators beside the same steps in numpy; then every question (`estimator_asked.py`)."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import torch

import rankfold
from rankfold.estimators import HMM, HSMM
from tests.hunt.arithmetic import EPS, Array, exp
from tests.hunt.compare import close, expect
from tests.hunt.estimator_asked import Given, ask
from tests.hunt.estimator_oracle import Model, Tables, Uses, durations, seen
from tests.hunt.kind import Case


def read(model: Any, case: Case) -> Tables:
    """The tables of a fitted model, in float64."""
    held = copy.deepcopy(model.model_).double()
    parts = held.own_parts()
    low_rank = case["options"]["rank"] is not None
    moves = parts.transition.factors()[-2:] if low_rank else [parts.transition.to_dense()]
    found = dict(zip(("left", "right") if low_rank else ("transition",), moves, strict=True))
    found["initial"] = parts.log_initial.exp()
    if case["options"]["observations"] == "gaussian":
        found["mean"], found["variance"] = parts.observation.mean, parts.observation.variance
    out = {name: x.detach().cpu().numpy().astype(np.longdouble) for name, x in found.items()}
    if case["options"]["observations"] == "bernoulli":
        out["probability"] = 1 / (1 + exp(-parts.observation.logit.detach().cpu().numpy().astype(np.longdouble)))
    elif case["options"]["observations"] == "categorical":
        emission = parts.observation.emission.log_rows(torch.arange(case["states"], device=held.device))
        out["probability"] = exp(emission.detach().cpu().numpy().astype(np.longdouble))
    if case["segments"]:
        own = {name: x.detach().cpu().numpy().astype(np.longdouble) for name, x in held.duration.named_parameters()}
        if "log_odds" in own:
            own["log_rate"] = -np.log1p(exp(-own["log_odds"]))
        names = [name for name in ("log_rate", "log_shape") if name in own]
        out |= {name: own[name] for name in names}
        if not names:
            out["duration"] = exp(parts.log_duration.detach().cpu().numpy().astype(np.longdouble))
    return out


def check(case: Case, device: str) -> None:
    """Fit, history, then every question."""
    given = Given(case)
    if case["form"] == "positional" and len(case["lengths"]) == len(given.whole):
        return  # lengths of one each may be a target: refused by name
    if case["options"]["observations"] == "gaussian" and not (seen(given.whole)[1] > 0).all():
        return  # a feature that never changes is refused; so is one that was never seen
    options = {k: v for k, v in case["options"].items() if not (k == "forbidden" and v is None)}
    start = None if case["start"] is None else {k: np.array(v) for k, v in case["start"].items()}
    make: Any = HSMM if case["segments"] else HMM

    def made(**other: Any) -> Any:
        named = {"start": start, "tol": None, "random_state": case["seed"], "device": device, **options, **other}
        return make(case["states"], **named)

    truth = Model(case) if start else _possible(case)
    possible = bool(np.isfinite(truth.log_z()).all())
    checked = _Checked(case, made, given, truth, device)
    try:
        model = checked.fitted()
    except rankfold.DomainError as error:
        expect("fit", not possible, error)
        return
    expect("fit", possible, f"impossible, but fitted: {model.history_}")
    ask(model, checked.truth, given, checked.tolerance())


def _possible(case: Case) -> Model:
    """Tables in which everything has weight that may have any: what a start of the library's own has."""
    z, o = case["states"], case["options"]
    out = Model(case, {"initial": np.full(z, 1 / z)})
    width = o["n_symbols"] if o["observations"] == "categorical" else out.x.shape[1]
    out.tables["transition"] = np.where(out.ruled_out, 0.0, 1.0)
    out.tables["left"], out.tables["right"] = np.full((z, o["rank"] or 1), 0.5), np.full((z, o["rank"] or 1), 0.5)
    out.tables |= {
        "mean": np.zeros((z, width)),
        "variance": np.ones((z, width)),
        "probability": np.full((z, width), 0.5),
    }
    out.tables["duration"] = np.ones((z, o.get("max_duration", 1)))
    return out


class _Checked:
    """One algorithm, step by step beside the oracle's, whose tables then are the ones to ask."""

    def __init__(self, case: Case, made: Any, given: Given, truth: Model, device: str) -> None:
        self.case, self.made, self.given, self.truth, self.device = case, made, given, truth, device
        self.rates = case["segments"] and case["options"]["durations"] != "categorical"
        self.steps = 0  # since the tables were known exactly

    def tolerance(self) -> float:
        """Steps of EM are off by 64 eps a frame and nat, eight times that for every step before."""
        one = 64.0 * EPS[self.case["options"]["dtype"]] * len(self.given.whole)
        return one * 8.0**self.steps * (8.0 + self.case["states"] + self.truth.size())

    def fitted(self) -> Any:
        """The model, its history compared."""
        if self.case["start"] is None:
            return self._own_start()
        if self.case["algorithm"] == "sgd":
            return self._sgd(self.made())
        if self.case["algorithm"] == "em":
            return self._em()
        return self._partial()

    def _em(self) -> Any:
        many = 1 if self.rates or self.case["options"]["dtype"] == "float32" else self.case["options"]["max_iter"]
        model = self.given.fit(self.made(max_iter=many))
        for k in range(many):
            self._step(model, model.history_[k])
        expect("length of the history", len(model.history_) == many, model.history_)
        if self.case["options"]["max_iter"] > many:
            model = self.given.fit(self.made())
            self._monotone(model)
        return model

    def _step(self, model: Any, value: float, uses: Uses | None = None, sofar: tuple[float, int] | None = None) -> Uses:
        """One E step and its M step of the oracle; the value of the tables before it."""
        log_z, found = self.truth.expected()
        close("history", np.array(value), np.asarray(log_z.sum() + self.truth.prior()), self.tolerance())
        if uses is not None and sofar is not None:
            found = uses.mixed(found, *sofar)
        new = self.truth.maximised(found)
        self.steps += 1
        if self.rates:
            tables = read(model, self.case)
            new |= {name: tables[name] for name in ("log_rate", "log_shape") if name in tables}
            longest = self.case["options"]["max_duration"]
            expect_durations(found.counts["durations"], self.truth.tables, new, longest, self.tolerance())
        self.truth.tables = new
        return found

    def _partial(self) -> Any:
        """Running counts: all sequences, then the first again; after a fit they go on from its last."""
        model = self.made(max_iter=1)
        first = self.given.fit(model) if self.case["algorithm"] == "fit and partial" else self.given.partial_fit(model)
        expect("partial_fit returns itself", first is model)
        uses = self._step(model, model.history_[-1])
        few = len(self.given.pieces[0])
        labels = None if self.case["labels"] is None else np.array(self.case["labels"][:few])
        held = self.truth
        model.partial_fit(self.given.pieces[0], labels=labels)
        cut = {"lengths": [few], "x": self.case["x"][:few], "labels": None if labels is None else labels.tolist()}
        self.truth = Model({**self.case, **cut}, held.tables)
        self.truth.spread = held.spread  # the scale of the first call stays
        self._step(model, model.history_[-1], uses, (2.0**-0.6, len(self.given.whole) + few))
        held.tables, self.truth = self.truth.tables, held
        expect("length of the history", len(model.history_) == 2, model.history_)
        return model

    def _sgd(self, model: Any) -> Any:
        """The best of the start and all passes is what was returned."""
        before = [float(self.truth.objective())] if self.case["start"] is not None else []
        self.given.fit(model, algorithm="sgd")
        self.truth.tables = read(model, self.case)
        value, best = self.truth.objective(), max([*before, *model.history_])
        expect("length of the history", len(model.history_) == self.case["options"]["max_iter"], model.history_)
        if before:
            close("objective", np.array(best), np.asarray(value), self.tolerance())
        expect("best pass", float(value) >= best - self.tolerance(), value, model.history_)
        if self.case["options"]["observations"] == "gaussian":
            least = self.case["options"]["min_variance"] * self.truth.spread
            rounding = 64 * EPS[self.case["options"]["dtype"]] * (1 + np.abs(np.log(least)))
            found = self.truth.tables["variance"]
            expect("least variance", bool((found >= least * (1 - rounding)).all()), found, least)
        return model

    def _monotone(self, model: Any) -> None:
        """No step loses, nor the last one, whose value is the returned tables'."""
        self.truth.tables, self.steps = read(model, self.case), 0
        values, allowed = [*model.history_, float(self.truth.objective())], self.tolerance()
        expect("monotone", all(b >= a - allowed for a, b in itertools.pairwise(values)), values)

    def _own_start(self) -> Any:
        """From starts of the library's own: of several the best, each the one that its turn of the seed makes."""
        algorithm = "sgd" if self.case["algorithm"] == "sgd" else "em"
        model = self.made()
        if algorithm == "sgd":
            self._sgd(model)
        else:
            self._monotone(self.given.fit(model))
        source = np.random.default_rng(self.case["seed"])
        each = []
        for _ in range(self.case["options"]["n_init"]):
            one = self.given.fit(self.made(n_init=1, random_state=source), algorithm=algorithm)
            each.append(one.history_)
        if algorithm == "em":
            best = max(x[-1] for x in each)
            each = [x for x in each if x[-1] >= best - self._again()]
        what = "best of all starts" if algorithm == "em" else "one of the starts"
        expect(what, any(self._same(model.history_, x) for x in each), model.history_, each)
        return model

    def _again(self) -> float:
        """How far a fit may be from itself: not at all on a CPU; on a GPU sums are added up in any order."""
        return 0.0 if self.device == "cpu" else self.tolerance()

    def _same(self, one: list[float], other: list[float]) -> bool:
        """Whether two histories are of one fit."""
        return len(one) == len(other) and all(abs(a - b) <= self._again() for a, b in zip(one, other, strict=True))


def expect_durations(counts: Array, old: Tables, new: Tables, longest: int, allowed: float) -> None:
    """A Poisson's rate gives the counts' mean; a negative binomial is as good as the old shape with its best share.

    Rates whose maximum is at infinity end where the mean is within 2^-30 of it.
    """
    d = np.arange(1, longest + 1, dtype=np.longdouble)
    whole = counts.sum(1)
    unseen = whole == 0
    wanted = (counts @ d) / np.where(unseen, 1.0, whole)
    low, high = (np.full(len(whole), np.longdouble(x)) for x in (-60.0, 0.0 if "log_shape" in old else 60.0))
    for _ in range(80):  # the mean grows with the rate
        middle = (low + high) / 2
        short = exp(durations({**old, "log_rate": middle}, longest)) @ d < wanted
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    best = (counts * durations({**old, "log_rate": (low + high) / 2}, longest)).sum(1)
    gain = (counts * durations(new, longest)).sum(1) - best
    expect("durations", bool((gain >= -(allowed + 2.0**-28 * longest) * (1 + whole)).all()), gain)
    for name in ("log_rate", "log_shape"):
        if name in old:
            close(f"{name} without a use", new[name][unseen], old[name][unseen], allowed)
    if "log_shape" not in old:
        found = exp(durations(new, longest)) @ d
        close("mean duration", found[~unseen], wanted[~unseen], (allowed + 2.0**-29) * longest)
