"""`rankfold evaluate --baselines`: n-grams of the same text, the same words, the same denominator."""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rankfold import cli
from rankfold.analysis.ngrams import KneserNey, Unigram
from rankfold.cli.load import load_words
from tests.cli.test_language_models import OTHER, TEXT, as_json, save_model, write_corpus, write_recipe

Captured = pytest.CaptureFixture[str]
NAMES = ["unigram", *(f"Kneser-Ney, order {order}" for order in (2, 3, 4, 5))]


@pytest.fixture
def run(tmp_path: Path, capsys: Captured) -> Path:
    """A run of three updates on `tmp_path / "data"`."""
    recipe = write_recipe(tmp_path / "tiny.toml")
    as_json(capsys, "train", "--recipe", recipe, "--data", write_corpus(tmp_path / "data"), "--out", tmp_path / "run")
    return tmp_path / "run"


def encoded(folder: Path, text: str) -> list[list[int]]:
    _, vocabulary = load_words(folder)
    return [vocabulary.encode(line.split()) for line in text.splitlines()]


def test_same_text_same_words_same_denominator(run: Path, capsys: Captured) -> None:
    found = as_json(capsys, "evaluate", run, "--baselines")
    train, test = encoded(run, TEXT), encoded(run, OTHER)
    num_words = len(load_words(run)[1])
    models = found["baselines"]["models"]
    assert list(models) == NAMES
    truth = {"unigram": Unigram.fit(train, num_words).log_likelihood(test)}
    truth |= {
        name: KneserNey.fit(train, num_words, order).log_likelihood(test) for order, name in enumerate(NAMES[1:], 2)
    }
    for name, value in truth.items():
        assert models[name]["log_likelihood"] == value
        assert models[name]["perplexity"] == pytest.approx(math.exp(-value / found["tokens"]), rel=1e-12)
    assert found["tokens"] == 15
    assert found["baselines"]["train_tokens"] == sum(map(len, train))
    without = as_json(capsys, "evaluate", run, run.parent / "data")
    assert {name: value for name, value in found.items() if name != "baselines"} == without


def test_any_split_and_any_text(run: Path, tmp_path: Path, capsys: Captured) -> None:
    assert as_json(capsys, "evaluate", run, "--baselines", "--split", "valid")["sentences"] == 5
    (tmp_path / "more.txt").write_text("the dog sat\n")
    found = as_json(capsys, "evaluate", run, tmp_path / "more.txt", "--baselines")
    train, test = encoded(run, TEXT), encoded(run, "the dog sat")
    num_words = len(load_words(run)[1])
    assert found["baselines"]["models"][NAMES[4]]["log_likelihood"] == KneserNey.fit(
        train, num_words, 5
    ).log_likelihood(test)


def test_the_table_for_a_person_has_the_best_last(run: Path, capsys: Captured) -> None:
    assert cli.main(["evaluate", str(run), "--baselines"]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^\| (\S.*?) +\| +([\d.]+) \| +([\d.]+) \|$", out, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted([*NAMES, "lhmm, this model"])
    perplexities = [float(perplexity) for _, perplexity, _ in rows]
    assert perplexities == sorted(perplexities, reverse=True)
    assert float(re.search(r"^perplexity +([\d.]+)", out)[1]) == pytest.approx(
        float({name: value for name, value, _ in rows}["lhmm, this model"]), abs=0.01
    )
    assert str(run.parent / "data") in out


def test_streams_see_across_the_ends_of_sentences(run: Path, capsys: Captured) -> None:
    found = as_json(capsys, "evaluate", run, "--baselines", "--protocol", "streams")
    train, test = ([list(chain.from_iterable(encoded(run, text)))] for text in (TEXT, OTHER))
    num_words = len(load_words(run)[1])
    truth = KneserNey.fit(train, num_words, 3).log_likelihood(test)
    assert found["baselines"]["models"][NAMES[2]]["log_likelihood"] == truth


def test_baselines_of_a_grammar_predict_ends(tmp_path: Path, capsys: Captured) -> None:
    data, run = write_corpus(tmp_path / "data"), tmp_path / "run"
    small = ["model.num_nonterminals=3", "model.num_preterminals=4", "model.rank=4", "model.dim=8", "train.updates=2"]
    settings = [*small, "data.min_count=1", "train.evaluate_every=2"]
    as_json(capsys, "train", "--recipe", "demo-grammar", "--data", data, "--out", run, "--set", *settings)
    found = as_json(capsys, "evaluate", run, "--baselines")
    num_words = len(load_words(run)[1])
    train = [[*row, num_words] for row in encoded(run, TEXT) if len(row) > 1]  # a sentence of one word is left out
    test = [[*row, num_words] for row in encoded(run, OTHER)]
    truth = KneserNey.fit(train, num_words + 1, 2).log_likelihood(test)
    assert found["baselines"]["models"][NAMES[1]]["log_likelihood"] == truth
    assert found["tokens"] == sum(map(len, test))


def refused(capsys: Captured, *arguments: object) -> str:
    assert cli.main([*map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_data_that_moved_are_named(run: Path, tmp_path: Path, capsys: Captured) -> None:
    before = as_json(capsys, "evaluate", run, "--baselines")
    (tmp_path / "data").rename(tmp_path / "moved")
    assert "data" in refused(capsys, "evaluate", run, tmp_path / "moved", "--baselines")
    after = as_json(capsys, "evaluate", run, "--baselines", "--train", tmp_path / "moved")
    assert after["baselines"]["models"] == before["baselines"]["models"]
    assert after["baselines"]["train"] == str(tmp_path / "moved")


def test_another_text_is_refused(run: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "data" / "train.txt").write_text(TEXT + "the the the\n")
    error = refused(capsys, "evaluate", run, "--baselines")
    assert "not the text that" in error
    assert "--train" in error


def test_a_model_by_itself_has_to_be_told(tmp_path: Path, capsys: Captured) -> None:
    model, data = save_model(tmp_path / "model"), write_corpus(tmp_path / "data")
    assert "--train DIR" in refused(capsys, "evaluate", model, data, "--baselines")
    found = as_json(capsys, "evaluate", model, data, "--baselines", "--train", data)
    assert list(found["baselines"]["models"]) == NAMES


def test_a_run_that_noted_no_path(run: Path, capsys: Captured) -> None:
    """As those of 0.1.0."""
    file = run / "data.json"
    noted: dict[str, Any] = json.loads(file.read_text())
    del noted["path"]
    file.write_text(json.dumps(noted))
    assert "does not say on what it was trained" in refused(capsys, "evaluate", run, "--baselines")


def test_what_baselines_do_not_go_with(run: Path, tmp_path: Path, capsys: Captured) -> None:
    assert "one of them" in refused(capsys, "evaluate", run, "--trees", "gold.trees", "--baselines")
    assert "--train names" in refused(capsys, "evaluate", run, tmp_path / "data", "--train", tmp_path / "data")
