"""Which setting did what: runs that differ from one of them, the base, by what their recipes say.

Runs named `ablations-NAME/RUN` are compared with the one of them that ends in `-base`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks import marks
from benchmarks.runs import Run, changes, ending, read_runs
from rankfold.errors import DataError

BASE = "-base"
HEAD = ("changed", "valid", "against the base", "test", "train", "seed", "updates", "GPU minutes", "run")


def write(folder: Path, pages: Iterable[str]) -> int:
    """Replace what stands between the marks of the pages; how many tables there were."""
    return marks.replace(folder, pages, "ablations", body)


def body(folder: Path, name: str) -> str:
    """The table, the base first."""
    runs = read_runs(folder, f"ablations-{name}")
    bases = [run for run in runs if run.name.endswith(BASE)]
    if len(bases) != 1:
        raise DataError(f"{folder}: ablations-{name} has {len(bases)} runs whose names end in {BASE}; one is expected.")
    others = [run for run in runs if run is not bases[0]]
    lines = [_line(run, bases[0]) for run in [bases[0], *others]]
    commands = "\n".join(f"- `{run.name}`: `{run.command}`" for run in [bases[0], *others])
    return f"{marks.table(HEAD, lines, left=1)}\n\n{commands}"


def _line(run: Run, base: Run) -> list[str]:
    settings = ", ".join(f"`{setting}`" for setting in changes(base.config, run.config))
    difference = None if run is base or run.valid is None or base.valid is None else run.valid - base.valid
    return [
        settings or "nothing",
        *("-" if value is None else value for value in (_one(run.valid), _signed(difference), _one(run.test))),
        _one(run.train) or "-",
        *ending(run),
    ]


def _one(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1f}"
