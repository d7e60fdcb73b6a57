"""`rankfold predict`, as a new user would meet it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankfold import cli
from rankfold.models.config import Family
from tests.cli.test_language_models import FAMILIES, as_json, as_lines, said, save_model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", [(), ("the",), ("the cat", "ran", "<unk>")])
def test_probabilities(
    family: Family, text: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model", family)
    found = as_json(capsys, "predict", model, *text, "--top", "99")
    assert found["prefix"] == " ".join(text).split()
    shares = [entry["probability"] for entry in found["next"]]
    assert len(shares) == 10
    assert sum(shares) == pytest.approx(1, abs=1e-6)  # float32 parameters
    assert shares == sorted(shares, reverse=True)
    assert "<eos>" in [entry["word"] for entry in found["next"]]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model")
    lines = said(capsys, "predict", model, "the", "--top", "3").splitlines()
    expected = as_json(capsys, "predict", model, "the", "--top", "3")["next"]
    assert [line.split() for line in lines] == [[entry["word"], f"{entry['probability']:.6f}"] for entry in expected]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["the <eos>"], "token 2 is <eos>"),
        (["--top", "0"], "--top is 0"),
    ],
)
def test_mistakes_exit_2(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", str(save_model(tmp_path / "model")), *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_beginnings_from_a_pipe_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, lines = save_model(tmp_path / "model"), ["the cat", "", "a"]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    alone = [as_json(capsys, "predict", model, "--prefix", line, "--top", "3") for line in lines]
    assert as_lines(capsys, "predict", model, "--data", tmp_path / "text.txt", "--top", "3") == alone
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"the cat\n\na\n")))
    assert as_lines(capsys, "predict", model, "-", "--top", "3") == alone


def test_an_unknown_word_counts_as_unk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same rule as for the words of score, tag and parse, and told like there."""
    model = save_model(tmp_path / "model")
    expected = said(capsys, "predict", model, "the <unk>")
    assert cli.main(["predict", str(model), "the zebra"]) == 0
    captured = capsys.readouterr()
    assert captured.out == expected
    assert "counted as <unk>: 1, of them zebra (1)" in captured.err
