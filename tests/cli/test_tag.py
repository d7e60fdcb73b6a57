"""`rankfold tag`, as a new user would meet it."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rankfold import cli
from rankfold.cli.load import load_words
from rankfold.data.vocab import Vocabulary
from rankfold.models import HMM
from rankfold.models.config import Family
from tests.cli.test_language_models import FAMILIES, as_lines, said, save_model

LINES = "the cat sat away\nthe\na yak\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(LINES)
    return tmp_path / "text.txt"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["posterior", "viterbi"])
def test_each_sentence_as_if_alone(
    family: Family, method: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model(tmp_path / "model", family)
    found = as_lines(capsys, "tag", folder, "--data", text, "--method", method)
    model, vocabulary = load_words(folder)
    for line, entry in zip(LINES.splitlines(), found, strict=True):
        assert entry["words"] == line.split()
        assert entry["of"] == ("ranks" if family == "rank" else "states")
        query = model(torch.tensor([vocabulary.encode(line.split())]))
        alone = query.viterbi() if method == "viterbi" else query.mbr()
        assert entry["states"] == alone.path[0, :-1].tolist()


def test_the_likeliest_states_are_not_the_likeliest_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paths of "a a <eos>": 000 and 001 .15 each, 011 .3, 111 .4; by position 0 .6, then 1 .7."""
    start, transition = torch.tensor([0.6, 0.4]), torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    model = HMM.from_tables(start, transition, torch.full((2, 3), 1 / 3))
    model.vocabulary = Vocabulary.build([["a"]])
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("a a\n")
    arguments = ("tag", tmp_path / "model", "--data", tmp_path / "text.txt")
    assert said(capsys, *arguments) == said(capsys, *arguments, "--method", "posterior") == "a/0 a/1\n"
    assert said(capsys, *arguments, "--method", "viterbi") == "a/1 a/1\n"


def test_words_and_states_from_a_pipe(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model", "rank")
    entries = as_lines(capsys, "tag", model, "--data", text)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(LINES.encode())))
    assert cli.main(["tag", str(model)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        " ".join(f"{word}/{state}" for word, state in zip(entry["words"], entry["states"], strict=True))
        for entry in entries
    ]
    assert "the tags are ranks" in captured.err
    assert "counted as <unk>: 1, of them yak (1)" in captured.err


def test_empty_lines_keep_their_place(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    text.write_text("\nthe\n\na cat\n")
    found = as_lines(capsys, "tag", model, text)
    assert [entry["words"] for entry in found] == [[], ["the"], [], ["a", "cat"]]
    assert [len(entry["states"]) for entry in found] == [0, 1, 0, 2]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.read_bytes())))
    assert cli.main(["tag", str(model), "-"]) == 0
    out, err = capsys.readouterr()
    assert [len(line.split()) for line in out.split("\n")] == [0, 1, 0, 2, 0]
    assert "standard input: 2 empty lines stay empty" in err


@pytest.mark.parametrize("family", FAMILIES)
def test_the_k_best_paths_sum_the_end_out(
    family: Family, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against all paths of the sentence of two words, the state of <eos> summed out of each."""
    folder = save_model(tmp_path / "model", family)
    found = as_lines(capsys, "tag", folder, "--data", text, "--k", "7")
    model, vocabulary = load_words(folder)
    assert [entry["line"] for entry in found] == [1, 2, 3]
    words = found[2]["words"]
    query = model(torch.tensor([vocabulary.encode(words)]))
    every = query.k_best(10**4)
    summed: dict[tuple[int, ...], float] = {}
    for path, weight in zip(every.path[:, 0, :-1].tolist(), every.log_prob[:, 0].exp().tolist(), strict=True):
        if weight > 0:
            summed[tuple(path)] = summed.get(tuple(path), 0.0) + weight
    assert math.log(sum(summed.values())) == pytest.approx(float(query.log_prob().detach()), abs=1e-5)
    expected = sorted(summed.values(), reverse=True)[:7]
    best = found[2]["best"]
    assert [entry["log_prob"] for entry in best] == pytest.approx([math.log(x) for x in expected], abs=1e-5)
    for entry in best:
        assert math.log(summed[tuple(entry["states"])]) == pytest.approx(entry["log_prob"], abs=1e-5)
    lines = said(capsys, "tag", folder, "--data", text, "--k", "2").splitlines()
    number, log_prob, tags = lines[-2].split("\t")
    assert (number, log_prob) == ("3", f"{best[0]['log_prob']:.6f}")
    assert tags == " ".join(f"{word}/{state}" for word, state in zip(words, best[0]["states"], strict=True))


def test_k_is_refused_with_posteriors(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "model")
    assert cli.main(["tag", str(folder), str(text), "--k", "2", "--method", "posterior"]) == 2
    assert "Leave --method out" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["tag", str(folder), str(text), "--k", "0"])
    assert "'0' is no whole number of at least 1" in capsys.readouterr().err
