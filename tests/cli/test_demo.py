"""The demonstration: trains, compares with baselines, shows states and sentences, and never writes over a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankfold.analysis.bracketing import evaluate_brackets, left_branching, right_branching
from rankfold.analysis.ngrams import KneserNey
from rankfold.cli import demo, main
from rankfold.data.brackets import parse_tree, read_trees
from rankfold.data.demo import write_corpus, write_toy_corpus
from rankfold.training.recipes import load_recipe

TINY = ["model.num_states=8", "model.num_clusters=2", "model.dim=4", "train.updates=6", "train.evaluate_every=3"]
TINY += ["train.log_every=2", "data.tokens=40", "data.max_vocabulary=9"]
TEXT = {
    "train": "the cat sat\nthe dog sat down\na cat ran off\nthe bird ran\n" * 3,
    "valid": "the cat ran\na dog sat\n",
    "test": "the bird sat down\na cat ran\n",
}


@pytest.fixture(autouse=True)
def small_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for split, text in TEXT.items():
            (folder / f"{split}.txt").write_text(text)

    monkeypatch.setattr(demo, "write_corpus", write)


@pytest.fixture
def result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["demo", "--out", str(tmp_path), "--json", "--set", *TINY]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_baselines_are_of_the_same_split_and_vocabulary(result: dict[str, Any]) -> None:
    words = TEXT["train"].split()
    kept = {*sorted(set(words), key=lambda word: (-words.count(word), word))[:7], "<eos>"}  # and <unk>: nine
    counts = Counter(w if w in kept else "<unk>" for w in _with_ends("train"))
    test = [w if w in kept else "<unk>" for w in _with_ends("test")]
    expected = math.exp(-sum(math.log(counts[w] / counts.total()) for w in test) / len(test))
    assert result["perplexity"]["unigram"] == pytest.approx(expected, rel=1e-12)
    assert result["test_tokens"] == len(test)
    assert list(result["perplexity"]) == ["unigram", "Kneser-Ney, order 2", "Kneser-Ney, order 5", "block"]
    ids = {word: number for number, word in enumerate(sorted({*counts, "<unk>"}))}
    rows = {}
    for split in ("train", "test"):
        lines = [[*line.split(), "<eos>"] for line in TEXT[split].splitlines()]
        rows[split] = [[ids[word if word in kept else "<unk>"] for word in line] for line in lines]
    best = KneserNey.fit(rows["train"], len(ids), 5).perplexity(rows["test"])
    assert result["perplexity"]["Kneser-Ney, order 5"] == pytest.approx(best, rel=1e-12)


def _with_ends(split: str) -> list[str]:
    return [word for line in TEXT[split].splitlines() for word in [*line.split(), "<eos>"]]


def test_states_words_and_sentences_are_shown(result: dict[str, Any], tmp_path: Path) -> None:
    shares = [use["share"] for use in result["states"]]
    assert 0 < sum(shares) <= 1 + 1e-9
    assert shares == sorted(shares, reverse=True)
    assert len({use["words"][0] for use in result["states"]}) == len(shares) > 1
    words = {*_with_ends("train"), "<unk>"}
    assert all(set(use["words"]) <= words for use in result["states"])
    assert len(result["samples"]) == 5
    assert all(set(sentence.split()) <= words for sentence in result["samples"])
    assert Path(result["picture"]).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run-1" / "best" / "model.safetensors").exists()


def test_the_text_says_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--set", *TINY]) == 0
    out = capsys.readouterr().out
    for words in ("8 hidden states", "unigram", "Kneser-Ney, order 5", "(block)", "most used states", "sampled"):
        assert words in out
    assert str(tmp_path / "run-1" / "learning.png") in out
    assert out.splitlines()[-1] == f"explore it in a browser: {tmp_path / 'run-1' / 'explore.html'}"
    assert (tmp_path / "run-1" / "explore.html").read_text().startswith("<!doctype html")


def test_a_browser_is_opened_on_a_desktop_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    monkeypatch.setattr(demo.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    assert not demo.on_desktop()  # pytest reads the output
    monkeypatch.setattr(demo.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(demo.sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert demo.on_desktop()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not demo.on_desktop()
    monkeypatch.undo()
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    monkeypatch.setattr(demo, "on_desktop", lambda: True)
    page = str(tmp_path / "explore.html")
    monkeypatch.setattr(demo, "demo", lambda *_, **__: {"finished": True, "page": page})
    monkeypatch.setattr(demo, "_text", str)
    assert main(["demo", "--json"]) == 0
    assert opened == []
    assert main(["demo"]) == 0
    assert opened == [Path(page).as_uri()]


def test_a_second_demo_leaves_the_first_alone(tmp_path: Path) -> None:
    first, second = (demo.demo(tmp_path, settings=TINY) for _ in range(2))
    assert [Path(x["run"]).name for x in (first, second)] == ["run-1", "run-2"]
    assert first["perplexity"] == second["perplexity"]
    assert first["samples"] == second["samples"]


def test_the_demo_writes_over_no_text_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text('"""This is a module."""')
    monkeypatch.setattr(demo, "write_corpus", partial(write_corpus, source=source))
    for folder, options in (("corpus", []), ("toy-corpus", ["--grammar"])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.txt").write_text("my only copy\n")
        assert main(["demo", "--out", str(tmp_path), *options]) == 2
        assert "train.txt exists" in capsys.readouterr().err
        assert [path.read_text() for path in (tmp_path / folder).iterdir()] == ["my only copy\n"]


@pytest.mark.parametrize("family", ["lhmm", "rank"])
def test_other_families_of_words_are_shown_too(family: str, tmp_path: Path) -> None:
    found = demo.demo(tmp_path, settings=[*TINY, f"model.family={family}", "model.rank=4"])
    assert list(found["perplexity"])[-1] == family
    assert found["states"]


def test_families_without_states_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--set", "model.family=npcfg"]) == 2
    assert "model.family" in capsys.readouterr().err


def test_the_shipped_recipe_has_at_least_a_thousand_states() -> None:
    assert load_recipe("demo-text").model.num_states >= 1024


def test_a_grammar_is_induced_and_its_trees_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        write_toy_corpus(folder, num=60, num_held_out=12)

    monkeypatch.setattr(demo, "write_toy_corpus", write)
    settings = ["train.updates=4", "train.evaluate_every=2", "model.num_nonterminals=3", "model.num_preterminals=4"]
    assert main(["demo", "--grammar", "--out", str(tmp_path), "--json", "--set", *settings]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == min(found["valid_perplexity"], key=found["valid_perplexity"].get)
    assert [Path(run).name for run in found["valid_perplexity"]] == ["grammar-1", "grammar-2"]
    assert found["sentences"] == 12
    gold = read_trees(tmp_path / "toy-corpus" / "test.trees").trees
    expected = evaluate_brackets([right_branching(tree.words) for tree in gold], gold)
    assert found["right_branching"]["sentence_uf1"] == pytest.approx(expected.uf1.sentence)
    left = evaluate_brackets([left_branching(tree.words) for tree in gold], gold)
    assert found["left_branching"]["sentence_uf1"] == pytest.approx(left.uf1.sentence)
    assert 0 < found["random"]["sentence_uf1"] < 1
    assert all(Path(path).read_text().startswith("<svg") for path in found["pictures"])
    for trees in found["trees"]:
        assert parse_tree(trees["true"]).words == parse_tree(trees["induced"]).words
    text = demo.grammar_text(found)
    for name in ("induced grammar", "right-branching trees", "random trees", "left-branching trees"):
        assert name in text
    assert " ".join(parse_tree(found["trees"][0]["true"]).words) in text


@pytest.mark.slow
def test_the_demo_finds_the_trees(tmp_path: Path) -> None:
    found = demo.demo_grammar(tmp_path, settings=[])
    assert found["induced"]["sentence_uf1"] > 0.8
    assert found["right_branching"]["sentence_uf1"] < 0.7
    assert found["random"]["sentence_uf1"] < 0.5


@pytest.mark.slow
def test_the_demo_is_ahead_of_kneser_ney(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "write_corpus", write_corpus)
    found = demo.demo(tmp_path, settings=[])["perplexity"]
    assert found["block"] < found["Kneser-Ney, order 5"] < found["Kneser-Ney, order 2"] < found["unigram"]
