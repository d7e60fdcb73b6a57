"""Learning curves as pictures: perplexity against updates and the share of tokens of each state, or several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rankfold.analysis.states import UsageSummary, state_usage
from rankfold.errors import DataError
from rankfold.models.config import Measure
from rankfold.plots.picture import add_grid, new_figure, save_figure

# Blue, vermilion and green of Okabe and Ito, which colour-blind readers tell apart; grey for baselines.
TRAIN, VALID, STATES, BASELINE = "#0072B2", "#D55E00", "#009E73", "0.35"
RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # all of theirs but yellow
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)))  # where there are more runs than colours


def plot_learning(
    metrics: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    usage: Sequence[float] | None = None,
    baselines: Mapping[str, float] | None = None,
    title: str = "",
) -> Path:
    """Save the learning curve, and next to it the share of tokens by state if `usage` is given; returns the path.

    `metrics` are records with "update" and "train_perplexity", "valid_perplexity" or both; others are passed over.
    `baselines` are perplexities by name, drawn as dashed lines. `usage` is the posterior mass of each state, on any
    scale and in any order.
    """
    curves = {name: curve_points(metrics, f"{name}_perplexity") for name in ("train", "valid")}
    if not any(curves.values()):
        raise DataError(
            f'none of the {len(metrics)} records has "update" and "train_perplexity" or "valid_perplexity":\n'
            "  nothing to draw. Give the records of a run's metrics, as they were written."
        )
    summary = None if usage is None else state_usage(torch.as_tensor(usage, dtype=torch.float64))
    figure = new_figure(7 if summary is None else 12, 4.5)
    ratios = [1.0] if summary is None else [1.25, 1.0]
    panels = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    _draw_curves(panels[0], curves, baselines or {})
    if summary is not None:
        _draw_usage(panels[1], summary)
    for axes in panels:
        add_grid(axes)
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def plot_runs(curves: Mapping[str, Sequence[tuple[int, float]]], path: str | Path, measure: Measure) -> Path:
    """Save the validation curves of several runs, (update, value) each by name, in one picture; returns the path.

    Perplexities stand on a logarithmic axis, which first values far above everything of interest leave at the top.
    """
    finite = {name: [point for point in curve if math.isfinite(point[1])] for name, curve in curves.items()}
    drawn = {name: curve for name, curve in finite.items() if curve}
    if not drawn:
        raise DataError("none of the runs has an evaluation: nothing to draw.")
    figure = new_figure(7, 4.5 + 0.2 * len(drawn))
    axes = figure.subplots()
    values = [value for curve in drawn.values() for _, value in curve]
    _scale_axes(axes, axis_limits(values, []) if measure.of_words else None)
    for i, (name, curve) in enumerate(drawn.items()):
        update, best = min(curve, key=lambda point: point[1])
        style = {"color": RUNS[i % len(RUNS)], "linestyle": DASHES[i // len(RUNS) % len(DASHES)]}
        label = f"{name} (best {best:,.4g} at update {update:,})"
        axes.plot(*zip(*curve, strict=True), linewidth=1.6, marker="o", markersize=3.5, label=label, **style)
        axes.plot(update, best, "o", markersize=9, markerfacecolor="none", markeredgecolor=style["color"])
    axes.set_xlabel("update")
    axes.set_ylabel("validation perplexity" if measure.of_words else "validation nats per frame")
    add_grid(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False, fontsize=9)
    return save_figure(figure, path)


def curve_points(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(update, value) where both are there and the value is finite, by update."""
    return sorted(
        (record["update"], float(record[key]))
        for record in metrics
        if "update" in record and record.get(key) is not None and math.isfinite(record[key])
    )


