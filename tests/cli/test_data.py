"""`rankfold data`, as a new user would meet it."""

import hashlib
import json
import time
from pathlib import Path

import pytest

from rankfold import cli
from rankfold.data.catalog import DATASETS, Dataset, File
from rankfold.data.prepare import Megabytes

TEXT = b"a b c\n" * 100_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the dataset `tiny`."""
    source = tmp_path / "local"
    source.mkdir()
    digest = hashlib.sha256(TEXT).hexdigest()
    files = tuple(
        File(split, f"http://127.0.0.1:9/{split}.txt", digest, len(TEXT), 100_000, 300_000)
        for split in ("train", "valid", "test")
    )
    for file in files:
        (source / f"{file.split}.txt").write_bytes(TEXT)
    monkeypatch.setitem(DATASETS, "tiny", Dataset("tiny", "A tiny text.", "Yours to keep.", files))
    return source


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list"]) == 0
    captured = capsys.readouterr()
    assert "ptb-lm (6.0 MB)" in captured.out
    assert "42,068 sentences     887,521 words" in captured.out
    assert "research use only" in captured.out
    assert "CC BY-SA 3.0" in captured.out
    assert "jsb-chorales       382 pieces      23,134 frames" in captured.out
    assert "not downloaded: give --from FOLDER" in captured.out
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 100


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"ptb-lm", "wikitext-2", "music"}
    assert found["ptb-lm"]["files"][0]["split"] == "train"
    assert found["ptb-lm"]["files"][0]["num_bytes"] == 5_101_618


def test_get(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["data", "get", "tiny", "--out", str(out), "--from", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"train  copied         {out / 'train.txt'}",
        f"valid  copied         {out / 'valid.txt'}",
        f"test   copied         {out / 'test.txt'}",
    ]
    assert "licence: Yours to keep." in captured.err
    progress = [line for line in captured.err.splitlines() if "train.txt: " in line]
    assert progress[-1] == "  train.txt: 600,000 of 600,000 bytes"
    assert 2 <= len(progress) <= 5
    assert (out / "train.txt").read_bytes() == TEXT


def test_get_again_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "get", "tiny", "--out", str(tmp_path / "out"), "--from", str(folder), "--json"]
    assert cli.main(arguments) == cli.main(arguments) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["test"] == {"path": str(tmp_path / "out" / "test.txt"), "action": "copied"}
    assert second["test"]["action"] == "already there"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ptb", "--out", "out"], "'ptb' is not a dataset"),
        (["tiny", "--out", "out", "--from", "gone"], "gone is missing"),
        (["tiny", "--out", "out", "--from", "ftp://gone"], "not ftp://"),
        (["tiny", "--out", "local/train.txt", "--from", "local"], "cannot be made a folder"),
    ],
)
def test_mistakes_exit_2(
    arguments: list[str], words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert cli.main(["data", "get", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert [path.name for path in folder.parent.iterdir()] == ["local"]


@pytest.mark.parametrize("arguments", [[], ["dance"], ["get"], ["get", "tiny"]])
def test_missing_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", *arguments])
    assert stop.value.code == 2
    assert "usage: rankfold data" in capsys.readouterr().err


@pytest.mark.parametrize("action", [[], ["list"], ["get"]])
def test_help_ends_with_an_example(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["data", *action, "--help"])
    assert stop.value.code == 0
    assert "example:\n  rankfold data" in capsys.readouterr().out


def book(folder: Path) -> Path:
    path = folder / "book.txt"
    path.write_text("".join(f"The cat sat on mat {i}.\n\n" for i in range(60)))
    return path


def test_prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["data", "prepare", str(book(tmp_path)), "--out", str(out), "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "read       1 file, 1,430 bytes, 120 lines (60 empty), 60 documents",
        "layout     lines",
        "tokenizer  simple, 66 types",
        "split      by document (parted by blank lines), seed 3",
        "              sentences        tokens",
        "  train              54           378",
        "  valid               3            21",
        "  test                3            21",
    ]
    assert f"rankfold train --data {out}" in captured.err
    assert (out / "train.txt").read_text().splitlines()[0].startswith("The cat sat on mat ")


def test_prepare_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "prepare", str(book(tmp_path)), "--out", str(tmp_path / "out"), "--json"]
    assert cli.main([*arguments, "--tokenizer", "characters", "--split", "line", "--layout", "lines"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tokenizer"], found["split_by"], found["sentences"]["train"]) == ("characters", "line", 54)


def test_prepare_refuses_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9\n")
    assert cli.main(["data", "prepare", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "line 1: byte 4 of the file is 0xe9" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_progress_is_told_now_and_then() -> None:
    said: list[str] = []
    progress = Megabytes("read", said.append, every=0.0)
    progress(1_000_000)
    time.sleep(0.001)
    progress(12_000_000)
    assert len(said) == 1
    assert said[0].startswith("read 12 MB, ")
    progress(500_000)  # from the start again: no rate yet
    assert len(said) == 1
    slow = Megabytes("read", said.append)
    slow(1)
    slow(2)
    assert len(said) == 1
