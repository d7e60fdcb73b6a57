"""The picture: time against states for every library, and against rank for low rank and dense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.libraries.cases import DENSE, LARGE_STATES, Em, Own
from benchmarks.libraries.peers import (
    DYNAMAX,
    HMMLEARN,
    HMMLEARN_SCALING,
    MAKERS,
    OURS,
    POMEGRANATE,
    RANKFOLD_32,
    RANKFOLD_64,
    RANKFOLD_LOW_RANK,
)
from benchmarks.libraries.report import crossover

# Colours that stay apart for colour-blind readers (Okabe and Ito).
STYLES: dict[str, tuple[str, str]] = {
    RANKFOLD_64: ("#56B4E9", "o"),
    RANKFOLD_32: ("#0072B2", "o"),
    RANKFOLD_LOW_RANK: ("#009E73", "o"),
    HMMLEARN: ("#D55E00", "s"),
    HMMLEARN_SCALING: ("#E69F00", "s"),
    POMEGRANATE: ("#CC79A7", "^"),
    DYNAMAX: ("#555555", "D"),
}


def draw(em: Em, own: Own, path: Path) -> None:
    """Write both panels as one PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
        _states(left, em)
        _ranks(right, own)
        figure.savefig(path, dpi=160)
        plt.close(figure)


def _states(axes: Any, em: Em) -> None:
    for name in MAKERS:
        colour, marker = STYLES[name]
        points = [(size, timings[name].median) for size, timings in em.timings.items()]
        outcome = em.large.get(name)
        if outcome is not None and outcome.spread is not None:
            points.append((LARGE_STATES, outcome.spread.median))
        width = 2.2 if name in OURS else 1.4
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, linewidth=width, label=name)
    failed = [(name, outcome.failure) for name, outcome in em.large.items() if outcome.failure]
    for place, (name, failure) in enumerate(pair for pair in failed if not pair[1].startswith("not run")):
        at = (LARGE_STATES, 0.96 - 0.065 * place)  # states, share of the height: a failure has no time
        across = axes.get_xaxis_transform()
        axes.plot(*([x] for x in at), color=STYLES[name][0], marker="x", mew=2, markersize=7, transform=across)
        axes.annotate(f"{name}: {failure}", at, (-8, 0), across, "offset points", ha="right", va="center")
    axes.set(xscale="log", yscale="log", xlabel="states", title="One EM step")
    _seconds(axes, top=40)
    sizes = [*em.timings, *([LARGE_STATES] if em.large else [])]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _ranks(axes: Any, own: Own) -> None:
    size = own.sweep_size
    dense = own.structured[DENSE].median
    ranks = list(own.by_rank)
    medians = [timing.median for timing in own.by_rank.values()]
    quartiles = [(timing.low, timing.high) for timing in own.by_rank.values()]
    axes.fill_between(ranks, *zip(*quartiles, strict=True), color="#009E73", alpha=0.2, linewidth=0)
    axes.plot(ranks, medians, color="#009E73", marker="o", markersize=5, linewidth=2.2, label="low rank")
    axes.axhline(dense, color="#0072B2", linewidth=2.2, label="dense")
    crossing = crossover([(rank, median / dense) for rank, median in zip(ranks, medians, strict=True)])
    if crossing is not None:
        axes.axvline(crossing, color="#999999", linewidth=1, linestyle=":")
        axes.annotate(
            f"equal near rank {crossing:,.0f}",
            (crossing, min(medians)),
            (-6, 0),
            textcoords="offset points",
            ha="right",
        )
    axes.set(xscale="log", yscale="log", xlabel="rank")
    axes.set_title(f"One gradient step, {size.words()}")
    shown = [rank for rank in ranks if rank != 3072]
    axes.set_xticks(shown, [f"{rank:,}" for rank in shown])
    _seconds(axes, top=1.3)
    axes.legend(frameon=False, loc="upper left")


def _seconds(axes: Any, top: float) -> None:
    """Ticks in words on the axis of time, with room above the data by a factor `top`."""
    low, high = axes.get_ylim()
    ticks = [(10.0**power, name) for power, name in enumerate(("1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"))]
    shown = [(place, name) for place, name in ticks if low <= place <= high]
    axes.set_yticks([place for place, _ in shown], [name for _, name in shown])
    axes.set_ylim(low, high * top)
    axes.minorticks_off()
    axes.grid(axis="y", alpha=0.25)
