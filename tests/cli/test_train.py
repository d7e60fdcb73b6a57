"""`rankfold train`, as a new user would meet it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import rankfold
from rankfold import cli
from rankfold.cli.train import unread_settings
from rankfold.errors import DataError
from rankfold.training import report
from rankfold.training.recipes import load_recipe, recipe_groups, recipe_names
from rankfold.training.report import Lines
from rankfold.training.run_dir import RunDir
from tests.cli.test_language_models import as_json, said, write_corpus, write_recipe


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "tiny.toml")


def test_a_run_in_words(recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert cli.main(["train", "--recipe", str(recipe), "--data", str(data), "--out", str(run)]) == 0
    captured = capsys.readouterr()
    assert f"run                {run}\n" in captured.out
    assert "updates            3\n" in captured.out
    assert "over 15 tokens, <eos> counted" in captured.out
    assert "update 3/3" in captured.err
    assert "update 3/3" not in captured.out
    assert (run / "best" / "config.json").is_file()


def test_a_run_as_json(recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "test.txt").unlink()
    found = as_json(capsys, "train", "--recipe", recipe, "--data", data, "--out", tmp_path / "run")
    assert list(found) == [
        "run",
        "updates",
        "finished",
        "best_valid_perplexity",
        "test_perplexity",
        "test_tokens",
        "test_log_likelihood",
        "seconds",
    ]
    assert found["best_valid_perplexity"] > 1
    assert found["test_perplexity"] is None


def test_settings_change_the_recipe(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("--data", data, "--recipe", recipe)
    both = as_json(capsys, "train", *common, "--out", tmp_path / "a", "--set", "train.updates=1", "model.rank=2")
    apart = as_json(
        capsys, "train", *common, "--out", tmp_path / "b", "--set", "train.updates=1", "--set", "model.rank=2"
    )
    assert both["updates"] == apart["updates"] == 1
    assert both["best_valid_perplexity"] == apart["best_valid_perplexity"]
    assert "rank = 2\n" in (tmp_path / "a" / "recipe.toml").read_text()


def test_the_command_is_the_function(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = as_json(
        capsys, "train", "--recipe", recipe, "--data", data, "--out", tmp_path / "a", "--set", "model.rank=2"
    )
    result = rankfold.train(recipe, data, tmp_path / "b", settings=["model.rank=2"])
    config = load_recipe(recipe, ["model.rank=2"])
    again = rankfold.train(config, data, tmp_path / "c")
    assert result.best_valid == again.best_valid == said["best_valid_perplexity"]
    assert rankfold.load(tmp_path / "b").config == config.model
    assert rankfold.train(None, data, tmp_path / "c", resume=True).updates == said["updates"]
    with pytest.raises(DataError, match="settings change a recipe"):
        rankfold.train(config, data, tmp_path / "d", settings=["model.rank=3"])


@pytest.mark.parametrize(
    ("recipe", "settings", "notes"),
    [
        ("small-lhmm", ["model.band=3", "model.rank=2", "model.band=4"], ["model.band is read by banded alone: lhmm"]),
        ("small-npcfg", ["model.low_rank=[]", "model.rank=3"], ["model.low_rank is read by lpcfg", "model.rank is"]),
        ("small-lpcfg", ["model.low_rank=[]", "model.rank=3", "train.lr=0.1"], []),
        ("small-npcfg", [], []),  # it holds settings of the families beside it
    ],
)
def test_settings_that_the_family_does_not_read_are_noted(recipe: str, settings: list[str], notes: list[str]) -> None:
    found = unread_settings(settings, load_recipe(recipe, settings))
    assert len(found) == len(notes)
    assert all(note in line for note, line in zip(notes, found, strict=True))


class InterruptedAfterOne(Lines):
    """A person at the keyboard."""

    def update(self, done: int, record: dict[str, Any]) -> None:
        if done == 1:
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_and_resumed(
    recipe: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = as_json(capsys, "train", "--recipe", recipe, "--data", data, "--out", tmp_path / "whole")
    run = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr(report, "reporter", InterruptedAfterOne)
        arguments = ["train", "--recipe", str(recipe), "--data", str(data), "--out", str(run), "--json"]
        assert cli.main(arguments) == 130
    captured = capsys.readouterr()
    first = json.loads(captured.out)
    assert first["finished"] is False
    assert first["updates"] < 3
    assert f"rankfold train --resume --data {data} --out '{run}'" in captured.err
    if first["updates"] < 2:  # before the first evaluation
        assert first["best_valid_perplexity"] is None
    resumed = as_json(capsys, "train", "--resume", "--data", data, "--out", run)
    assert resumed["finished"] is True
    assert resumed["test_log_likelihood"] == whole["test_log_likelihood"]


def test_resuming_with_the_recipe_again(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["train", "--data", str(data), "--out", str(tmp_path / "run")]
    assert cli.main([*common, "--recipe", str(recipe)]) == 0
    assert cli.main([*common, "--recipe", str(recipe), "--resume"]) == 0
    assert cli.main([*common, "--recipe", str(recipe), "--resume", "--set", "model.rank=3"]) == 2
    assert "model.rank: 4 -> 3" in capsys.readouterr().err
    assert cli.main([*common, "--resume", "--set", "model.rank=3"]) == 2
    assert "model.rank: 4 -> 3" in capsys.readouterr().err


def test_the_list_of_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    for papers in (False, True):
        more = ["--all"] if papers else []
        groups = recipe_groups(papers=papers)
        described = {name: text for group in groups.values() for name, text in group.items()}
        lines = [line for line in said(capsys, "train", "--list", *more).splitlines() if line]
        assert [line for line in lines if not line.startswith("  ")] == list(groups)
        assert [line.split(maxsplit=1) for line in lines if line.startswith("  ")] == [*map(list, described.items())]
        assert as_json(capsys, "train", "--list", *more) == described
        assert papers == (sorted(described) == recipe_names())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recipe", "small-lhm"], "Did you mean small-lhmm?"),
        (["--all"], "--all goes with --list"),
        (["--recipe", "gone.toml"], "gone.toml: no such file"),
        (["--recipe", "tiny.toml", "--set", "model.num_state=4"], "Did you mean model.num_states?"),
        (["--recipe", "tiny.toml", "--set", "model.rank=many"], "model.rank is 'many', but a whole number"),
        (["--recipe", "tiny.toml", "--set", "rank"], "not of the form key=value"),
        (["--recipe", "wrong.toml"], "train.updates is '9', but a whole number"),
        (["--recipe", "tiny.toml", "--data", "gone"], "gone is missing"),
        (["--recipe", "tiny.toml", "--out", "tiny.toml"], "is a file, but a folder for the run was expected"),
        (["--recipe", "tiny.toml", "--out", "tiny.toml/run"], "cannot be made"),
        (["--resume"], "no such folder; the folder of a run"),
        (["--resume", "--out", "data"], "no run to go on with"),
    ],
)
def test_mistakes_exit_2(
    arguments: list[str],
    words: str,
    recipe: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text('[train]\nupdates = "9"\n')
    assert cli.main(["train", "--data", "data", "--out", "run", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("left_out", ["--data", "--out"])
def test_a_folder_left_out(left_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--recipe": "small-lhmm", "--data": "data", "--out": "run"}
    del given[left_out]
    assert cli.main(["train", *(word for pair in given.items() for word in pair)]) == 2
    assert "needs --data DIR and --out RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "the file is empty"), (b"a\nb\xff\n", "line 2: byte 2 is 0xff"), (b"\x00\x01", "NUL")],
    ids=["empty", "latin-1", "binary"],
)
def test_a_text_that_breaks_a_rule(
    content: bytes, words: str, recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "train.txt").write_bytes(content)
    assert cli.main(["train", "--recipe", str(recipe), "--data", str(data), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "train.txt" in error


@pytest.mark.parametrize("before", [False, True])
def test_a_refused_run_leaves_nothing(
    before: bool, recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "first"
    if before:
        run.mkdir(parents=True)
    sets = ["--set", "train.memory=1e-6"]
    assert cli.main(["train", "--recipe", str(recipe), "--data", str(data), "--out", str(run), *sets]) == 2
    assert "cannot be trained" in capsys.readouterr().err
    assert run.exists() == before
    assert not before or os.listdir(run) == []
    assert (tmp_path / "runs").exists() == before


def test_a_folder_that_is_taken(recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = ["train", "--recipe", str(recipe), "--data", str(data), "--out", str(run)]
    with RunDir.create(run):
        assert cli.main(arguments) == 2
    assert f"in use by pid {os.getpid()}" in capsys.readouterr().err
    run.mkdir()
    (run / "recipe.toml").write_text("kept")
    assert cli.main(arguments) == 2
    assert "go on with --resume, or give another --out" in capsys.readouterr().err
    assert (run / "recipe.toml").read_text() == "kept"
