"""Time against one size: the cases of a sweep, the exponent of the power law that fits their times, and the picture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.steps.cases import Case
from benchmarks.steps.row import RANKED
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.config import AnyConfig, FrameConfig, GrammarConfig
from rankfold.plots.picture import new_figure, require_matplotlib, save_figure

Axis = Literal["states", "rank", "length"]
DEFAULTS: dict[str, dict[Axis, tuple[int, ...]]] = {
    "cpu": {"states": (256, 512, 1024, 2048), "rank": (32, 64, 128, 256), "length": (16, 32, 64, 128)},
    "cuda": {
        "states": (1024, 2048, 4096, 8192, 16384, 32768),
        "rank": (128, 256, 512, 1024, 2048, 4096),
        "length": (16, 32, 64, 128, 256),
    },
}
# Of grammars; of states those whose rules are of all pairs of children have fewer.
TREES: dict[str, dict[Axis, tuple[int, ...]]] = {
    "cpu": {"states": (64, 128, 256, 512), "rank": (16, 32, 64, 128), "length": (10, 20, 40)},
    "cuda": {"states": (512, 1024, 2048, 4096), "rank": (125, 250, 500, 1000), "length": (10, 20, 40, 80)},
}
PAIRS = {"cpu": (8, 16, 32), "cuda": (15, 30, 60, 120)}
# Those of Okabe and Ito, one for each precision and order; the reference of each precision is dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


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


def default_sizes(case: Case, axis: Axis, device: str) -> tuple[int, ...]:
    """Sizes of this kind of model that take seconds each."""
    if axis == "states" and case.config.family in ("npcfg", "cpcfg", "lpcfg"):
        return PAIRS[device]
    return (TREES if case.trees else DEFAULTS)[device][axis]


def sweep_cases(case: Case, axis: Axis, values: Sequence[int]) -> list[Case]:
    """The same case at each size, in order. The states of a grammar are its nonterminals; preterminals are twice as
    many."""
    if axis == "rank" and case.config.family not in RANKED:
        raise UnsupportedError(f"--sweep rank is for {', '.join(RANKED)}: {case.config.family} has no rank.")
    if len(set(values)) < 2:
        raise DomainError(f"--values has {len(set(values))} size, but an exponent needs at least 2 different ones.")
    sizes = sorted(set(values))
    if axis == "length":
        cases = [case._replace(length=size) for size in sizes]
    elif axis == "rank":
        cases = [case._replace(config=dataclasses.replace(case.config, rank=size)) for size in sizes]
    else:
        cases = [case._replace(config=_of_states(case, size)) for size in sizes]
    return [each.validate() for each in cases]


def _of_states(case: Case, size: int) -> AnyConfig | FrameConfig:
    if isinstance(case.config, GrammarConfig):
        return dataclasses.replace(case.config, num_nonterminals=size, num_preterminals=2 * size)
    return dataclasses.replace(case.config, num_states=size)


def summary(axis: Axis, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The measured points and the fitted exponents, by precision, of our step in each order and of the reference."""
    key = {"states": "num_states", "rank": "rank", "length": "length"}[axis]
    if axis == "states" and rows[0]["num_states"] is None:
        key = "num_nonterminals"
    orders = list(dict.fromkeys(row["order"] for row in rows))
    curves = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        same = [row for row in rows if row["precision"] == precision]
        for order in orders:
            named = f"rankfold, {order} space" if len(orders) > 1 else "rankfold"
            points = [(row[key], row["step_ms"]["median"]) for row in same if row["step_ms"] and row["order"] == order]
            curves.append(_curve(named, precision, points))
        plain = {row[key]: row["reference_ms"]["median"] for row in same if row["reference_ms"]}
        curves.append(_curve("reference", precision, list(plain.items())))
    return {"axis": axis, "curves": [curve for curve in curves if curve["sizes"]]}


def _curve(code: str, precision: str, points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    law, last = (fit([size for size, _ in part], [time for _, time in part]) for part in (points, sorted(points)[-2:]))
    return {
        "code": code,
        "precision": precision,
        "sizes": [size for size, _ in points],
        "ms": [time for _, time in points],
        "exponent": None if law is None else law.exponent,
        "last_exponent": None if last is None else last.exponent,  # of the two largest sizes
        "factor": None if law is None else law.factor,
    }


def plot_scaling(axis: str, curves: Sequence[Mapping[str, Any]], path: str | Path, *, title: str = "") -> Path:
    """Save the picture and return its path.

    Each curve has "code" and "precision" (its name), "sizes" and "ms" (its points), and "exponent" and "factor" of
    the power law, or None where there is none to draw.
    """
    require_matplotlib()
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    if not any(curve["sizes"] for curve in curves):
        raise DataError("no step was timed: there is nothing to draw.")
    figure = new_figure(7, 4.5)
    axes = figure.add_subplot()
    ours: dict[tuple[str, str], str] = {}
    for curve in curves:
        if curve["code"] != "reference":
            ours.setdefault((curve["precision"], curve["code"]), COLOURS[len(ours) % len(COLOURS)])
    first = {precision: colour for (precision, _), colour in reversed(ours.items())}
    for curve in curves:
        own = ours.get((curve["precision"], curve["code"]))
        _draw(axes, curve, own or first.get(curve["precision"], "0.4"))
    sizes = sorted({size for curve in curves for size in curve["sizes"]})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(axis)
    axes.set_ylabel("gradient step, ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)
    if title:
        axes.set_title(title, fontsize=11)
    return save_figure(figure, path)


def _draw(axes: Any, curve: Mapping[str, Any], colour: str) -> None:
    """The measured points, and the fitted line through the range they span."""
    ours = curve["code"] != "reference"
    label = f"{curve['code']}, {curve['precision']}"
    if curve["exponent"] is not None:
        label += f": time ~ size^{curve['exponent']:.2f}"
        ends = [min(curve["sizes"]), max(curve["sizes"])]
        fitted = [curve["factor"] * end ** curve["exponent"] for end in ends]
        axes.plot(ends, fitted, color=colour, linewidth=1.2, linestyle="-" if ours else (0, (5, 3)))
    face = colour if ours else "none"
    axes.plot(curve["sizes"], curve["ms"], "o", color=colour, markerfacecolor=face, markersize=5, label=label)
