"""Pictures of the page of grammars: F1 and perplexity against the number of symbols; F1 against updates.

Read next: `grammar_runs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.curves import COLOURS, DASHES
from benchmarks.grammar_runs import Induced, mean


def draw_symbols(runs: Sequence[Induced], path: Path) -> None:
    """Both panels, a line for each way of training, a point for each run, hollow if it was cut short."""
    figure, (left, right) = _figure(2)
    ways = list(dict.fromkeys(_way(run) for run in runs))
    for i, way in enumerate(ways):
        own = [run for run in runs if _way(run) == way]
        _line(left, own, lambda run: run.f1("sentence", "uf1"), i, way)
        _line(right, own, lambda run: run.run.valid, i, way)
    sizes = sorted({run.model.num_preterminals for run in runs})
    for axes, name in ((left, "sentence F1 (uf1), percent"), (right, "validation perplexity")):
        axes.set(xscale="log", xlabel="preterminals (twice the nonterminals)", ylabel=name)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    figure.legend(*left.get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside lower center")
    figure.savefig(path, dpi=100)


def draw_curves(runs: Sequence[Induced], path: Path) -> None:
    """F1 of the best model so far, on a sample of trees, against updates."""
    figure, (axes,) = _figure(1)
    for i, run in enumerate(runs):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        label = f"{run.run.name} ({run.data})"
        across, up = [point["updates"] for point in run.curve], [100 * point["uf1"] for point in run.curve]
        axes.plot(across, up, color=colour, linestyle=dash, marker="o", markersize=3, linewidth=1.4, label=label)
    axes.set(xlabel="updates", ylabel="sentence F1 (uf1) of a sample of trees, percent")
    axes.legend(frameon=False, fontsize=7, ncols=1 + len(runs) // 16)
    figure.savefig(path, dpi=100)


def _way(run: Induced) -> str:
    """How a run was trained, as its recipe has it or otherwise; how often it was evaluated makes no other line."""
    return ", ".join(x for x in run.changes if not x.startswith("train.evaluate_every=")) or "the recipes as they are"


def _line(axes: Any, runs: Sequence[Induced], value: Any, i: int, label: str) -> None:
    """Means by size as a line, and every run as a point."""
    colour = COLOURS[i % len(COLOURS)]
    sizes = sorted({run.model.num_preterminals for run in runs})
    means = [mean([value(run) for run in runs if run.model.num_preterminals == size]) for size in sizes]
    axes.plot(sizes, means, color=colour, linewidth=1.4, label=label)
    for run in runs:
        face = colour if run.finished else "none"
        axes.plot([run.model.num_preterminals], [value(run)], "o", markersize=5, mec=colour, mfc=face)


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    found = figure.subplots(1, panels, squeeze=False)[0]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, found
