"""Whether training in lower precision follows training in float32: runs that differ in `train.precision` alone.

The part of a page named NAME compares the run `NAME-float32` with all whose recipes say the same but for that, those of
`ablations-NAME` included; the same recipe once more shows how far apart rounding alone takes two runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks import marks
from benchmarks.runs import Run, changes, read_runs
from rankfold.errors import DataError

STRETCH = 1000  # updates over which the training perplexity is taken
HEAD = (
    "`train.precision`",
    "valid",
    "against float32",
    f"train, by {STRETCH:,} updates",
    "train, by record",
    "single evaluations",
    "run",
)


def write(folder: Path, pages: Iterable[str]) -> int:
    """Replace what stands between the marks of the pages; how many tables there were."""
    return marks.replace(folder, pages, "precisions", body)


def body(folder: Path, name: str) -> str:
    """The table, float32 first."""
    own = {run.name: run for run in read_runs(folder)}
    base = own.get(f"{name}-float32")
    if base is None:
        raise DataError(f"{folder}: has no run {name}-float32, with which others could be compared.")
    alike = [run for run in [*read_runs(folder, f"ablations-{name}"), *own.values()] if _alike(run, base)]
    return marks.table(HEAD, [_line(run, base) for run in [base, *alike]], left=1)


def _alike(run: Run, base: Run) -> bool:
    if run is base or run.recipe != base.recipe:
        return False
    return {setting.partition("=")[0] for setting in changes(base.config, run.config)} <= {"train.precision"}


def _line(run: Run, base: Run) -> list[str]:
    if run.valid is None or base.valid is None:
        raise DataError(f"{run.name}, {base.name}: both need an evaluation to be compared.")
    compared = (
        ["-"] * 4
        if run is base
        else [
            f"{100 * (run.valid / base.valid - 1):+.2f}%",
            _apart(_stretches(run), _stretches(base)),
            *(_apart(_all(run, key), _all(base, key)) for key in ("train_perplexity", "valid_perplexity")),
        ]
    )
    again = run is not base and run.config.train.precision == base.config.train.precision
    name = f"`{run.config.train.precision}`{', again' if again else ''}"
    return [name, f"{run.valid:.1f}", *compared, f"`{run.name}`"]


def _all(run: Run, key: str) -> dict[int, float]:
    return {record["update"]: record[key] for record in run.records if key in record}


def _stretches(run: Run) -> dict[int, float]:
    """The training perplexity of every whole stretch: the mean of its records' logarithms."""
    found: dict[int, list[float]] = defaultdict(list)
    for update, perplexity in _all(run, "train_perplexity").items():
        found[(update - 1) // STRETCH].append(math.log(perplexity))
    whole = STRETCH // run.config.train.log_every
    return {at: math.exp(sum(logs) / whole) for at, logs in found.items() if len(logs) == whole}


def _apart(found: dict[int, float], base: dict[int, float]) -> str:
    """How far the two are apart at most, and how often by over 1%."""
    apart = [abs(found[at] / base[at] - 1) for at in sorted(found.keys() & base.keys())]
    if not apart:
        return "-"
    return f"at most {100 * max(apart):.2f}%, {sum(x > 0.01 for x in apart)} of {len(apart)} over 1%"
