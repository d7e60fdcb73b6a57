"""The picture of results: validation perplexity against minutes of training, one line a run.

Read next: `runs.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import Run

# Colours that stay apart for colour-blind readers (Okabe and Ito), then the same with dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
DASHES = ("-", "--", ":", "-.")
CEILING = 2.0  # of the best perplexity of all: what lies above, the start of every run, is cut off


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the picture; runs without an evaluation are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    drawn = [run for run in runs if run.curve]
    for i, run in enumerate(drawn):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        label = run.name if run.finished else f"{run.name} (unfinished)"
        axes.plot(*zip(*run.curve, strict=True), color=colour, linestyle=dash, linewidth=1.4, label=label)
    best = min((run.valid for run in drawn if run.valid is not None), default=math.nan)
    if math.isfinite(best):
        axes.set_ylim(best / 1.05, CEILING * best)
        axes.legend(frameon=False, fontsize=7, ncols=1 + len(drawn) // 16, loc="upper right")
    axes.set(xlabel="minutes of training, evaluations included", ylabel="validation perplexity")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=100)
