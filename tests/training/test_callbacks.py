"""Callbacks are told of the start, every evaluation and the end; loggers pass that on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankfold
from rankfold import DataError, UnsupportedError, callbacks
from rankfold.training.config import Config
from rankfold.training.loop import Result, train
from tests.training.runs import StopAfter, tiny, write_corpus


class Notes(callbacks.Callback):
    """Everything it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[Path, Config, int]] = []
        self.evaluated: list[tuple[int, dict[str, Any]]] = []
        self.ended: list[Result | None] = []

    def start(self, run: Path, config: Config, update: int) -> None:
        self.started.append((run, config, update))

    def evaluation(self, update: int, metrics: Mapping[str, Any]) -> None:
        self.evaluated.append((update, dict(metrics)))

    def end(self, result: Result | None) -> None:
        self.ended.append(result)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


def test_three_calls(data: Path, tmp_path: Path) -> None:
    notes, run = Notes(), tmp_path / "run"
    result = train(tiny(), data, run, callbacks=[notes, callbacks.Callback()])
    assert notes.started == [(run, tiny(), 0)]
    assert [update for update, _ in notes.evaluated] == [4, 8, 11]
    assert notes.ended == [result]
    written = {record["update"]: record for record in result.metrics if "best" in record}
    for update, metrics in notes.evaluated:
        assert metrics["valid_perplexity"] == written[update]["valid_perplexity"]
        assert metrics["epoch"] == written[update]["epoch"]
    assert [metrics["train_perplexity"] for _, metrics in notes.evaluated] == [
        {record["update"]: record for record in result.metrics if "lr" in record}[update]["train_perplexity"]
        for update in (3, 6, 11)  # the latest of training
    ]
    assert result.metrics[-1]["test_perplexity"] == result.test.perplexity  # type: ignore[union-attr]


def test_interrupted_and_resumed(data: Path, tmp_path: Path) -> None:
    notes, run = Notes(), tmp_path / "run"
    train(tiny(), data, run, callbacks=[notes], report=StopAfter(5))
    train(None, data, run, resume=True, callbacks=[notes], quiet=True)
    assert [update for _, _, update in notes.started] == [0, 5]
    assert [update for update, _ in notes.evaluated] == [4, 8, 11]
    assert [result.finished for result in notes.ended if result] == [False, True]


@pytest.mark.parametrize("when", ["start", "evaluation", "end"])
def test_exceptions_are_not_swallowed(when: str, data: Path, tmp_path: Path) -> None:
    class Fails(callbacks.Callback):
        pass

    def fail(*arguments: Any) -> None:
        raise ArithmeticError("of the callback")

    setattr(Fails, when, fail)
    first, run = Notes(), tmp_path / "run"
    with pytest.raises(ArithmeticError, match="of the callback"):
        train(tiny(), data, run, callbacks=[first, Fails()], quiet=True)
    assert (first.ended[0] is None) == (when != "end")
    assert train(None, data, run, resume=True, quiet=True).finished


