"""`rankfold runs`, and runs that are extended or start from others, as a new user would meet them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rankfold import cli
from rankfold.data.frames import frames_of
from rankfold.models.config import FrameConfig
from rankfold.training.config import Config, TrainConfig
from rankfold.training.loop import train
from tests.cli.test_language_models import as_json, said, write_corpus, write_recipe

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and runs a and b."""
    folder = tmp_path_factory.mktemp("runs")
    data, recipe = write_corpus(folder / "data"), write_recipe(folder / "tiny.toml")
    train(recipe, data, folder / "a", quiet=True)
    train(recipe, data, folder / "b", settings=["model.num_states=9", "train.updates=5"], quiet=True)
    return folder


def test_tables(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    settings, results = said(capsys, "runs", "a", "b").split("\n\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in settings.splitlines()]
    assert cells[0] == ["setting", "a", "b"]
    assert cells[2:] == [["model.num_states", "6", "9"], ["train.updates", "3", "5"]]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in results.splitlines()]
    found = as_json(capsys, "runs", "a", "b")
    assert [row[0] for row in cells[2:]] == [
        "updates",
        "best valid perplexity",
        "at update",
        "test perplexity",
        "seconds",
    ]
    assert cells[2][1:] == ["3", "5"]
    assert cells[3][1:] == [f"{x['best_valid_perplexity']:,.3f}" for x in found["results"]]


def test_the_numbers_are_those_of_the_metrics(folder: Path, capsys: Captured) -> None:
    found = as_json(capsys, "runs", folder / "a", folder / "b")
    assert found["same_data"] is True
    assert found["settings"] == {"model.num_states": [6, 9], "train.updates": [3, 5]}
    for name, result, curve in zip("ab", found["results"], found["curves"], strict=True):
        records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        assert curve == [[x["update"], x["valid_perplexity"]] for x in records if "valid_perplexity" in x]
        assert result["best_valid_perplexity"] == min(value for _, value in curve)
        assert [result["best_update"], result["best_valid_perplexity"]] in curve
        assert result["test_perplexity"] == records[-1]["test_perplexity"]
        assert result["finished"] is True


def test_one_run_is_compared_with_none(folder: Path, capsys: Captured) -> None:
    assert cli.main(["runs", str(folder / "a")]) == 0
    out = capsys.readouterr().out
    assert "one run: give others" in out
    assert "the same" not in out


def test_a_run_that_is_going_on_and_other_data(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    other = shutil.copytree(folder / "a", tmp_path / "other")
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:1]))
    (other / "data.json").write_text('{"fingerprint": "another"}\n')
    assert cli.main(["runs", str(folder / "a"), str(other)]) == 0
    out, err = capsys.readouterr()
    assert "the settings are the same" in out
    assert "1 of 3" in out
    assert "| best valid perplexity" in out
    assert "the runs are of different data" in err


def test_the_picture(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(folder / "a", tmp_path / "new")
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    runs = [str(folder / "a"), str(folder / "b"), str(tmp_path / "new")]
    assert cli.main(["runs", *runs, "--plot", str(tmp_path / "runs.png")]) == 0
    assert "new: no evaluation yet, and no curve" in capsys.readouterr().err
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    a = str(folder / "a")
    frames = Config(
        model=FrameConfig(family="frame_hmm", num_states=2, neural=False),
        train=TrainConfig(optimizer="em", updates=1, evaluate_every=1, device="cpu"),
    )
    train(frames, frames_of([[[0.0], [1.0], [0.5]]]), tmp_path / "frames", quiet=True)
    (tmp_path / "mine.png").write_text("mine")
    for arguments, words in (
        ([a, a], "is the same run as"),
        ([a, str(tmp_path / "none")], "none: no such folder; the folder of a run was expected"),
        ([a, str(folder / "data")], "data: holds no recipe.toml, so it is no run"),
        ([a, "--plot", str(tmp_path / "mine.png")], "mine.png exists and is not a picture"),
        ([a, str(tmp_path / "frames"), "--plot", str(tmp_path / "x.png")], "some of words and some of frames"),
    ):
        assert cli.main(["runs", *arguments]) == 2, arguments
        out, err = capsys.readouterr()
        assert words in err
        assert out == ""
    table = said(capsys, "runs", a, tmp_path / "frames")
    assert "best valid nats per frame" in table
    assert "best valid perplexity" in table


def test_extended_by_the_command(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    run = shutil.copytree(folder / "a", tmp_path / "run")
    arguments = ["train", "--resume", "--data", str(folder / "data"), "--out", str(run), "--json"]
    assert cli.main([*arguments, "--set", "train.updates=7"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["updates"] == 7
    assert "extended from 3 to 7 updates, after update 3" in err
    assert cli.main([*arguments, "--set", "train.updates=4"]) == 2
    assert "it can be extended, not cut" in capsys.readouterr().err


def test_started_from_another_by_the_command(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    data, out = str(folder / "data"), str(tmp_path / "run")
    assert cli.main(["train", "--init-from", str(folder / "a"), "--data", data, "--out", out, "--device", "cpu"]) == 0
    assert f"parameters of {folder / 'a'}" in capsys.readouterr().err
    assert cli.main(["train", "--init-from", str(folder / "b"), "--resume", "--data", data, "--out", out]) == 2
    assert "give --resume or --init-from" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["train", "--device", "mps", "--data", data, "--out", out])
    assert "which torch has not on mps" in capsys.readouterr().err
