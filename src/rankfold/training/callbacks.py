"""Callbacks of a run: told of its start, of every evaluation and of its end; loggers of MLflow and Weights & Biases.

A callback is an object with the three methods of `Callback`. An exception in one ends the run like any other error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfold.errors import UnsupportedError
from rankfold.settings import to_mapping
from rankfold.training.config import Config

if TYPE_CHECKING:
    from rankfold.training.loop import Result


class Callback:
    """Override what you need: these methods do nothing."""

    def start(self, run: Path, config: Config, update: int) -> None:
        """The first update is about to come, or (`update` above 0) the next one of a resumed run."""

    def evaluation(self, update: int, metrics: Mapping[str, Any]) -> None:
        """The validation set has been measured after so many updates.

        `metrics`: the record of the evaluation (`valid_perplexity` or `valid_nats`, `best`, ...), and the latest of
        training (`train_perplexity` or `train_nats`, `lr`, ...).
        """

    def end(self, result: Result | None) -> None:
        """The run has finished or was interrupted (`result.finished` is false); None: an error ended it."""


class MLflow(Callback):
    """A run of MLflow, with the settings as parameters; where it is stored is MLflow's own setting."""

    def __init__(self, experiment: str | None = None, name: str | None = None) -> None:
        self.mlflow = _package("mlflow", "mlflow")
        self.experiment, self.name = experiment, name

    def start(self, run: Path, config: Config, update: int) -> None:
        """Open a run; one that is open already is used, and stays open at the end."""
        if self.experiment is not None:
            self.mlflow.set_experiment(self.experiment)
        self.own = self.mlflow.active_run() is None
        if self.own:
            self.mlflow.start_run(run_name=self.name or run.name)
        self.mlflow.log_params({"run": str(run), "first_update": update, **flat_settings(config)})

    def evaluation(self, update: int, metrics: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(numbers(metrics), step=update)

    def end(self, result: Result | None) -> None:
        if result is not None:
            self.mlflow.log_metrics(final_numbers(result), step=result.updates)
        if getattr(self, "own", False):
            ended = result is not None and result.finished
            self.mlflow.end_run(status="FINISHED" if ended else "FAILED" if result is None else "KILLED")


class WandB(Callback):
    """A run of Weights & Biases, with the settings as its config; `options` go to `wandb.init`."""

    def __init__(self, project: str | None = None, name: str | None = None, **options: Any) -> None:
        self.wandb = _package("wandb", "wandb")
        self.project, self.name, self.options, self.logged = project, name, options, None

    def start(self, run: Path, config: Config, update: int) -> None:
        settings = {"run": str(run), "first_update": update, **flat_settings(config)}
        self.logged = self.wandb.init(project=self.project, name=self.name or run.name, config=settings, **self.options)

    def evaluation(self, update: int, metrics: Mapping[str, Any]) -> None:
        assert self.logged is not None, "start comes first"
        self.logged.log(numbers(metrics), step=update)

    def end(self, result: Result | None) -> None:
        if self.logged is None:
            return
        if result is not None:
            self.logged.summary.update(final_numbers(result))
        self.logged.finish(exit_code=1 if result is None else 0)


LOGGERS = {"mlflow": MLflow, "wandb": WandB}  # by their name on the command line


def flat_settings(config: Config) -> dict[str, Any]:
    """All settings of a recipe under dotted names, as loggers want them."""
    tables = to_mapping(config)
    return {f"{table}.{name}": value for table, values in tables.items() for name, value in values.items()}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record but the update, which is the step."""
    kept = {name: x for name, x in metrics.items() if isinstance(x, int | float) and name != "update"}
    return {name: float(x) for name, x in kept.items() if math.isfinite(x)}


def final_numbers(result: Result) -> dict[str, float]:
    """The last record of a run, its test included; nothing of a run that was interrupted."""
    return numbers(result.metrics[-1]) if result.finished else {}


def _package(name: str, extra: str) -> Any:
    """A module that is installed, or an error that says how."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UnsupportedError(
            f'this logger needs the package {name}.\n  pip install "rankfold[{extra}]", or leave it out: '
            "metrics.jsonl has the same numbers."
        ) from None
