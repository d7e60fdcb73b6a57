"""Pictures of the pages: perplexity against minutes of training; F1 of grammars against symbols and updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results.grammar_runs import Induced, mean
from benchmarks.results.runs import Run
from rankfold.plots.picture import new_figure

CORPUS = "ptb"
# Colours that stay apart for colour-blind readers (Okabe and Ito), then the same with dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES = ("-", "--", ":", "-.")
CEILING = 2.0  # of the best perplexity of all: what lies above, the start of every run, is cut off


def draw_perplexities(runs: Sequence[Run], path: Path) -> None:
    """Write the picture, if there is anything to draw."""
    found = plot_perplexities(runs)
    if found is not None:
        found.savefig(path, dpi=100)


def plot_perplexities(runs: Sequence[Run]) -> Any | None:
    """The curves of Penn Treebank's runs on a GPU, names next to the axes; None if none is evaluated yet.

    Perplexities of two texts do not compare, nor do a CPU's minutes: other runs are left out, and so are those
    that are not called as a recipe is, for which the tables are.
    """
    drawn = [run for run in runs if run.corpus == CORPUS and run.name == run.recipe and run.gpu and run.curve]
    if not drawn:
        return None
    made, (axes,) = _figure(1, width=11, height=5)
    for i, run in enumerate(drawn):
        label = run.name if run.finished else f"{run.name} (unfinished)"
        axes.plot(*zip(*run.curve, strict=True), **_style(i), label=label)
    best = min(value for run in drawn for _, value in run.curve)
    axes.set_ylim(best / 1.05, CEILING * best)
    made.legend(frameon=False, fontsize=8, handlelength=3, loc="outside right upper")
    axes.set(xlabel="minutes of training on a GPU, evaluations included", ylabel="validation perplexity, Penn Treebank")
    return made


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
        across, up = [point["updates"] for point in run.curve], [100 * point["uf1"] for point in run.curve]
        axes.plot(across, up, **_style(i), marker="o", markersize=3, label=f"{run.run.name} ({run.data})")
    axes.set(xlabel="updates", ylabel="sentence F1 (uf1) of a sample of trees, percent")
    axes.legend(frameon=False, fontsize=7, ncols=1 + len(runs) // 16)
    figure.savefig(path, dpi=100)


def _style(i: int) -> dict[str, Any]:
    """The line of the i-th run."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)], "linewidth": 1.4}


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


def _figure(panels: int, *, width: int = 9, height: int = 4) -> tuple[Any, Any]:
    figure = new_figure(width, height)
    found = figure.subplots(1, panels, squeeze=False)[0]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, found