def test_a_run_that_fails_ends_without_a_result(data: Path, tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(rankfold.DomainError):
        train(tiny(lr=1e30, schedule="constant", clip=0.0), data, tmp_path / "run", callbacks=[notes], quiet=True)
    assert notes.ended == [None]


class Recorder:
    """A stand-in for the packages: every call by its name."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments, options))
            return None if name == "active_run" else self

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(arguments, options) for called, arguments, options in self.calls if called == name]


def test_weights_and_biases(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", package)
    logger = callbacks.WandB("project", mode="offline")
    result = train(tiny(), data, tmp_path / "run", callbacks=[logger], quiet=True)
    ((_, options),) = package.named("init")
    assert (options["project"], options["name"], options["mode"]) == ("project", "run", "offline")
    assert options["config"]["model.rank"] == 4
    logged = {options["step"]: arguments[0] for arguments, options in package.named("log")}
    expected = {record["update"]: record["valid_perplexity"] for record in result.metrics if "best" in record}
    assert {step: values["valid_perplexity"] for step, values in logged.items()} == expected
    assert package.summary["test_perplexity"] == result.test.perplexity  # type: ignore[union-attr]
    assert package.named("finish") == [((), {"exit_code": 0})]


def test_mlflow(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", package)
    result = train(tiny(), data, tmp_path / "run", callbacks=[callbacks.MLflow("words")], quiet=True)
    assert package.named("set_experiment") == [(("words",), {})]
    assert package.named("start_run") == [((), {"run_name": "run"})]
    (((parameters,), _),) = package.named("log_params")
    assert parameters["train.updates"] == 11
    steps = [options["step"] for _, options in package.named("log_metrics")]
    assert steps == [4, 8, 11, 11]
    (final,), _ = package.named("log_metrics")[-1]
    assert final["test_perplexity"] == result.test.perplexity  # type: ignore[union-attr]
    assert package.named("end_run") == [((), {"status": "FINISHED"})]


def test_a_logger_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, logger in callbacks.LOGGERS.items():
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UnsupportedError, match=rf"needs the package {name}.\n  pip install"):
            logger()


def test_the_result_has_model_and_metrics(data: Path, tmp_path: Path) -> None:
    result = train(tiny(), data, tmp_path / "run", quiet=True)
    assert result.model is result.model
    assert result.model.score("w00 w01") == rankfold.load(tmp_path / "run").score("w00 w01")
    stopped = train(tiny(), data, tmp_path / "stopped", report=StopAfter(2))
    with pytest.raises(DataError, match="has no model yet"):
        assert stopped.model


def test_threads_are_those_asked_for_and_set_back(data: Path, tmp_path: Path) -> None:
    import torch

    before, seen = torch.get_num_threads(), []
    note = SimpleNamespace(
        start=lambda *_: seen.append(torch.get_num_threads()), evaluation=lambda *_: None, end=lambda *_: None
    )
    train(tiny(), data, tmp_path / "run", callbacks=[note], threads=before + 1, quiet=True)  # type: ignore[list-item]
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
    with pytest.raises(rankfold.DomainError, match="threads is 0"):
        train(tiny(), data, tmp_path / "other", threads=0)


def test_devices(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for ask in (
        lambda: train(tiny(), data, run, device="mps"),
        lambda: train("small-lhmm", data, run, device="mps"),
        lambda: rankfold.load(run, device="mps"),
    ):
        with pytest.raises((UnsupportedError, DataError), match=r"mps|no such folder"):
            ask()
    assert not run.exists()
    train(tiny(device="auto"), data, run, device="cpu", quiet=True)
    assert 'device = "cpu"' in (run / "recipe.toml").read_text()
    with pytest.raises(UnsupportedError, match="device is mps, but sums of log-probabilities are in float64"):
        rankfold.load(run, device="mps")


def test_load_in_another_dtype(data: Path, tmp_path: Path) -> None:
    import torch

    result = train(tiny(), data, tmp_path / "run", quiet=True)
    wide = rankfold.load(result.run, dtype="float64", device="auto")
    assert wide.dtype == torch.float64
    assert rankfold.load(result.run, dtype=torch.float64).score("w00") == wide.score("w00")
    assert wide.score("w00") == pytest.approx(result.model.score("w00"), rel=1e-5)  # parameters of float32
    with pytest.raises(UnsupportedError, match="dtype is float16, but models are of float32 or float64"):
        rankfold.load(result.run, dtype="float16")


def test_progress_is_shown_unless_quiet(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny(), data, tmp_path / "run")
    assert "update 11/11" in capsys.readouterr().err
    train(tiny(), data, tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_train_needs_data_and_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train needs data and out"):
        train(tiny(), out=tmp_path / "run")


def test_mlflow_itself(data: Path, tmp_path: Path) -> None:
    """Where it is installed: a database in a folder."""
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    result = train(tiny(), data, tmp_path / "run", callbacks=[callbacks.MLflow("words")], quiet=True)
    (found,) = mlflow.search_runs(experiment_names=["words"], output_format="list")
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "valid_perplexity")
    assert [(x.step, x.value) for x in history] == [
        (record["update"], record["valid_perplexity"]) for record in result.metrics if "best" in record
    ]
    assert (found.info.status, found.data.params["model.rank"]) == ("FINISHED", "4")


def test_weights_and_biases_itself(data: Path, tmp_path: Path) -> None:
    """Where it is installed: offline, into a folder."""
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    logger = callbacks.WandB("words", mode="offline", dir=str(tmp_path))
    train(tiny(), data, tmp_path / "run", callbacks=[logger], quiet=True)
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    for name in (b"valid_perplexity", b"test_perplexity", b"model.rank"):
        assert name in written.read_bytes()
