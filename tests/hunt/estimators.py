"""The estimators: EM, gradient steps and running counts with random options; what they fit, and what it answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np

from tests.hunt.arithmetic import Array
from tests.hunt.compare import DeviatesError, expect
from tests.hunt.estimator_fits import check
from tests.hunt.estimator_oracle import Tables, ruled_out, seen
from tests.hunt.kind import Case, Deviation, Kind


class Estimators(Kind):
    """A fit with random options, and questions asked of it."""

    name = "estimators"
    weight = 2.0

    def draw(self, rng: np.random.Generator) -> Case:
        """Frames, labels, options and a start."""
        segments = bool(rng.random() < 0.45)
        family = str(rng.choice(["gaussian", "bernoulli", "categorical"]))
        large = rng.random() < 0.58
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
        rank = int(rng.integers(1, states + 1)) if rng.random() < 0.3 else None
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
            "batch_size": int(rng.integers(1, 4)),
            "init": str(rng.choice(["kmeans", "random"])),
            "n_init": int(rng.integers(1, 4)),
        }
        if family == "gaussian":
            options["tied_variance"] = bool(rng.random() < 0.3)
            options["min_variance"] = float(rng.choice([1e-4, 0.1]))
            options["variance_prior"] = float(rng.choice([0.0, 0.0, 2.0]))
        if family == "categorical":
            options["n_symbols"] = width + 1
        if segments:
            options |= {
                "max_duration": int(rng.integers(1, min(5, max(lengths)) + 1)),
                "durations": str(rng.choice(["categorical", "poisson", "negative_binomial"])),
                "self_transitions": bool(states == 1 or rng.random() < 0.5),
                "censored": bool(rng.random() < 0.5),
            }
        labels = None
        if rng.random() < 0.3:
            labels = np.where(rng.random(frames) < 0.2, rng.integers(0, states, frames), -1).tolist()
        start = None
        if rng.random() < 0.8:
            options["n_init"] = 1
            start = {k: v.tolist() for k, v in _start(rng, options, states, x, segments).items()}
        return {
            "segments": segments,
            "states": states,
            "options": options,
            "algorithm": str(rng.choice(["em", "em", "sgd", "partial", "fit and partial"])),
            "x": x.tolist(),
            "lengths": lengths,
            "labels": labels,
            "start": start,
            "seed": int(rng.integers(2**31)),
            "form": str(rng.choice(["list", "lengths", "positional"])),
        }

    def large(self, case: Case) -> bool:
        return case["states"] > 3 and max(case["lengths"]) > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                check(case, self.device)
            lost = [str(one.message) for one in said if "lost" in str(one.message)]
            expect("a step that loses", not lost, lost)
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
        if case["algorithm"] == "fit and partial":
            yield {**case, "algorithm": "partial"}
        plain = {
            "smoothing": 0.0,
            "max_iter": 1,
            "variance_prior": 0.0,
            "dtype": "float64",
            "n_init": 1,
            "batch_size": 1,
        }
        for key, simple in plain.items():
            if case["options"].get(key, simple) != simple:
                yield {**case, "options": {**case["options"], key: simple}}


def _start(rng: np.random.Generator, options: Case, states: int, x: Array, segments: bool) -> Tables:
    """Tables that keep the constraints."""

    def rows(*shape: int) -> Array:
        found = rng.uniform(0.1, 1.0, shape)
        return found / found.sum(-1, keepdims=True)

    start: Tables = {"initial": rows(states)}
    if options["rank"] is None:
        table = rng.uniform(0.1, 1.0, (states, states))
        table[ruled_out(options, states, segments)] = 0.0
        start["transition"] = table / table.sum(1, keepdims=True)
    else:
        start["left"], start["right"] = rows(states, options["rank"]), rows(options["rank"], states).T
    if options["observations"] == "gaussian":
        centre, spread = seen(x)
        start["mean"] = centre + np.sqrt(spread) * rng.normal(size=(states, x.shape[1]))
        tied = options["tied_variance"]
        start["variance"] = spread * rng.uniform(0.2, 2.0, (x.shape[1],) if tied else (states, x.shape[1]))
    elif options["observations"] == "bernoulli":
        start["probability"] = rng.uniform(0.1, 0.9, (states, x.shape[1]))
    else:
        start["probability"] = rows(states, options["n_symbols"])
    if segments and options["durations"] == "categorical":
        start["duration"] = rows(states, options["max_duration"])
    elif segments:
        start["log_rate"] = np.log(rng.uniform(0.1, 0.9 if options["durations"] != "poisson" else 5.0, states))
        if options["durations"] == "negative_binomial":
            start["log_shape"] = rng.normal(size=states)
    return start
