"""EM and the estimators' options: a few steps from given tables against the same steps in plain numpy.

`history_` has the objective before every step; score, posteriors, filter and best states are asked of what came out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import rankfold
from rankfold.estimators import HMM, HSMM
from tests.hunt import chain_oracle, matrices, segment_oracle
from tests.hunt.arithmetic import EPS, NONE, Array, exp, log, total
from tests.hunt.compare import DeviatesError, close, expect
from tests.hunt.kind import Case, Deviation, Kind

Tables = dict[str, Array]


class Estimators(Kind):
    """A fit from a given start, with random options, and questions asked of it."""

    name = "estimators"
    weight = 2.0

    def draw(self, rng: np.random.Generator) -> Case:
        """Frames, labels, options and a start."""
        segments = bool(rng.random() < 0.35)
        family = str(rng.choice(["gaussian", "bernoulli", "categorical"]))
        large = rng.random() < 0.55
        states = int(rng.integers(4, 6)) if large else int(rng.integers(1, 4))
        width = int(rng.integers(1, 4))
        lengths = rng.integers(5 if large else 1, 9, rng.integers(1, 4)).tolist()
        frames = int(sum(lengths))
        x = {
            "gaussian": rng.normal(size=(frames, width)) * 10.0 ** rng.uniform(-2, 2) + rng.normal() * 3,
            "bernoulli": rng.integers(0, 2, (frames, width)).astype(float),
            "categorical": rng.integers(0, width + 1, frames),
        }[family]
        if rng.random() < 0.3:
            missing = rng.random(x.shape) < 0.15
            missing[np.cumsum([0, *lengths[:-1]])] = False  # a sequence of nothing but missing frames is refused
            x = np.where(missing, -1 if family == "categorical" else np.nan, x)
        rank = int(rng.integers(1, states + 1)) if rng.random() < 0.3 and not segments else None
        forbidden = None
        if rank is None and states > 1 and rng.random() < 0.3:
            forbidden = (rng.random((states, states)) < 0.25) & ~np.roll(np.eye(states, dtype=bool), 1, 1)
        options: Case = {
            "observations": family,
            "rank": rank,
            "forbidden": None if forbidden is None else forbidden.tolist(),
            "smoothing": float(rng.choice([0.0, 0.0, 0.3])),
            "dtype": str(rng.choice(["float64", "float64", "float32"])),
            "max_iter": int(rng.integers(1, 4)),
        }
        if options["dtype"] == "float32":
            options["max_iter"] = 1
        if family == "gaussian":
            options["tied_variance"] = bool(rng.random() < 0.3)
            options["min_variance"] = float(rng.choice([1e-4, 0.1]))
            options["variance_prior"] = float(rng.choice([0.0, 0.0, 2.0]))
        if family == "categorical":
            options["n_symbols"] = width + 1
        if segments:
            options |= {
                "max_duration": int(rng.integers(1, min(5, max(lengths)) + 1)),
                "durations": "categorical",
                "self_transitions": bool(states == 1 or rng.random() < 0.5),
                "censored": bool(rng.random() < 0.5),
            }
        labels = None
        if rng.random() < 0.3:
            labels = np.where(rng.random(frames) < 0.2, rng.integers(0, states, frames), -1).tolist()
        return {
            "segments": segments,
            "states": states,
            "options": options,
            "x": x.tolist(),
            "lengths": lengths,
            "labels": labels,
            "start": {k: v.tolist() for k, v in _start(rng, options, states, x, segments).items()},
            "form": str(rng.choice(["list", "lengths", "positional"])),
        }

    def large(self, case: Case) -> bool:
        return case["states"] > 3 and max(case["lengths"]) > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            _check(case, self.device)
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        if len(case["lengths"]) > 1:
            n = case["lengths"][-1]
            labels = None if case["labels"] is None else case["labels"][:-n]
            yield {**case, "lengths": case["lengths"][:-1], "x": case["x"][:-n], "labels": labels}
        if case["labels"] is not None:
            yield {**case, "labels": None}
        if case["form"] != "list":
            yield {**case, "form": "list"}
        plain = {"smoothing": 0.0, "max_iter": 1, "tied_variance": False, "variance_prior": 0.0, "dtype": "float64"}
        for key, simple in plain.items():
            if case["options"].get(key, simple) != simple and key != "tied_variance":
                yield {**case, "options": {**case["options"], key: simple}}


def _start(rng: np.random.Generator, options: Case, states: int, x: Array, segments: bool) -> Tables:
    """Tables that keep the constraints."""

    def rows(*shape: int) -> Array:
        found = rng.uniform(0.1, 1.0, shape)
        return found / found.sum(-1, keepdims=True)

    start: Tables = {"initial": rows(states)}
    if options["rank"] is None:
        table = rng.uniform(0.1, 1.0, (states, states))
        table[_ruled_out(options, states, segments)] = 0.0
        start["transition"] = table / table.sum(1, keepdims=True)
    else:
        start["left"], start["right"] = rows(states, options["rank"]), rows(options["rank"], states).T
    if options["observations"] == "gaussian":
        centre, spread = _seen(x)
        start["mean"] = centre + np.sqrt(spread) * rng.normal(size=(states, x.shape[1]))
        tied = options["tied_variance"]
        start["variance"] = spread * rng.uniform(0.2, 2.0, (x.shape[1],) if tied else (states, x.shape[1]))
    elif options["observations"] == "bernoulli":
        start["probability"] = rng.uniform(0.1, 0.9, (states, x.shape[1]))
    else:
        start["probability"] = rows(states, options["n_symbols"])
    if segments:
        start["duration"] = rows(states, options["max_duration"])
    return start


def _ruled_out(options: Case, states: int, segments: bool) -> Array:
    out = np.zeros((states, states), dtype=bool)
    if options["forbidden"] is not None:
        out |= np.array(options["forbidden"])
    if segments and not options["self_transitions"]:
        out |= np.eye(states, dtype=bool)
    return out


def _seen(x: Array) -> tuple[Array, Array]:
    """Mean and variance of each feature over the frames that have it."""
    return np.nanmean(x, 0), np.nanvar(x, 0)


class Model:
    """EM in numpy, in extended precision."""

    def __init__(self, case: Case) -> None:
        self.case, self.options = case, case["options"]
        kind = np.int64 if self.options["observations"] == "categorical" else np.longdouble
        self.x = np.array(case["x"], dtype=kind)
        self.tables: Tables = {k: np.array(v, dtype=np.longdouble) for k, v in case["start"].items()}
        ends = np.cumsum(case["lengths"])
        self.pieces = [slice(e - n, e) for n, e in zip(case["lengths"], ends, strict=True)]
        self.ruled_out = _ruled_out(self.options, case["states"], case["segments"])

    def densities(self) -> Array:  # "t z"
        """The log-weight of every frame in every state."""
        t = self.tables
        if self.options["observations"] == "gaussian":
            variance = np.broadcast_to(t["variance"], t["mean"].shape)
            off = (self.x[:, None] - t["mean"]) ** 2 / variance + log(2 * np.pi * variance)
            out = -0.5 * np.nansum(off, -1)
        elif self.options["observations"] == "bernoulli":
            p = t["probability"]
            ones = np.where(self.x[:, None] == 1, log(p), 0.0) + np.where(self.x[:, None] == 0, log(1 - p), 0.0)
            out = ones.sum(-1)
        else:
            out = np.where((self.x < 0)[:, None], 0.0, log(t["probability"]).T[np.maximum(self.x, 0)])
        if self.case["labels"] is not None:
            labels = np.array(self.case["labels"])
            out = np.where((labels[:, None] >= 0) & (labels[:, None] != np.arange(out.shape[1])), NONE, out)
        return out

    def matrix(self) -> matrices.Matrix:
        """The transition as an operator's plain data."""
        if self.options["rank"] is None:
            return {"op": "dense", "log": True, "weight": log(self.tables["transition"])}
        return {"op": "low_rank", "log": True, **{side: log(self.tables[side]) for side in ("left", "right")}}

    def expected(self) -> tuple[Array, dict[str, Array], Array]:
        """log Z of each sequence, expected counts, posteriors of states."""
        obs, initial, m = self.densities(), log(self.tables["initial"]), self.matrix()
        names = ("weight",) if m["op"] == "dense" else ("left", "right")
        a = m["weight"] if m["op"] == "dense" else matrices.matmul(m["left"], m["right"].T)
        log_z, first, posterior, moves, durations = [], 0.0, np.zeros(obs.shape, np.longdouble), [], 0.0
        for piece in self.pieces:
            if self.case["segments"]:
                duration = log(self.tables["duration"])
                t = segment_oracle.tables(initial, duration, obs[piece], np.zeros(len(a)), self.options["censored"])
                solved = segment_oracle.solve(t, a)
                found = segment_oracle.posterior(solved, duration, self.options["censored"], carried=False)
                log_z.append(solved.log_z)
                first, durations = first + found.initial, durations + found.durations
                posterior[piece] = found.states
                moves.append(solved.moves(a))
            else:
                one = obs[piece][None]
                s = chain_oracle.solve(initial[None], a, one, np.zeros((1, len(a))), np.array([one.shape[1]]))
                log_z.append(s.log_z[0])
                first = first + s.posterior[0, 0]
                posterior[piece] = s.posterior[0]
                moves.append(total(s.moves[0], 0) if one.shape[1] > 1 else np.full(a.shape, NONE))
        g = total(np.stack(moves), 0)
        if m["op"] == "dense":
            by_factor = [exp(g + m["weight"])]
        else:
            by_factor = [
                exp(matrices.matmul(g, m["right"]) + m["left"]),
                exp(matrices.matmul(g.T, m["left"]) + m["right"]),
            ]
        counts = {"initial": first, "durations": durations, **dict(zip(names, by_factor, strict=True))}
        return np.array(log_z), counts, posterior

    def prior(self) -> Array:
        """The log-prior, as docs/estimators.md has it."""
        s, o, t = self.options["smoothing"], self.options, self.tables
        out = np.longdouble(0.0)
        if s:
            out += s * log(t["initial"]).sum()
            if o["rank"] is None:
                out += s * log(t["transition"][~self.ruled_out]).sum()
            else:
                out += s * (log(t["left"]).sum() + log(t["right"]).sum())
            if o["observations"] == "bernoulli":
                out += s * (log(t["probability"]) + log(1 - t["probability"])).sum()
            elif o["observations"] == "categorical":
                out += s * log(t["probability"]).sum()
            if "duration" in t:
                out += s * log(t["duration"]).sum()
        if o.get("variance_prior"):
            _, spread = _seen(self.x)
            variance = np.broadcast_to(t["variance"], t["mean"].shape)
            out -= o["variance_prior"] / 2 * (log(variance) + spread / variance).sum()
        return out

    def step(self) -> Array:
        """The objective of the tables, and one step."""
        log_z, counts, posterior = self.expected()
        value = log_z.sum() + self.prior()
        s, o, t = self.options["smoothing"], self.options, self.tables
        new = {"initial": _shares(counts["initial"] + s, t["initial"])}
        if o["rank"] is None:
            new["transition"] = _shares(np.where(self.ruled_out, 0.0, counts["weight"] + s), t["transition"])
        else:
            new["left"] = _shares(counts["left"] + s, t["left"])
            new["right"] = _shares((counts["right"] + s).T, t["right"].T).T
        if "duration" in t:
            new["duration"] = _shares(counts["durations"] + s, t["duration"])
        new |= self.observed(posterior)
        self.tables = new
        return value

    def observed(self, posterior: Array) -> Tables:
        """The M step of the observations."""
        o, t = self.options, self.tables
        s = o["smoothing"]
        if o["observations"] == "categorical":
            counts = np.stack([posterior[self.x == v].sum(0) for v in range(o["n_symbols"])], 1)
            return {"probability": _shares(counts + s, t["probability"])}
        here = ~np.isnan(self.x)
        x = np.where(here, self.x, 0.0)
        number = posterior.T @ here
        if o["observations"] == "bernoulli":
            whole = number + 2 * s
            found = (posterior.T @ x + s) / np.where(whole > 0, whole, 1.0)
            return {"probability": np.where(whole > 0, found, t["probability"])}
        seen = number > 0
        mean = np.where(seen, posterior.T @ x / np.where(seen, number, 1.0), t["mean"])
        off = np.where(here[:, None], x[:, None] - mean, 0.0)
        scatter = (posterior[..., None] * off**2).sum(0)
        prior, (_, spread) = o["variance_prior"], _seen(self.x)
        if o["tied_variance"]:
            scatter, number, seen, prior = scatter.sum(0), number.sum(0), seen.any(0), prior * len(mean)
        whole = number + prior
        variance = (scatter + prior * spread) / np.where(whole > 0, whole, 1.0)
        variance = np.where(seen, np.maximum(variance, o["min_variance"] * spread), t["variance"])
        return {"mean": mean, "variance": variance}

    def size(self) -> float:
        """How large a frame's log-weight and its terms are."""
        obs = self.densities()
        return float(np.abs(obs[np.isfinite(obs)]).max()) if np.isfinite(obs).any() else 0.0


