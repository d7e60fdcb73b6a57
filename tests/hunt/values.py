"""Random weights: plain, wide, tiny, with zeros in patterns. A style is drawn once a problem."""

from __future__ import annotations

from typing import Any

import numpy as np

Rng = np.random.Generator

LARGEST = {"float32": 37.0, "float64": 300.0}  # powers of ten
SMALLEST = {"float32": -45.0, "float64": -323.0}  # subnormal


def style(rng: Rng) -> dict[str, Any]:
    """How far log-weights spread, how far linear ones do, and how many are zero."""
    wide = rng.random()
    nats = 1.0 if wide < 0.5 else float(10.0 ** rng.uniform(0.0, 6.0))
    powers = float(rng.choice([0.3, 0.3, 0.3, 3.0, 30.0, 400.0]))
    zeros = float(rng.choice([0.0, 0.0, 0.1, 0.3, 0.6]))
    return {"nats": nats, "powers": powers, "zeros": zeros, "shift": float(rng.choice([0.0, 0.0, -300.0, 300.0]))}


def logs(rng: Rng, how: dict[str, Any], dtype: str, *shape: int) -> list[Any]:
    """Log-weights, some -inf; a tenth of the tables mix ranges."""
    x = rng.normal(size=shape) * how["nats"] + how["shift"] * (rng.random() < 0.3)
    if rng.random() < 0.1:
        x = np.where(rng.random(shape) < 0.3, rng.normal(size=shape), x)
    x[rng.random(shape) < how["zeros"] * (rng.random() < 0.7)] = -np.inf
    return listed(x, dtype)


def weights(rng: Rng, how: dict[str, Any], dtype: str, *shape: int) -> list[Any]:
    """Linear weights from the dtype's subnormals to its largest, some exactly zero."""
    low, high = max(-how["powers"], SMALLEST[dtype]), min(how["powers"], LARGEST[dtype])
    x = 10.0 ** np.clip(rng.uniform(low, high, shape), -323.0, 300.0)
    if rng.random() < 0.1:
        x = np.where(rng.random(shape) < 0.3, rng.uniform(0.1, 1.0, shape), x)
    x[rng.random(shape) < how["zeros"] * (rng.random() < 0.7)] = 0.0
    if len(shape) == 2 and rng.random() < 0.1:  # left to right, or a cycle
        keep = np.triu(np.ones(shape)) if rng.random() < 0.5 else np.roll(np.eye(*shape), 1, axis=1)
        x = x * keep
    return listed(x, dtype)


def listed(x: Any, dtype: str) -> list[Any]:
    """Plain lists of numbers that the dtype holds."""
    out: list[Any] = np.asarray(x, dtype=np.float64).astype(dtype).astype(np.float64).tolist()
    return out
