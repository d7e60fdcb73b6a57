"""Time against one size: the cases of a sweep, and the exponent of the power law that fits their times.

Read next: `plots/scaling.py`, which draws it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rankfold.bench.cases import Case
from rankfold.errors import DomainError, UnsupportedError

Axis = Literal["states", "rank", "length"]
KEYS: dict[Axis, str] = {"states": "num_states", "rank": "rank", "length": "length"}
DEFAULTS: dict[str, dict[Axis, tuple[int, ...]]] = {
    "cpu": {"states": (256, 512, 1024, 2048), "rank": (32, 64, 128, 256), "length": (16, 32, 64, 128)},
    "cuda": {
        "states": (1024, 2048, 4096, 8192, 16384, 32768),
        "rank": (128, 256, 512, 1024, 2048, 4096),
        "length": (16, 32, 64, 128, 256),
    },
}


class PowerLaw(NamedTuple):
    """time = factor * size ** exponent"""

    exponent: float
    factor: float

    def at(self, size: float) -> float:
        """The fitted time."""
        return self.factor * math.pow(size, self.exponent)


def fit(sizes: Sequence[float], times: Sequence[float]) -> PowerLaw | None:
    """The least-squares line through the logarithms; None for fewer than two sizes. Not a forecast beyond them."""
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return PowerLaw(slope, math.exp(mean_y - slope * mean_x))


def sweep_cases(case: Case, axis: Axis, values: Sequence[int]) -> list[Case]:
    """The same case at each size, in order."""
    if axis == "rank" and case.config.family in ("hmm", "block"):
        raise UnsupportedError(f"--sweep rank is for lhmm, banded and rank: {case.config.family} has no rank.")
    if len(set(values)) < 2:
        raise DomainError(f"--values has {len(set(values))} size, but an exponent needs at least 2 different ones.")
    sizes = sorted(set(values))
    if axis == "length":
        cases = [case._replace(length=size) for size in sizes]
    elif axis == "rank":
        cases = [case._replace(config=dataclasses.replace(case.config, rank=size)) for size in sizes]
    else:
        cases = [case._replace(config=dataclasses.replace(case.config, num_states=size)) for size in sizes]
    return [each.checked() for each in cases]


def summary(axis: Axis, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The measured points and the fitted exponents, by precision, of our step and of the reference."""
    curves = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        for code, key in (("rankfold", "step_ms"), ("reference", "reference_ms")):
            points = [
                (row[KEYS[axis]], row[key]["median"]) for row in rows if row["precision"] == precision and row[key]
            ]
            law = fit([size for size, _ in points], [time for _, time in points])
            if points:
                curves.append(
                    {
                        "code": code,
                        "precision": precision,
                        "sizes": [size for size, _ in points],
                        "ms": [time for _, time in points],
                        "exponent": None if law is None else law.exponent,
                        "factor": None if law is None else law.factor,
                    }
                )
    return {"axis": axis, "curves": curves}
