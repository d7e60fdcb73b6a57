"""Speed against accuracy: pictures and tables of `frontiers.md`, of the archived runs, the papers' figures beside.

<!-- frontier hmm -->  <!-- frontier pcfg -->  <!-- frontier hsmm -->
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.results import grammar_runs, marks
from benchmarks.results.pictures import COLOURS
from benchmarks.results.runs import Run, read_published
from rankfold.models.config import readers
from rankfold.plots.picture import add_grid, new_figure
from rankfold.settings import read_toml
from rankfold.training.recipes import load_recipe

PAGE, KIND = "frontiers.md", "frontier"
STEPS = "steps-frames.json"  # the steps of segment models at the papers' sizes
WAYS = {"hmm": "softmax", "npcfg": "softmax", "hsmm": "softmax", "lhmm": "low rank", "lpcfg": "low rank"}
WAYS |= {"lhsmm": "low rank", "rank": "rank space", "block": "block-sparse", "banded": "low rank and band"}
AXES = {
    "hmm": ("seconds per epoch", "validation perplexity, Penn Treebank"),
    "pcfg": ("seconds per batch of 4 sentences", "validation perplexity, Wall Street Journal"),
    "hsmm": ("seconds per batch", "negative log-likelihood of a video, CrossTask"),
}


class Point(NamedTuple):
    """A model on the plane of speed and accuracy; seconds of 0 are not printed, a value of None was not measured."""

    way: str
    size: str
    value: float | None
    seconds: float
    source: str = ""  # the paper; empty: a run of ours
    name: str = ""


def write(folder: Path, runs: Sequence[Run], *, pictures: bool = True) -> None:
    """The page's tables, and a picture for each structure."""
    if not (folder / PAGE).exists():
        return
    found = {name: [*published(name), *ours(name, runs, folder)] for name in AXES}
    marks.replace(folder, [PAGE], KIND, lambda name: section(found[name], name))
    for name, points in found.items() if pictures else ():
        draw(points, name, folder / f"frontier-{name}.png")


def published(name: str) -> list[Point]:
    """The papers' points of a structure: their seconds, and what their tables say of the same recipe."""
    read = read_toml(Path(__file__).with_name("published-frontiers.toml"))[name]
    if name == "hsmm":
        return [_of_paper(recipe, *figures) for recipe, figures in read.items()]
    rows = {row.recipe: row.valid for row in read_published() if row.corpus == "ptb"}
    rows |= {row.recipe: row.valid for row in grammar_runs.read_published()[1] if row.table == "lpcfg"}
    return [_of_paper(recipe, rows[recipe], seconds) for recipe, seconds in read.items()]


def _of_paper(recipe: str, value: float | None, seconds: float) -> Point:
    model = load_recipe(recipe).model
    return Point(WAYS[model.family], _size(model), value, seconds, "paper")


def ours(name: str, runs: Sequence[Run], folder: Path) -> list[Point]:
    """Our points of a structure: finished runs on a GPU, named as a recipe; of segments the steps that were timed."""
    if name == "hsmm":
        return _timed(folder)
    return [_point(run, name) for run in runs if _belongs(run, name)]


def _belongs(run: Run, name: str) -> bool:
    if not (run.gpu and run.finished and run.valid is not None):
        return False
    model: Any = run.config.model
    if name == "hmm":
        return run.corpus == "ptb" and model.data == "text" and run.name == run.recipe and model.neural
    equal = model.family in ("npcfg", "lpcfg") and run.config.data.sentences == 4
    return equal and run.updates == 12_000 and "-ptb-" in run.name and _usual(model)


def _usual(model: Any) -> bool:
    """Whether a grammar has the paper's low rank, of pairs of nonterminals alone."""
    return model.family != "lpcfg" or len(model.low_rank) == 1


def _point(run: Run, name: str) -> Point:
    model = run.config.model
    seconds = update_seconds(run) * (epoch_updates(run) if name == "hmm" else 1)
    return Point(WAYS[model.family], _size(model), run.valid, seconds, name=run.name)


def _size(model: Any) -> str:
    """States, or nonterminals and preterminals; and the rank."""
    grammar = model.data == "sentences"
    sizes = [model.num_nonterminals, model.num_preterminals] if grammar else [model.num_states]
    return ", ".join(f"{x:,}" for x in sizes) + (f" / {model.rank:,}" if readers(model, "rank") is None else "")


