"""`rankfold.map`: the answers of the methods of a model, in order, whatever the dataset and the engine are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankfold
from rankfold.corpora import mapping
from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import save_model

LINES = ["the cat sat", "", "a dog", "the yak ran away", "  ", "the", "a cat saw the dog"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "NUM_WORDS", 6)
    monkeypatch.setattr(mapping, "NUM_FRAMES", 8)


def test_lists_iterators_and_files(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    model = rankfold.load(folder, device="cpu")
    truth = [None if value is None else pytest.approx(value, rel=1e-6) for value in model.score(LINES)]
    assert list(rankfold.map(LINES, model, "score")) == truth
    assert list(rankfold.map(iter(LINES), folder, "score")) == truth
    assert list(rankfold.map([line.split() for line in LINES], str(folder), "score")) == truth
    (tmp_path / "a.txt").write_text("\n".join(LINES[:3]) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(LINES[3:]) + "\n")
    assert list(rankfold.map([tmp_path / "a.txt", tmp_path / "b.txt"], model, "score")) == truth
    assert list(rankfold.map(str(tmp_path / "a.txt"), model, "score")) == truth[:3]
    words = [line for line in LINES if line.split()]
    begun = list(rankfold.map(words, model, "score", end=False))
    assert begun == pytest.approx(model.score(words, end=False), rel=1e-6)
    assert list(rankfold.map(LINES, model, "tag", method="viterbi")) == model.tag(LINES, method="viterbi")


def test_answers_come_as_they_are_found(tmp_path: Path) -> None:
    """A dataset without an end."""
    found = rankfold.map(("a dog" for _ in iter(int, 1)), save_model(tmp_path / "model"), "score")
    first = [next(found) for _ in range(20)]
    assert first == [pytest.approx(first[0])] * 20


def test_processes_load_a_model_of_their_own(tmp_path: Path) -> None:
    model = rankfold.load(save_model(tmp_path / "model"), device="cpu")
    truth = list(rankfold.map(LINES, model, "score", engine="here"))
    assert list(rankfold.map(LINES, model, "score", engine="processes", workers=1)) == truth


def test_trees(tmp_path: Path) -> None:
    model = rankfold.load(saved(tmp_path / "model"), device="cpu")
    assert list(rankfold.map(LINES, model, "parse", labels=True)) == model.parse(LINES, labels=True)


def test_segments(tmp_path: Path) -> None:
    config = FrameConfig(family="hsmm", num_states=3, num_features=2, max_duration=4, observations="gaussian")
    model: Any = build_model(config, 2, seed=0)
    arrays = [np.random.default_rng(i).normal(size=(3 + i, 2)) for i in range(5)]
    found = list(rankfold.map(arrays, model, "segment"))
    assert [one[-1].end for one in found] == [3, 4, 5, 6, 7]
    np.savez(tmp_path / "all.npz", **{f"r{i}": x for i, x in enumerate(arrays)})
    assert list(rankfold.map(tmp_path / "all.npz", model, "segment")) == found


@pytest.mark.parametrize(
    ("dataset", "question", "options", "words"),
    [
        (LINES, "rate", {}, 'must be "score", "tag", "parse" or "segment"'),
        (LINES, "segment", {}, "is asked of models of frames"),
        (LINES, "parse", {}, "which has none"),
        (LINES, "score", {"ends": True}, "no such option: 'ends'"),
        (LINES, "tag", {"method": "best"}, "method is 'best'"),
        (3, "score", {}, "the dataset is a int"),
        (LINES, "score", {"engine": "cluster"}, "engine is 'cluster'"),
        (LINES, "score", {"engine": "processes", "workers": 0}, "workers is 0"),
    ],
)
def test_mistakes_are_told_before_any_work(
    dataset: Any, question: Any, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        rankfold.map(dataset, save_model(tmp_path / "model"), question, **options)
    assert words in str(caught.value)
