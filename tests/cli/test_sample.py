"""`rankfold sample`, as a new user would meet it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rankfold import cli
from rankfold.cli.load import load_words
from rankfold.models.strings import generate, seeded
from tests.cli.test_language_models import FAMILIES, as_json, said, save_model
from tests.cli.test_states import HEBREW, odd_model


def test_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model")
    first = said(capsys, "sample", model)
    assert first.count("\n") == 5
    assert said(capsys, "sample", model) == first
    assert said(capsys, "sample", model, "--seed", "2") != first
    assert "<eos>" not in first
    found = as_json(capsys, "sample", model)
    assert [" ".join(sentence["words"]) for sentence in found["sentences"]] == first.splitlines()


def test_control_characters_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "sample", odd_model(tmp_path / "model"), "--num", "30")
    assert "a\\x1b[31mred" in text
    assert "\x1b" not in text
    assert HEBREW in text


def test_a_prefix_is_shown_and_long_sentences_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model")
    arguments = ["sample", str(model), "--prefix", "the cat", "--max-length", "2", "--num", "20"]
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    assert all(line[:2] == ["the", "cat"] for line in lines)
    cut = sum(len(line) == 4 for line in lines)
    assert 0 < cut < 20
    assert f"cut at --max-length 2: {cut} of 20 sentences" in captured.err
    assert [sentence["ended"] for sentence in as_json(capsys, *arguments)["sentences"]].count(False) == cut


@pytest.mark.parametrize("family", FAMILIES)
def test_words_come_as_often_as_predicted(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "model", family)
    model, _ = load_words(folder)
    drawn = generate(model, 4000, prefix=["the"], max_length=1, generator=seeded(model, 1))
    counts = Counter(sentence.words[1] if len(sentence.words) > 1 else "<eos>" for sentence in drawn)
    for entry in as_json(capsys, "predict", folder, "the", "--top", "99")["next"]:
        share = entry["probability"]
        deviation = (share * (1 - share) / 4000) ** 0.5
        assert abs(counts[entry["word"]] / 4000 - share) < 5 * deviation


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prefix", "the <eos>"], "token 2 is <eos>"),
        (["--num", "0"], "must be at least 1"),
        (["--max-length", "0"], "must be at least 1"),
        (["--seed", "-1"], "seed is -1"),
        (["--temperature", "0"], "top_k = 1"),
        (["--top-k", "0"], "top_k is 0"),
    ],
)
def test_mistakes_exit_2(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sample", str(save_model(tmp_path / "model")), *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_an_unknown_word_of_the_prefix_counts_as_unk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown as it was given."""
    model = save_model(tmp_path / "model")
    expected = said(capsys, "sample", model, "--prefix", "the <unk>")
    assert cli.main(["sample", str(model), "--prefix", "the zebra"]) == 0
    captured = capsys.readouterr()
    assert captured.out.replace("the zebra", "the <unk>") == expected
    assert "counted as <unk>: 1, of them zebra (1)" in captured.err


def test_words_are_chosen_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an HMM; the distributions themselves are tests/decoding/test_generate.py's."""
    folder = save_model(tmp_path / "model")
    plain = said(capsys, "sample", folder, "--num", "30", "--max-length", "6")
    assert "<unk>" in plain
    assert "<unk>" not in said(capsys, "sample", folder, "--num", "30", "--max-length", "6", "--no-unk")
    assert said(capsys, "sample", folder, "--num", "30", "--max-length", "6", "--temperature", "1.0") == plain
    likeliest = as_json(capsys, "predict", folder, "--top", "2")["next"]
    first = {
        line.split()[0]
        for line in said(capsys, "sample", folder, "--num", "30", "--max-length", "6", "--top-k", "2").splitlines()
    }
    assert first == {entry["word"] for entry in likeliest}
    cold = said(capsys, "sample", folder, "--num", "20", "--temperature", "0.001", "--max-length", "4")
    assert len(set(cold.splitlines())) == 1
    model, _ = load_words(folder)
    drawn = model.generate(4, max_length=6, temperature=0.8, top_k=3, no_unk=True, seed=9)
    options = ["--temperature", "0.8", "--top-k", "3", "--no-unk"]
    assert (
        said(capsys, "sample", folder, "--num", "4", "--max-length", "6", "--seed", "9", *options).splitlines() == drawn
    )
