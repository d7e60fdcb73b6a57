"""`rankfold runs`: the settings in which runs differ, their results next to each other, and their curves."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankfold.cli.output import say, table, to_json
from rankfold.errors import DataError
from rankfold.files import read_json
from rankfold.models.config import Measure
from rankfold.plots.learning import plot_runs
from rankfold.plots.picture import expect_picture, require_matplotlib
from rankfold.settings import build, read_toml
from rankfold.training.callbacks import flat_settings
from rankfold.training.config import Config
from rankfold.training.run_dir import METRICS, RECIPE, read_metrics

COMPUTES = False
DESCRIPTION = (
    "Print the settings in which runs differ, and their results: updates done, the best validation, the test. Runs may "
    "still be going on."
)
EXAMPLE = """\
example:
  rankfold runs runs/small runs/wide runs/deep
  rankfold runs runs/* --plot runs.png --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the validation curves as one picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


class Run(NamedTuple):
    """The record of a run."""

    name: str
    settings: dict[str, Any]
    measure: Measure
    metrics: list[dict[str, Any]]
    data: str | None  # the fingerprint of its data

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The validation measure after each evaluation."""
        key = f"valid_{self.measure.name}"
        return [(record["update"], record[key]) for record in self.metrics if key in record]

    def result(self) -> dict[str, Any]:
        """How far it came, and its best validation and last test, None where there is none yet."""
        name, curve = self.measure.name, self.curve
        last = self.metrics[-1] if self.metrics else {}
        best = min(curve, key=lambda point: point[1]) if curve else (None, None)
        return {
            "updates": last.get("update", 0),
            "finished": bool(last.get("end")),
            f"best_valid_{name}": best[1],
            "best_update": best[0],
            f"test_{name}": last.get(f"test_{name}"),
            "seconds": last.get("seconds", 0.0),
        }


def run(arguments: argparse.Namespace) -> int:
    """Print the tables, and draw the picture."""
    if arguments.plot is not None:
        require_matplotlib()
        expect_picture(arguments.plot)
    runs = read_runs(arguments.runs)
    if arguments.plot is not None:
        _expect_one_measure(runs)
        for one in runs:
            if not one.curve:
                say(f"{one.name}: no evaluation yet, and no curve")
        drawn = plot_runs({one.name: one.curve for one in runs}, arguments.plot, runs[0].measure)
        say(f"drawn {drawn}")
    if len({one.data for one in runs}) > 1:
        say("the runs are of different data: their results are not measured on the same validation and test sets")
    print(to_json(compare(runs), indent=2) if arguments.json else text(runs))
    return 0


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The records of the runs in these folders."""
    seen: dict[Path, Path] = {}
    for path in paths:
        if not (path / RECIPE).is_file():
            what = f"holds no {RECIPE}, so it is no run" if path.is_dir() else "no such folder"
            raise DataError(f"{path}: {what}; the folder of a run was expected.")
        if path.resolve() in seen:
            raise DataError(f"{path} is the same run as {seen[path.resolve()]}: give each once.")
        seen[path.resolve()] = path
    return [_read(path) for path in paths]


def _read(path: Path) -> Run:
    config = build(Config, read_toml(path / RECIPE), source=path / RECIPE)
    metrics = read_metrics(path / METRICS) if (path / METRICS).exists() else []
    file = path / "data.json"
    data = read_json(file, "the data.json of a run") if file.exists() else {}
    fingerprint = data.get("fingerprint") if isinstance(data, dict) else None
    return Run(str(path), flat_settings(config), config.model.measure, metrics, fingerprint)


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """The settings that differ, by name and in the order of the runs, None where a family has no such setting; and the
    results.
    """
    names = dict.fromkeys(name for one in runs for name in one.settings)
    values = {name: [one.settings.get(name) for one in runs] for name in names}
    differing = {name: row for name, row in values.items() if any(value != row[0] for value in row)}
    return {
        "runs": [one.name for one in runs],
        "settings": differing,
        "same_data": len({one.data for one in runs}) == 1,
        "results": [one.result() for one in runs],
        "curves": [[list(point) for point in one.curve] for one in runs],
    }


def text(runs: Sequence[Run]) -> str:
    """Two tables, a column for each run."""
    found, names = compare(runs), [one.name for one in runs]
    rows = [[name, *(_written(value) for value in row)] for name, row in found["settings"].items()]
    settings = table(["setting", *names], rows) if rows else "the settings are the same"
    if len(runs) == 1:
        settings = "one run: give others to see the settings in which they differ"
    return f"{settings}\n\n{table(['result', *names], _results(runs))}"


def _results(runs: Sequence[Run]) -> list[list[str]]:
    found = [one.result() for one in runs]
    updates = [
        f"{x['updates']:,}" + ("" if x["finished"] else f" of {one.settings['train.updates']:,}")
        for x, one in zip(found, runs, strict=True)
    ]
    rows = [["updates", *updates]]
    for measure, title in {one.measure.name: _title(one.measure) for one in runs}.items():
        best = [x.get(f"best_valid_{measure}") for x in found]
        rows.append([f"best valid {title}", *map(_measured, best)])
        rows.append(["at update", *("-" if x["best_update"] is None else f"{x['best_update']:,}" for x in found)])
        rows.append([f"test {title}", *(_measured(x.get(f"test_{measure}")) for x in found)])
    return [*rows, ["seconds", *(f"{x['seconds']:,.0f}" for x in found)]]


def _title(measure: Measure) -> str:
    return "perplexity" if measure.of_words else "nats per frame"


def _measured(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _written(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _expect_one_measure(runs: Sequence[Run]) -> None:
    if len({one.measure.name for one in runs}) > 1:
        raise DataError("--plot draws one measure, but these runs are some of words and some of frames.")
    if not any(one.curve for one in runs):
        raise DataError("--plot: none of the runs has an evaluation yet, so there is no curve.")
