"""Strings in, strings out: what a model with a vocabulary answers is what the commands print."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rankfold
from rankfold import DataError, DomainError, UnsupportedError
from rankfold.data.tokenize import Tokenizer
from rankfold.data.vocab import Vocabulary
from rankfold.models import HMM, build_model
from rankfold.models.config import FrameConfig
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import FAMILIES, as_json, as_lines, said, save_model

LINES = ["the cat sat", "", "a zebra ran away", "  the  "]


@pytest.mark.parametrize("family", [*FAMILIES, "rankpcfg", "cpcfg"])
def test_scores_are_those_of_the_command(family: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "m", family) if "pcfg" in family else save_model(tmp_path / "m", family)
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    model = rankfold.load(folder)
    expected = [entry["log_prob"] for entry in as_lines(capsys, "score", folder, tmp_path / "text.txt")]
    found = model.score(LINES)
    assert [None if x == -math.inf else x for x in found] == expected  # JSON has no infinity
    assert found[1] is None
    alone = [model.score(line) for line in LINES if line]
    assert alone == pytest.approx([x for x in found if x is not None], rel=1e-6)  # other batches round differently
    assert model.score([line.split() for line in LINES]) == found


def test_score_against_every_path(tmp_path: Path) -> None:
    """Word by word in plain Python, by the tables of an HMM."""
    start, transition = [0.2, 0.8], [[0.5, 0.5], [0.1, 0.9]]
    emission = [[0.1, 0.3, 0.6, 0.0], [0.2, 0.2, 0.1, 0.5]]
    model = HMM.from_tables(*(torch.tensor(x, dtype=torch.float64) for x in (start, transition, emission)))
    model.vocabulary = Vocabulary(("<unk>", "<eos>", "a", "b"), (1, 1, 1, 1))
    for text, ids in (("a b", [2, 3, 1]), ("b yak a", [3, 0, 2, 1]), ("<unk>", [0, 1])):
        total = 0.0
        for path in itertools.product((0, 1), repeat=len(ids)):
            weight = start[path[0]] * emission[path[0]][ids[0]]
            for t in range(1, len(ids)):
                weight *= transition[path[t - 1]][path[t]] * emission[path[t]][ids[t]]
            total += weight
        assert model.score(text) == pytest.approx(math.log(total), rel=1e-12)


def test_the_beginning_of_a_sentence(tmp_path: Path) -> None:
    model = rankfold.load(save_model(tmp_path / "m"))
    whole = model.score("the cat", end=False) + math.log(dict(model.predict("the cat", top=99))["<eos>"])
    assert model.score("the cat") == pytest.approx(whole, rel=1e-6)
    with pytest.raises(UnsupportedError, match="have no <eos>"):
        rankfold.load(saved(tmp_path / "g")).score("the cat", end=False)


@pytest.mark.parametrize("text", ["", "the cat", "the zebra"])
def test_next_words_are_those_of_the_command(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (save_model(tmp_path / "m"), saved(tmp_path / "g")):
        expected = as_json(capsys, "predict", folder, "--prefix", text, "--top", "4")["next"]
        found = rankfold.load(folder).predict(text, top=4)
        assert found == [(entry["word"], entry["probability"]) for entry in expected]


def test_sentences_are_those_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, grammar = save_model(tmp_path / "m"), saved(tmp_path / "g")
    model = rankfold.load(folder)
    printed = said(capsys, "sample", folder, "--num", "3", "--prefix", "the cat", "--seed", "7").splitlines()
    assert model.generate(3, prefix="the cat", seed=7) == printed
    printed = said(capsys, "sample", grammar, "--num", "3", "--max-length", "8", "--seed", "7").splitlines()
    assert rankfold.load(grammar).generate(3, max_length=8, seed=7) == printed
    state = torch.get_rng_state()
    assert len({tuple(model.generate(5)) for _ in range(3)}) > 1  # new ones each time
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["posterior", "viterbi"])
def test_tags_are_those_of_the_command(method: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "m")
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    found = rankfold.load(folder).tag(LINES, method=method)
    lines = said(capsys, "tag", folder, tmp_path / "text.txt", "--method", method).splitlines()
    assert [" ".join(f"{word}/{state}" for word, state in row) for row in found] == lines
    assert rankfold.load(folder).tag("the cat sat", method=method) == found[0]


@pytest.mark.parametrize("decode", ["mbr", "viterbi"])
def test_trees_are_those_of_the_command(decode: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "g")
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    found = rankfold.load(folder).parse(LINES, decode=decode, labels=True)
    lines = said(capsys, "parse", folder, tmp_path / "text.txt", "--decode", decode, "--labels").splitlines()
    assert ["" if tree is None else str(tree) for tree in found] == lines
    assert str(rankfold.load(folder).parse("the cat sat", decode=decode, labels=True)) == lines[0]


def test_strings_are_cut_as_the_training_text_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = rankfold.load(save_model(tmp_path / "m", text="the cat , sat .\n<unk> the dog ran .\n"))
    assert model.vocabulary is not None
    model.vocabulary = dataclasses.replace(model.vocabulary, tokenizer=Tokenizer("simple"))
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "text.txt").write_text("the cat, sat.\n")
    (expected,) = as_lines(capsys, "score", tmp_path / "m", tmp_path / "text.txt")
    assert expected["tokens"] == 6
    assert model.score("the cat, sat.") == expected["log_prob"]
    assert model.score([["the", "cat", ",", "sat", "."]]) == [expected["log_prob"]]
    assert [word for word, _ in model.tag("the cat, sat.")] == ["the", "cat", ",", "sat", "."]
    printed = said(capsys, "sample", tmp_path / "m", "--num", "9").splitlines()
    assert model.generate(9, seed=1) == printed
    assert any("." in line for line in printed)
    assert all(" ." not in line for line in printed)


def test_no_sentences_and_ends_of_lines(tmp_path: Path) -> None:
    model = rankfold.load(save_model(tmp_path / "m"))
    assert model.score([]) == []
    assert model.score("") is None
    assert model.tag("") == []
    assert rankfold.load(saved(tmp_path / "g")).parse(" ") is None
    assert model.score("the cat\n") == model.score("the cat")  # a line of a file


def test_mistakes(tmp_path: Path) -> None:
    model, grammar = rankfold.load(save_model(tmp_path / "m")), rankfold.load(saved(tmp_path / "g"))
    cases: list[tuple[type[ValueError], str, Any]] = [
        (UnsupportedError, "is a Tensor, but a string", lambda: model.score(torch.zeros(1))),
        (DataError, "sentence 2 is 3", lambda: model.score(["the", 3])),
        (DataError, r"splitlines\(\)", lambda: model.score("the cat\nthe dog")),
        (DataError, "sentence 2: token 1 is <eos>", lambda: model.score(["the", "<eos>"])),
        (DomainError, "top is 0", lambda: model.predict("the", top=0)),
        (DataError, "token 2 is <eos>", lambda: model.predict("the <eos>")),
        (DomainError, "num is 0", lambda: model.generate(0)),
        (DomainError, "seed is -1", lambda: model.generate(1, seed=-1)),
        (DomainError, "method is 'best'", lambda: model.tag("the", method="best")),
        (UnsupportedError, "for models of sequences", lambda: grammar.tag("the cat")),
        (UnsupportedError, '"lhmm", which has none', lambda: model.parse("the cat")),
        (DomainError, "decode is 'best'", lambda: grammar.parse("the cat", decode="best")),
        (DataError, r"word 2 is '\('", lambda: grammar.parse("the ( cat")),
        (UnsupportedError, "makes a sentence from its root", lambda: grammar.generate(1, prefix="the")),
    ]
    for kind, words, ask in cases:
        with pytest.raises(kind, match=words):
            ask()


def test_a_model_without_words(tmp_path: Path) -> None:
    model: Any = rankfold.load(save_model(tmp_path / "m", named=False))
    frames: Any = build_model(FrameConfig(family="frame_hmm", num_states=2, num_features=3), 3)
    for ask in ("score", "predict", "tag", "parse"):
        with pytest.raises(UnsupportedError, match=f"{ask} is asked of words, but this model has no vocabulary"):
            getattr(model, ask)("the cat")
        with pytest.raises(UnsupportedError, match=f"{ask} is asked of words, but .* models of frames"):
            getattr(frames, ask)("the cat")
    with pytest.raises(UnsupportedError, match="generate is asked of words"):
        model.generate(3)


def test_a_vocabulary_of_another_kind(tmp_path: Path) -> None:
    model = rankfold.load(saved(tmp_path / "g"))
    model.vocabulary = Vocabulary.build([["the", "cat"]])
    with pytest.raises(DataError, match="the vocabulary has <eos>, but a grammar"):
        model.score("the cat")