def _shares(x: Array, old: Array) -> Array:
    whole = x.sum(-1, keepdims=True)
    return np.where(whole > 0, x / np.where(whole > 0, whole, 1.0), old)


def _check(case: Case, device: str) -> None:
    """Fit, history, then every question."""
    options = {k: v for k, v in case["options"].items() if not (k == "forbidden" and v is None)}
    make: Any = HSMM if case["segments"] else HMM
    start = {k: np.array(v) for k, v in case["start"].items()}
    model = make(case["states"], start=start, tol=None, random_state=0, device=device, **options)
    whole = np.array(case["x"])
    ends = np.cumsum(case["lengths"])[:-1]
    pieces, labels = np.split(whole, ends), None
    if case["labels"] is not None:
        labels = np.split(np.array(case["labels"]), ends) if case["form"] == "list" else np.array(case["labels"])
    if case["form"] == "positional" and len(case["lengths"]) == len(whole):
        return  # lengths of one each may be a target: refused by name
    given = {"list": (pieces,), "lengths": (whole,), "positional": (whole, case["lengths"])}[case["form"]]
    named = {"lengths": case["lengths"]} if case["form"] == "lengths" else {}
    truth = Model(case)
    if case["options"]["observations"] == "gaussian" and not (_seen(whole)[1] > 0).all():
        return  # a feature that never changes is refused; so is one that was never seen
    log_z, _, _ = truth.expected()
    try:
        model.fit(*given, labels=labels, **named)
    except rankfold.DomainError as error:
        expect("fit", not np.isfinite(log_z).all(), error)
        return
    expect("fit", bool(np.isfinite(log_z).all()), f"impossible, but fitted: {log_z}")
    eps, frames = EPS[case["options"]["dtype"]], len(whole)

    def tolerance(k: int) -> float:  # a step maps tables that are off by a rounding to ones that are off by a few
        return 64.0 * 8.0**k * eps * frames * (8.0 + case["states"] + truth.size())

    want = []
    for k in range(case["options"]["max_iter"]):
        allowed = tolerance(k)
        want.append(truth.step())
        close("history", np.array(model.history_[k]), np.asarray(want[-1]), allowed)
    expect("length of the history", len(model.history_) == len(want), model.history_)
    expect("monotone", bool((np.diff(np.array(want, dtype=float)) >= -1e-9 * (1 + abs(float(want[0])))).all()), want)
    allowed = tolerance(case["options"]["max_iter"])
    log_z, _, posterior = truth.expected()
    close("score", np.array(model.score(*given, labels=labels, **named)), np.asarray(log_z.sum()), allowed)
    asked = (pieces,) if case["form"] == "list" else (whole, case["lengths"])
    many = {"labels": labels}
    close("score_samples", np.asarray(model.score_samples(*asked, **many)), log_z, allowed)
    found = model.predict_proba(*asked, **many)
    close("predict_proba", np.concatenate(found) if isinstance(found, list) else found, posterior, min(1.0, allowed))
