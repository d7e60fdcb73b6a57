"""Small data for estimators: three states in the plane, segments of a few frames, a frame nobody saw."""

from __future__ import annotations

from typing import Any

import numpy as np

MEANS = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])


def walks(num: int = 6, seed: int = 0, spread: float = 0.7) -> tuple[list[Any], list[Any]]:
    """Feature arrays "t 2" of unequal lengths, and their states."""
    rng = np.random.default_rng(seed)
    states = []
    for _ in range(num):
        moves = np.cumsum(rng.integers(1, 3, 8)) % 3
        states.append(np.repeat(moves, rng.integers(2, 8, 8)))
    frames = [MEANS[y] + spread * rng.standard_normal((len(y), 2)) for y in states]
    frames[0][3] = np.nan
    frames[1][2, 0] = np.nan
    return frames, states


def observed(kind: str, frames: list[Any]) -> list[Any]:
    """The same frames as features, as zeros and ones, or as symbols."""
    if kind == "gaussian":
        return frames
    if kind == "bernoulli":
        return [np.where(np.isnan(x), np.nan, x > 1.5) for x in frames]
    whole = [np.nan_to_num(x) > 1.5 for x in frames]
    return [x[:, 0] + 2 * x[:, 1] for x in whole]
