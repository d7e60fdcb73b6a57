"""`python -m benchmarks.segmentation --data FOLDER --out docs/results`: the page of segments, its runs and its tables.

First smoothing, scaling and durations are chosen by the frame accuracy of the valid split; then every line of every
table is run and scored on the test split. Records are kept in one small JSON file a set: what is there is not run
again. Every table stands between two marks of `segments.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import segment_plan as plan
from benchmarks.results import marks
from benchmarks.segment_runs import SCORES, Arm, run
from rankfold.cli.output import say
from rankfold.errors import DataError

PAGE = "segments.md"
HEADS = ("frame accuracy", "F1@10", "F1@25", "F1@50", "edit", "NMI", "many to one", "segments", "seeds")
Record = dict[str, Any]


class Records:
    """The runs of a set, in a file that grows line by line."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self.name = folder / f"segments-{name}.json", name
        try:
            self.all: list[Record] = json.loads(self.path.read_text()) if self.path.exists() else []
        except ValueError as error:
            raise DataError(f"{self.path}: is no JSON ({error}).\n  Delete it, and all is run again.") from None

    def find(self, arm: Arm, seed: int, split: str) -> Record | None:
        """The run of an arm with the scores of a split, if there is one."""
        return next(
            (
                record
                for record in self.all
                if (record["method"], tuple(record["settings"]), record["first"]) == arm
                and record["seed"] == seed
                and split in record
            ),
            None,
        )

    def add(self, record: Record) -> None:
        """Keep a run."""
        self.all.append(record)
        lines = ",\n".join(json.dumps(record) for record in self.all)
        self.path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")

    def of(self, line: plan.Line) -> list[Record]:
        """The runs of a line that are there."""
        found = [self.find(line.arm, seed, "test") for seed in line.seeds]
        return [record for record in found if record is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.segmentation", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="of the sets; without it only the page is written")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=f"of {PAGE} and the records")
    parser.add_argument("--only", nargs="+", choices=list(plan.SETS), default=list(plan.SETS), help="these sets alone")
    parser.add_argument("--tables", nargs="*", choices=list(plan.TABLES), default=list(plan.TABLES), help="these alone")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many")
    given = parser.parse_args(arguments)
    until = time.monotonic() + 60 * given.minutes
    try:
        for name in given.only if given.data is not None else []:
            fill(Records(given.out, name), given.data / f"{name}.npz", given.tables, until)
        write(given.out)
    except DataError as error:
        print(f"benchmarks.segmentation: {error}", file=sys.stderr)
        return 2
    return 0


def fill(records: Records, path: Path, tables: Sequence[str], until: float) -> None:
    """Choose on valid, then run the lines of the tables."""
    for table in plan.SETS[records.name].tables:
        for recipe in plan.NEEDS[table] if table in tables else ():
            while (options := options_of(records, recipe)) and chosen(records, recipe) is None:
                for settings in options:
                    arm = plan.tried(records.name, recipe, settings)
                    if not _ran(records, arm, path, plan.choice_seeds(recipe), "valid", until):
                        return
        for line in lines_of(records, table) or () if table in tables else ():
            if not _ran(records, line.arm, path, line.seeds, "test", until):
                return


def _ran(records: Records, arm: Arm, path: Path, seeds: Sequence[int], split: str, until: float) -> bool:
    """Run an arm where it has not been; false once the time is over."""
    for seed in seeds:
        if records.find(arm, seed, split) is not None:
            continue
        if time.monotonic() > until:
            return False
        record = run(arm, path, seed, [split])
        if split == "valid":
            record[split] = {name: record[split][name] for name in ("frame_accuracy", "nats")}
        records.add(record)
        shown = record[split]["frame_accuracy"]
        say(
            f"{records.name} {arm.method} {' '.join(arm.settings)} seed {seed}: {split} {shown} ({record['seconds']} s)"
        )
    return True


def ranking(records: Records, recipe: str) -> list[tuple[float, tuple[str, ...], list[float]]]:
    """What was tried on valid so far, best first: mean accuracy, settings, accuracy of each seed."""
    found: dict[tuple[str, ...], list[float]] = {}
    sizes = plan.SETS[records.name].sizes
    for record in records.all:
        settings = tuple(record["settings"])
        if record["method"] == recipe and "valid" in record and settings[: len(sizes)] == sizes:
            found.setdefault(settings[len(sizes) :], []).append(record["valid"]["frame_accuracy"])
    ranked = [(float(np.mean(values)), settings, values) for settings, values in found.items()]
    return sorted(ranked, key=lambda one: -one[0])


def options_of(records: Records, recipe: str) -> list[tuple[str, ...]]:
    """The settings among which is chosen next, or was chosen last."""
    if recipe == "segment-hsmm" and not plan.SETS[records.name].whole:
        return []
    first = plan.scales(records.name, recipe)
    scale = _best(records, recipe, first)
    return first if scale is None else plan.durations(records.name, recipe, scale) or first


def chosen(records: Records, recipe: str) -> tuple[str, ...] | None:
    """The settings with the best mean accuracy on valid; None as long as not all were tried."""
    if recipe == "segment-hsmm" and not plan.SETS[records.name].whole:
        scale = chosen(records, "segment-hmm")
        return None if scale is None else (*scale, plan.OF_FIRST)
    scale = _best(records, recipe, plan.scales(records.name, recipe))
    if scale is None:
        return None
    kinds = plan.durations(records.name, recipe, scale)
    return _best(records, recipe, kinds) if kinds else scale


def choices(records: Records) -> dict[str, tuple[str, ...]]:
    """What is chosen, for every recipe for which all was tried."""
    found = {recipe: chosen(records, recipe) for recipe in plan.RECIPES}
    return {recipe: settings for recipe, settings in found.items() if settings is not None}


def lines_of(records: Records, table: str) -> list[plan.Line] | None:
    """The lines of a table; None as long as something they need is not chosen."""
    best = choices(records)
    return plan.TABLES[table](records.name, best) if set(plan.NEEDS[table]) <= set(best) else None


def _best(records: Records, recipe: str, options: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    tried = {settings: values for _, settings, values in ranking(records, recipe)}
    if any(len(tried.get(settings, ())) < len(plan.choice_seeds(recipe)) for settings in options):
        return None
    return max(options, key=lambda settings: float(np.mean(tried[settings])))


def write(folder: Path) -> None:
    """Replace what stands between the marks of the page."""
    path = folder / PAGE
    try:
        found = marks.find(path, "segments")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    expected = {f"{name} {table}" for name, one in plan.SETS.items() for table in ("choice", *one.tables)}
    if sorted(found) != sorted(expected):
        missing = ", ".join(sorted(expected - set(found))) or "none"
        raise DataError(
            f"{path}: has {len(found)} tables, but {len(expected)} were expected; missing: {missing}.\n"
            "  A table goes between <!-- segments SET TABLE --> and <!-- end of segments -->."
        )
    kept = {name: Records(folder, name) for name in plan.SETS}

    def body(mark: str) -> str:
        name, table = mark.split()
        return _choice(kept[name]) if table == "choice" else _table(kept[name], table)

    marks.replace(folder, [PAGE], "segments", body)


def _choice(records: Records) -> str:
    head = ("recipe", "chosen", "its valid accuracy", "next best", "worst of those tried")
    lines = []
    for recipe in plan.RECIPES:
        best, ranked = chosen(records, recipe), ranking(records, recipe)
        if best is None:
            lines.append([f"`{recipe}`", "not run", "", "", ""])
            continue
        values = {settings: scores for _, settings, scores in ranked}
        others = [one for one in ranked if one[1] != best]
        if best in values:
            cells = [_spread(values[best]), *(f"{_words(one[1])}: {one[0]:.3f}" for one in (others[0], others[-1]))]
        else:
            cells = ["as for the HMM; durations of the first set", "", ""]
        lines.append([f"`{recipe}`", _words(best), *cells])
    return marks.table(head, lines, left={0, 1, 3, 4})


def _table(records: Records, table: str) -> str:
    lines = lines_of(records, table)
    if lines is None:
        return "Not run."
    rows = []
    for line in lines:
        found = records.of(line)
        if not found:
            rows.append([line.title, "not run", *[""] * (len(HEADS) - 1)])
            continue
        scores = {name: [record["test"][name] for record in found] for name in found[0]["test"]}
        cells = [_spread(scores[name]) if name == SCORES[0] else f"{np.mean(scores[name]):.3f}" for name in SCORES]
        segments = f"{np.mean(scores['segments']):.0f} of {scores['true_segments'][0]}"
        rows.append([line.title, *cells, f"{np.mean(scores['many_to_one']):.3f}", segments, str(len(found))])
    return marks.table(("model", *HEADS), rows, left={0})


def _words(settings: Sequence[str]) -> str:
    return "`" + " ".join(settings) + "`"


def _spread(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    sys.exit(main())