def _scale_axes(axes: Any, limits: tuple[float, float] | None) -> None:
    """Updates along the bottom; with limits, a logarithmic axis of perplexities between them."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    if limits is not None:
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        axes.yaxis.set_major_locator(FixedLocator(round_ticks(*limits)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_curves(axes: Any, curves: Mapping[str, list[tuple[float, float]]], baselines: Mapping[str, float]) -> None:
    train, valid = curves["train"], curves["valid"]
    low, high = axis_limits([value for _, value in [*train, *valid]], list(baselines.values()))
    _scale_axes(axes, (low, high))
    if train:
        dot = {"marker": "."} if len(train) == 1 else {}
        axes.plot(*zip(*train, strict=True), color=TRAIN, linewidth=1.2, label="training", **dot)
    if valid:
        update, best = min(valid, key=lambda point: point[1])
        label = f"validation (best {best:,.1f} at update {update:,})"
        axes.plot(*zip(*valid, strict=True), color=VALID, linewidth=1.6, marker="o", markersize=3.5, label=label)
        axes.plot(update, best, "o", markersize=9, markerfacecolor="none", markeredgecolor=VALID)
    places = spread_labels([math.log(value / low) / math.log(high / low) for value in baselines.values()])
    for (name, value), place in zip(baselines.items(), places, strict=True):
        axes.axhline(value, color=BASELINE, linewidth=1, linestyle=(0, (5, 3)), zorder=1)
        label = f"{name} {value:,.0f}"
        axes.text(1.015, place, label, transform=axes.transAxes, va="center", color=BASELINE, fontsize=9)
    axes.set_xlabel("update")
    axes.set_ylabel("perplexity")
    _legend_below(axes)


def _draw_usage(axes: Any, usage: UsageSummary) -> None:
    shares = [share for share in usage.shares if share > 0]  # a logarithmic axis has no place for the others
    num_states = len(usage.shares)
    few = {"marker": "o", "markersize": 3} if len(shares) <= 64 else {}
    axes.plot(range(1, len(shares) + 1), shares, color=STATES, linewidth=1.6, label="share of tokens", **few)
    label = f"effective number of states: {usage.effective:,.1f} of {num_states:,}"
    axes.axvline(usage.effective, color=BASELINE, linewidth=1, linestyle=(0, (5, 3)), zorder=1, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.9, 1.1 * max(num_states, 2))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    unused = num_states - len(shares)
    axes.set_xlabel("state, the most used first" + (f" ({unused:,} never used)" if unused else ""))
    axes.set_ylabel("share of tokens")
    _legend_below(axes)


def _legend_below(axes: Any) -> None:
    """Below the axes, where it covers nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=9)


def axis_limits(values: list[float], baselines: list[float]) -> tuple[float, float]:
    """The range of the perplexity axis: all of it, but for first values far above everything of interest.

    An untrained model starts near the size of its vocabulary. The axis ends at 2.5 times the highest baseline or the
    median of the curve, whichever is higher, and the start of the curve runs out of the picture.
    """
    median = sorted(values)[len(values) // 2]
    highest = min(max([*values, *baselines]), 2.5 * max([median, *baselines]))
    return min([*values, *baselines]) / 1.12, highest * 1.12


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the limits of a logarithmic axis: the finest of four sets that has at most eight."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    for digits in ((10, 12, 15, 20, 25, 30, 40, 50, 60, 80), (10, 15, 20, 30, 50, 70), (10, 20, 50), (10,)):
        ticks = [digit * 10.0 ** (decade - 1) for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 8:
            break
    return ticks if len(ticks) > 2 else plain_ticks(low, high)  # a narrow range is nearly plain


def plain_ticks(low: float, high: float) -> list[float]:
    """Up to seven round numbers between the limits, equally far apart."""
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if (high - low) / (step * part) <= 6)
    ticks = (k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1))
    return [tick for tick in ticks if low <= tick <= high]


def spread_labels(places: list[float], gap: float = 0.05) -> list[float]:
    """The nearest heights, as shares of the axis, that keep labels `gap` apart: lowest first, each pushed up."""
    moved = list(places)
    last = -math.inf
    for i in sorted(range(len(places)), key=places.__getitem__):
        moved[i] = last = max(places[i], last + gap)
    return moved
