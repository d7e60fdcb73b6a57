"""`rankfold score`, as a new user would meet it."""

from __future__ import annotations

import gzip
import io
import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from rankfold import cli
from rankfold.cli.load import load_words
from rankfold.models.config import Family
from rankfold.models.strings import score
from tests.cli.test_language_models import FAMILIES, as_lines, said, save_model

TOY = "a b\nb c a\n<unk> c\n"


class Piped:
    """What sys.stdin is where bytes are piped in."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_lines_in_order_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    monkeypatch.setattr(sys, "stdin", Piped(b"the cat sat away\nthe\n  a  dog\r\n"))
    lines = said(capsys, "score", model).splitlines()
    assert [line.split("\t")[1] for line in lines] == ["the cat sat away", "the", "  a  dog"]
    text = tmp_path / "text.txt"
    text.write_text("the cat sat away\nthe\n  a  dog\n")
    found = as_lines(capsys, "score", model, "--data", text)
    assert [entry["tokens"] for entry in found] == [5, 2, 3]
    assert [f"{entry['log_prob']:.6f}" for entry in found] == [line.split("\t")[0] for line in lines]


# Float32 loses the spacing of numbers as large as the logits, so they are kept near 1 there.
@pytest.mark.parametrize(("dtype", "spread", "atol"), [(torch.float32, 1.0, 1e-6), (torch.float64, 2.0, 1e-12)])
@pytest.mark.parametrize("family", FAMILIES)
def test_strings_of_one_length_sum_to_1(
    family: Family, dtype: torch.dtype, spread: float, atol: float, tmp_path: Path
) -> None:
    model, vocabulary = load_words(save_model(tmp_path / "model", family, TOY, spread=spread, dtype=dtype))
    assert len(vocabulary) == 5
    for length in (1, 2, 3):
        strings = list(itertools.product(vocabulary.words, repeat=length))
        found = score(model, strings, end=False)
        assert sum(math.exp(entry.log_prob) for entry in found) == pytest.approx(1, abs=atol)
        assert {entry.tokens for entry in found} == {length}


def test_the_end_of_a_sentence_is_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence is its words and then <eos>, however it is asked for."""
    model, text, with_end = save_model(tmp_path / "model"), tmp_path / "text.txt.gz", tmp_path / "with-end.txt"
    text.write_bytes(gzip.compress(b"the cat\na dog ran\n", mtime=0))
    with_end.write_text("the cat <eos>\na dog ran <eos>\n")
    whole = as_lines(capsys, "score", model, "--data", text)
    spelt = as_lines(capsys, "score", model, "--data", with_end, "--no-eos")
    begun = as_lines(capsys, "score", model, "--data", text, "--no-eos")
    assert [entry["log_prob"] for entry in whole] == pytest.approx([entry["log_prob"] for entry in spelt], abs=1e-9)
    assert [entry["tokens"] for entry in begun] == [2, 3]
    assert all(x["log_prob"] > y["log_prob"] for x, y in zip(begun, whole, strict=True))


def test_unknown_words_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the yak saw the yak\na gnu\nthe <unk>\n")
    trained = save_model(tmp_path / "trained")
    assert cli.main(["score", str(trained), "--data", str(text), "--json"]) == 0
    captured = capsys.readouterr()
    assert '"unknown": 2' in captured.out.splitlines()[0]
    assert '"unknown": 0' in captured.out.splitlines()[2]
    assert "counted as <unk>: 3, of them yak (2), gnu (1)" in captured.err
    assert "no trained probability" not in captured.err
    bare = save_model(tmp_path / "bare", text="the cat saw a dog\n")
    assert cli.main(["score", str(bare), "--data", str(text)]) == 0
    assert "unknown words have no trained probability" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "standard input: empty"),
        (b"\n \n", "standard input: 2 lines, all of them empty"),
        (b"the\n\xff\n", "standard input, line 2: byte 1 is 0xff"),
        (b"the\n\x00\n", "standard input, line 2: byte 1 is NUL"),
        (b"a" * 1_000_001, "standard input, line 1: more than 1,000,000 bytes long"),
        (b"the cat\nthe <eos>\n", "standard input, line 2: token 2 is <eos>"),
    ],
    ids=["empty", "empty-lines", "latin-1", "binary", "1-MB-line", "eos"],
)
def test_a_pipe_that_breaks_a_rule(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(content))
    assert cli.main(["score", str(save_model(tmp_path / "model"))]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("extra", [[], ["--no-eos"]])
def test_empty_lines_keep_their_place(
    extra: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, content = save_model(tmp_path / "model"), b"the cat\n\nthe\n  \n"
    (tmp_path / "text.txt").write_bytes(content)
    monkeypatch.setattr(sys, "stdin", Piped(content))
    assert cli.main(["score", str(model), "-", *extra]) == 0
    out, err = capsys.readouterr()
    assert "standard input: 2 empty lines stay empty" in err
    assert [line.partition("\t")[2] for line in out.split("\n")] == ["the cat", "", "the", "", ""]
    found = as_lines(capsys, "score", model, tmp_path / "text.txt", *extra)
    assert [(x["line"], x["log_prob"] is None, x["tokens"] == 0) for x in found] == [
        ("the cat", False, False),
        ("", True, True),
        ("the", False, False),
        ("  ", True, True),
    ]
    assert found == as_lines(capsys, "score", model, "--data", tmp_path / "text.txt", *extra)


@pytest.mark.parametrize("command", ["score", "tag", "evaluate"])
def test_a_text_given_twice(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(save_model(tmp_path / "model")), "a.txt", "--data", "b.txt"]) == 2
    assert "the text is given twice: as a.txt and as --data b.txt" in capsys.readouterr().err


def test_damaged_gzip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress(b"the cat\n" * 999, mtime=0)[:-9])
    for extra in ([], ["--no-eos"]):
        assert cli.main(["score", str(save_model(tmp_path / "model")), "--data", str(text), *extra]) == 2
        assert "gzip data is damaged" in capsys.readouterr().err
