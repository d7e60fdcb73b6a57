"""The table that readers see first, on the page `index.md` of results and in the README: six models.

It stands between `<!-- summary -->` and `<!-- end of summary -->`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from benchmarks.results import grammar_runs, marks, music
from benchmarks.results.grammar_runs import Induced, mean
from benchmarks.results.runs import Run, read_published
from rankfold.errors import DataError

KIND = "summary"
PAGE, README = "index.md", "README.md"
HEAD = ("model", "measured", "published", "rankfold", "minutes", "command")


@dataclass(frozen=True)
class Line:
    """A line of the table: runs of one setting, and the recipe whose published figure stands next to them."""

    model: str
    text: str
    of: Literal["valid", "test", "f1"]
    runs: tuple[str, ...]
    published: str  # the recipe of the papers' row
    remark: str = ""  # how the published figure differs


UNITS = {"valid": "validation perplexity", "test": "test perplexity", "f1": "sentence F1"}
MUSIC_UNIT = "test nats per frame"
LINES = (
    Line("HMM, 16,384 states", "Penn Treebank", "valid", ("hmm-16384-ptb",), "hmm-16384-ptb"),
    Line("Low-rank HMM, 16,384 states", "Penn Treebank", "valid", ("lhmm-16384-2048-ptb",), "lhmm-16384-2048-ptb"),
    Line(
        "Rank-space HMM, 32,768 states",
        "Penn Treebank",
        "test",
        ("rank-32768-4096-ptb",),
        "rank-32768-4096-ptb",
    ),
    Line(
        "Block-sparse HMM, 16,384 states",
        "Penn Treebank",
        "valid",
        ("vlhmm-16384-ptb",),
        "vlhmm-16384-ptb",
        "reads the sentences before, too",
    ),
    Line(
        "Rank-space grammar, 4,500 nonterminals",
        "Wall Street Journal",
        "f1",
        tuple(f"rankpcfg-4500-9000-ptb-ten-s{seed}" for seed in (1, 2, 3, 4)),
        "rankpcfg-4500-9000-ptb",
        "second hand; other sentences",
    ),
    Line("HMM of music, 2,048 states", "JSB chorales", "test", ("music-hmm-2048-jsb-chorales",), "music-hmm-2048"),
)


def write(folder: Path, runs: Sequence[Run]) -> None:
    """Put the table between the marks of the folder's first page, and of the README two folders above it."""
    for path in (folder / PAGE, folder.absolute().parents[1] / README):
        if path.exists() and marks.find(path, KIND):
            marks.replace(path.parent, [path.name], KIND, lambda _: table(runs))


def table(runs: Sequence[Run]) -> str:
    """The lines, from the runs and from the papers' rows."""
    by_name = {run.name: run for run in runs}
    missing = [name for line in LINES for name in line.runs if name not in by_name]
    if missing:
        raise DataError(f"the table of {len(LINES)} models needs the run {missing[0]}, but there is none of that name.")
    rows = [_cells(line, [by_name[name] for name in line.runs]) for line in LINES]
    return marks.table(HEAD, rows, left=(0, 1, 5))


def _cells(line: Line, runs: Sequence[Run]) -> list[str]:
    first = runs[0]
    unit = MUSIC_UNIT if first.unit == "nats" else UNITS[line.of]
    published = _published(line, first) + (f" ({line.remark})" if line.remark else "")
    minutes = mean([run.minutes for run in runs])
    cells = [line.model, f"{line.text}, {unit}", published, _ours(line, runs), f"{minutes:.1f}"]
    return [*cells, f"`{_command(first)}`"]


def _ours(line: Line, runs: Sequence[Run]) -> str:
    if line.of != "f1":
        (run,) = runs
        return _figure(run.valid if line.of == "valid" else run.test, run.unit)
    found = [Induced(run).f1("sentence", "uf1") for run in runs]
    known = [value for value in found if value is not None]
    return f"{mean(known):.1f} ({min(known):.1f} to {max(known):.1f}, {len(known)} seeds)"


def _published(line: Line, run: Run) -> str:
    if line.of == "f1":
        _, rows = grammar_runs.read_published()
        (figure,) = {row.f1 for row in rows if row.recipe == line.published and row.f1 is not None}
        return f"{figure:g}"
    rows_of_page = read_published(music.FIGURES) if run.unit == "nats" else read_published()
    (row,) = [row for row in rows_of_page if row.recipe == line.published and row.corpus == run.corpus]
    return f"{row.valid if line.of == 'valid' else row.test:g}"


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f}" if unit == "nats" else f"{value:.1f}"


def _command(run: Run) -> str:
    """What repeats the run, settings after one `--set`; grammars are trained on a text of their own."""
    words = shlex.split(run.command)
    if isinstance(data := Induced(run).evaluation.get("data"), str):
        words[words.index("--data") + 1] = data
    sets = [setting for word, setting in pairwise(words) if word == "--set"]
    settings = ["--set", *sets] if sets else []
    recipe, data, out = (words[words.index(name) : words.index(name) + 2] for name in ("--recipe", "--data", "--out"))
    return shlex.join(["rankfold", "train", *recipe, *data, *out, *settings])
