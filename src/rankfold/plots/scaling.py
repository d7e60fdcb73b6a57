"""Time against one size on logarithmic axes, with the power laws that fit.

Read next: `bench/sweep.py`, which measures and fits what is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold.errors import DataError
from rankfold.plots.picture import require_matplotlib, save_figure

# Those of Okabe and Ito, one for each precision and order; the reference of each precision is dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot_scaling(axis: str, curves: Sequence[Mapping[str, Any]], path: str | Path, *, title: str = "") -> Path:
    """Save the picture and return its path.

    Each curve has "code" and "precision" (its name), "sizes" and "ms" (its points), and "exponent" and "factor" of
    the power law, or None where there is none to draw.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    if not any(curve["sizes"] for curve in curves):
        raise DataError("no step was timed: there is nothing to draw.")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
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
