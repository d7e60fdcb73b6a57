"""What a person sees of a run: standard error only, a bar on a terminal, TensorBoard on request."""

import io
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rankfold.errors import UnsupportedError
from rankfold.training import report
from rankfold.training.loop import train
from rankfold.training.report import Bar, Lines, Reporter, reporter, summary, tensorboard_writer
from tests.training.runs import StopAfter, metrics, tiny, write_corpus


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


def test_a_run_is_silent_if_asked_to_be(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tiny(), data, tmp_path / "run", quiet=True)
    assert capfd.readouterr() == ("", "")


def test_lines_go_to_standard_error(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tiny(), data, tmp_path / "run", report=Lines())
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("lhmm, ")
    assert lines[0].endswith(" 20 words, 220 training tokens, on cpu")
    assert "the training text has no <unk>" in lines.pop(1)
    assert [line.split("  ")[0] for line in lines[1:-1]] == [f"update {i}/11" for i in (3, 4, 6, 8, 9, 11)]
    assert lines[-1].startswith("done: valid ")
    records = metrics(tmp_path / "run")
    assert f"train {records[0]['train_perplexity']:.2f}  rate {records[0]['lr']:.2e}" in lines[1]
    assert f"valid {records[1]['valid_perplexity']:.2f}  best so far" in lines[2]


def test_a_summary_has_what_is_there() -> None:
    assert summary({}) == ""
    assert summary({"train_perplexity": 2.0, "valid_perplexity": 3.456, "lr": 1e-3, "best": True}) == (
        "train 2.00  valid 3.46  rate 1.00e-03  best so far"
    )
    assert summary({"test_perplexity": float("inf"), "best": False, "update": 3}) == "test inf"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal of 120 columns, from here on: before a test, pytest has a stream of its own."""
    pytest.importorskip("rich")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_the_reporter_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    assert type(reporter()) is Bar
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rich", None)
        assert type(reporter()) is Lines
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(reporter()) is Lines


def test_a_bar_on_a_terminal(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen, bar = terminal(monkeypatch), Bar()
    bar.say("before the start")
    train(tiny(), data, tmp_path / "run", report=bar)
    text = screen.getvalue()
    assert text.startswith("before the start\n")
    for words in ("training", "11/11", "220 training tokens", "update 4/11", "update 11/11", "done: "):
        assert words in text
    assert "update 3/11" not in text  # between evaluations the bar is enough
    assert f"train {metrics(tmp_path / 'run')[-2]['train_perplexity']:.2f}" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is hidden, and shown again
    assert capfd.readouterr().out == ""
    bar.close()  # twice does no harm


def test_a_bar_gives_the_terminal_back_after_an_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal(monkeypatch)

    class Broken(Bar):
        def update(self, done: int, record: dict[str, Any]) -> None:
            super().update(done, record)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        train(tiny(), data, tmp_path / "run", report=Broken())
    assert screen.getvalue().count("\x1b[?25h") == 1


def test_a_resumed_bar_starts_where_the_run_was(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    train(tiny(), data, tmp_path / "run", report=StopAfter(4))
    bar = Bar()
    bar.start(4, 11)
    assert bar.progress.tasks[0].completed == 4
    bar.close()
    train(tiny(), data, tmp_path / "run", resume=True, report=Bar())
    assert " 3/11" not in screen.getvalue()


def test_a_bar_prints_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are ordinary letters: a folder may be called so."""
    screen = terminal(monkeypatch)
    bar = Bar()
    bar.start(0, 1)
    bar.say("in runs/[bold]x and runs/[/y]")
    bar.close()
    assert "in runs/[bold]x and runs/[/y]" in screen.getvalue()


def test_a_reporter_of_ones_own(data: Path, tmp_path: Path) -> None:
    class Noted(Reporter):
        calls: list[Any] = []  # noqa: RUF012

        def start(self, done: int, total: int) -> None:
            self.calls.append((done, total))

        def update(self, done: int, record: dict[str, Any]) -> None:
            self.calls.append(done)

        def close(self) -> None:
            self.calls.append("closed")

    train(tiny(), data, tmp_path / "run", report=Noted())
    assert Noted.calls == [(0, 11), *range(1, 12), "closed"]


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


@pytest.mark.usefixtures("no_tensorboard")
def test_without_tensorboard() -> None:
    with pytest.raises(UnsupportedError, match=r"TensorBoard is not installed(.|\n)*train.tensorboard=false"):
        tensorboard_writer()


@pytest.mark.usefixtures("no_tensorboard")
def test_without_tensorboard_there_is_no_work(data: Path, tmp_path: Path) -> None:
    """Who then leaves TensorBoard out can use the same folder: there is no run in it yet."""
    said = StopAfter(99)
    with pytest.raises(UnsupportedError, match="TensorBoard"):
        train(tiny(tensorboard=True, family="block", clusters="brown"), data, tmp_path / "run", report=said)
    assert said.said == []
    names = set(os.listdir(tmp_path / "run")) if (tmp_path / "run").exists() else set()
    assert names.isdisjoint({"recipe.toml", "metrics.jsonl", "checkpoint.safetensors"})
    assert train(tiny(), data, tmp_path / "run").finished


class Writer:
    """In the place of TensorBoard's."""

    made: list["Writer"]

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, 0
        self.scalars: list[tuple[str, float, int]] = []
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert not self.closed
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    Writer.made = []
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return Writer.made


def test_a_refused_run_opens_no_writer(data: Path, tmp_path: Path, writers: list[Writer]) -> None:
    with pytest.raises(UnsupportedError, match="cannot be trained"):
        train(tiny(tensorboard=True, memory=1e-6), data, tmp_path / "run")
    assert writers == []
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_the_numbers_of_the_metrics(data: Path, tmp_path: Path, writers: list[Writer]) -> None:
    train(tiny(tensorboard=True), data, tmp_path / "run")
    (writer,) = writers
    assert writer.folder == str(tmp_path / "run" / "tensorboard")
    expected = [
        (name, value, record["update"])
        for record in metrics(tmp_path / "run")
        for name, value in record.items()
        if isinstance(value, float)
    ]
    assert writer.scalars == expected
    assert len(expected) > 10
    assert writer.closed


def test_a_resumed_run_hides_what_it_writes_again_and_nothing_else(
    data: Path, tmp_path: Path, writers: list[Writer]
) -> None:
    """Steps from `purge_step` on are hidden; those of the last update are in the checkpoint, and come only once."""
    config = tiny(tensorboard=True)
    train(config, data, tmp_path / "run", report=StopAfter(4))
    train(config, data, tmp_path / "run", resume=True)
    shown = [point for point in writers[0].scalars if point[2] < writers[1].purge_step] + writers[1].scalars
    train(config, data, tmp_path / "plain")
    assert shown == writers[2].scalars


def test_an_interrupted_run_closes_its_writer(data: Path, tmp_path: Path, writers: list[Writer]) -> None:
    """Otherwise what the writer still holds is lost: it goes to disk every two minutes, or when it is closed."""
    train(tiny(tensorboard=True), data, tmp_path / "run", report=StopAfter(4))
    assert writers[0].closed


def test_the_module_says_nothing_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    silent = report.Reporter()
    silent.start(0, 1)
    silent.say("x")
    silent.update(1, {"train_perplexity": 1.0})
    silent.close()
    assert capfd.readouterr() == ("", "")
