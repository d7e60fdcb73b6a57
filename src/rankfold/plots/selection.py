"""A picture of model selection: the criterion of each candidate against one setting, a line for each of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold.errors import DomainError
from rankfold.plots.picture import add_grid, new_figure, save_figure

# Blue, vermilion, green, purple and yellow of Okabe and Ito, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
LABELS = {
    "bic": "BIC (small is good)",
    "aic": "AIC (small is good)",
    "held_out": "held-out nats per frame (large is good)",
}


def plot_selection(selection: Any, path: str | Path) -> Path:
    """Save the picture of a `Selection`; returns the path. The first setting with numbers is the horizontal axis."""
    settings: Sequence[Mapping[str, Any]] = [one.settings for one in selection.candidates]
    names = list(settings[0])
    axis = next((name for name in names if all(isinstance(one[name], int | float) for one in settings)), None)
    if axis is None:
        raise DomainError(f"none of the settings {', '.join(names)} is a number: there is nothing to draw along.")
    others = [name for name in names if name != axis]
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in selection.candidates:
        label = ", ".join(str(one.settings[name]) for name in others)
        lines.setdefault(label, []).append((float(one.settings[axis]), float(getattr(one, selection.criterion))))
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for i, (label, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(*zip(*sorted(points), strict=True), "o-", color=colour, linewidth=1.6, label=label or None)
    best = selection.candidates[selection.best_index]
    place = float(best.settings[axis]), float(getattr(best, selection.criterion))
    axes.plot(*place, "o", markersize=13, markerfacecolor="none", markeredgecolor="black")
    axes.annotate("best", place, xytext=(9, 9), textcoords="offset points")
    axes.set_xlabel(axis.replace("n_", "number of ").replace("_", " "))
    axes.set_ylabel(LABELS[selection.criterion])
    add_grid(axes)
    if all(float(one[axis]).is_integer() for one in settings):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if others:
        axes.legend(title=", ".join(others).replace("_", " "), frameon=False)
    return save_figure(figure, path)