def update_seconds(run: Run) -> float:
    """Of an update: the median over stretches between two records in which nothing was evaluated."""
    quiet = [
        (after["seconds"] - before["seconds"]) / (after["update"] - before["update"])
        for before, after in pairwise(run.records)
        if after["update"] > before["update"] and "valid_perplexity" not in before and "lr" in before and "lr" in after
    ]
    return float(median(quiet))


def epoch_updates(run: Run) -> float:
    """Updates of an epoch, by where the last one begins: half a stretch of records off at most, over all epochs."""
    last = max(record["epoch"] for record in run.records if "epoch" in record)
    if not last:
        return float(run.updates)  # less than an epoch
    first = min(r["update"] for r in run.records if r.get("epoch") == last)
    before = max(r["update"] for r in run.records if r.get("epoch", last) < last)
    return float((first + before) / 2 / last)


def _timed(folder: Path) -> list[Point]:
    if not (folder / STEPS).exists():
        return []
    rows = json.loads((folder / STEPS).read_text(encoding="utf-8"))["rows"]
    return [
        Point(
            WAYS[row["family"]],
            f"{row['num_states']:,}" + (f" / {row['rank']:,}" if row["family"] == "lhsmm" else ""),
            None,
            row["step_ms"]["median"] / 1000,
        )
        for row in rows
        if row["family"] in ("hsmm", "lhsmm")
    ]


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats in both, by rising seconds."""
    best: list[Point] = []
    for point in sorted((p for p in points if p.value is not None and p.seconds), key=lambda p: (p.seconds, p.value)):
        assert point.value is not None
        if not best or point.value < (best[-1].value or 0):
            best.append(point)
    return best


def section(points: Sequence[Point], name: str) -> str:
    """The picture and the table."""
    best = frontier(point for point in points if not point.source)
    head = ("model", "size", AXES[name][1].split(",")[0], AXES[name][0], "of", "on our frontier")
    lines = [
        [
            point.way,
            point.size,
            "not run" if point.value is None else f"{point.value:,.1f}",
            f"{point.seconds:.3g}" if point.seconds else "not printed",
            "paper" if point.source else f"`{point.name}`" if point.name else "a timed step",
            "yes" if point in best else "",
        ]
        for point in points
    ]
    return marks.join(
        f"![{AXES[name][1]} against {AXES[name][0]}](frontier-{name}.png)", marks.table(head, lines, left={0, 1, 4, 5})
    )


def draw(points: Sequence[Point], name: str, path: Path) -> None:
    """Filled: ours; hollow: published; published without a time: on the right edge; ours without a value: dashes."""
    figure = new_figure(10, 5.5)
    axes = figure.subplots()
    ways = list(dict.fromkeys(point.way for point in points))
    for way, colour in zip(ways, COLOURS, strict=False):
        own = [point for point in points if point.way == way]
        here = [p for p in own if not p.source and p.value is not None]
        there = [p for p in own if p.source and p.seconds]
        style = {"color": colour, "s": 42, "zorder": 3}
        axes.scatter(
            [p.seconds for p in here], [p.value for p in here], label=f"{way}, rankfold" if here else None, **style
        )
        axes.scatter(
            [p.seconds for p in there],
            [p.value for p in there],
            label=f"{way}, published" if there else None,
            facecolors="none",
            edgecolors=colour,
            s=42,
        )
        for point in here + there:
            axes.annotate(point.size, (point.seconds, point.value), (5, 3), textcoords="offset points", fontsize=7)
        for point in (p for p in own if p.source and not p.seconds):
            axes.plot(
                [1.0], [point.value], marker="<", color=colour, transform=axes.get_yaxis_transform(), clip_on=False
            )
        for i, point in enumerate(p for p in own if p.value is None):
            axes.axvline(point.seconds, color=colour, linestyle=(0, (5, 3)), linewidth=1)
            place = (point.seconds, 0.97 - 0.05 * i)
            axes.text(*place, f" {point.size}", transform=axes.get_xaxis_transform(), fontsize=7, color=colour)
    best = frontier(point for point in points if not point.source)
    axes.plot([p.seconds for p in best], [p.value for p in best], color="0.6", linewidth=1, zorder=1)
    axes.set_xscale("log")
    axes.set(xlabel=AXES[name][0], ylabel=AXES[name][1])
    add_grid(axes)
    note = {"hmm": "triangles: published without a time", "hsmm": "dashes: our step at that size, no likelihood"}.get(
        name
    )
    axes.legend(frameon=False, fontsize=8, title=note, title_fontsize=8)
    figure.savefig(path, dpi=100)
