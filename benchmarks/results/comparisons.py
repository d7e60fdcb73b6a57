"""Runs that are compared with one of them: which setting did what, and whether lower precision follows float32.

`<!-- ablations NAME -->`: runs named `ablations-NAME/RUN`, compared with the one of them that ends in `-base`.
`<!-- precisions NAME -->`: the run `NAME-float32`, and all whose recipes say the same but for `train.precision`, those
of `ablations-NAME` included; the same recipe once more shows how far apart rounding alone takes two runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from benchmarks.results import marks
from benchmarks.results.runs import Run, changes, ending, read_runs
from rankfold.errors import DataError

BASE = "-base"
ABLATIONS = ("changed", "valid", "against the base", "test", "train", "seed", "updates", "GPU minutes", "run")
STRETCH = 1000  # updates over which the training perplexity is taken
PRECISIONS = (
    "`train.precision`",
    "valid",
    "against float32",
    f"train, by {STRETCH:,} updates",
    "train, by record",
    "single evaluations",
    "run",
)


def write(folder: Path, pages: Iterable[str]) -> None:
    """Replace what stands between the marks of the pages."""
    for table in (ablations, precisions):
        marks.replace(folder, pages, table.__name__, partial(table, folder))


def ablations(folder: Path, name: str) -> str:
    """The table, the base first."""
    runs = read_runs(folder, f"ablations-{name}")
    bases = [run for run in runs if run.name.endswith(BASE)]
    if len(bases) != 1:
        raise DataError(f"{folder}: ablations-{name} has {len(bases)} runs whose names end in {BASE}; one is expected.")
    others = [run for run in runs if run is not bases[0]]
    lines = [_ablation(run, bases[0]) for run in [bases[0], *others]]
    commands = "\n".join(f"- `{run.name}`: `{run.command}`" for run in [bases[0], *others])
    return f"{marks.table(ABLATIONS, lines, left=(0,))}\n\n{commands}"


def _ablation(run: Run, base: Run) -> list[str]:
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


def precisions(folder: Path, name: str) -> str:
    """The table, float32 first."""
    own = {run.name: run for run in read_runs(folder)}
    base = own.get(f"{name}-float32")
    if base is None:
        raise DataError(f"{folder}: has no run {name}-float32, with which others could be compared.")
    alike = [run for run in [*read_runs(folder, f"ablations-{name}"), *own.values()] if _alike(run, base)]
    return marks.table(PRECISIONS, [_precision(run, base) for run in [base, *alike]], left=(0,))


def _alike(run: Run, base: Run) -> bool:
    if run is base or run.recipe != base.recipe:
        return False
    return {setting.partition("=")[0] for setting in changes(base.config, run.config)} <= {"train.precision"}


def _precision(run: Run, base: Run) -> list[str]:
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
