"""The picture of results: validation perplexity of Penn Treebank against minutes of training, one line a run.

Read next: `runs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORPUS = "ptb"
# Colours that stay apart for colour-blind readers (Okabe and Ito), then the same with dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES = ("-", "--", ":", "-.")
CEILING = 2.0  # of the best perplexity of all: what lies above, the start of every run, is cut off


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the picture, if there is anything to draw."""
    found = figure(runs)
    if found is not None:
        found.savefig(path, dpi=100)


def figure(runs: Sequence[Run]) -> Figure | None:
    """The curves of Penn Treebank's runs on a GPU, names beside the axes; None if none is evaluated yet.

    Perplexities of two texts do not compare, nor do a CPU's minutes: other runs are left out, and so are those
    that are not called as a recipe is, for which the tables are.
    """
    drawn = [run for run in runs if run.corpus == CORPUS and run.name == run.recipe and run.gpu and run.curve]
    if not drawn:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(made)
    axes = made.subplots()
    for i, run in enumerate(drawn):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        label = run.name if run.finished else f"{run.name} (unfinished)"
        axes.plot(*zip(*run.curve, strict=True), color=colour, linestyle=dash, linewidth=1.4, label=label)
    best = min(value for run in drawn for _, value in run.curve)
    axes.set_ylim(best / 1.05, CEILING * best)
    made.legend(frameon=False, fontsize=8, handlelength=3, loc="outside right upper")
    axes.set(xlabel="minutes of training on a GPU, evaluations included", ylabel="validation perplexity, Penn Treebank")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return made
