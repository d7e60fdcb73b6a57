"""Data given in Python: the same run as from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.data.frames import frames_of
from rankfold.errors import DataError
from rankfold.models.config import FrameConfig, GrammarConfig
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.in_memory import frame_splits, text_sources
from rankfold.training.loop import train
from tests.training.runs import expect_equal, expect_same_end, state, tiny, write_corpus


def splits_of(folder: Path) -> dict[str, list[str]]:
    return {path.stem: path.read_text().splitlines() for path in sorted(folder.glob("*.txt"))}


def test_sentences_train_as_files_do(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data")
    expected = train(tiny(), data, tmp_path / "files", quiet=True)
    strings = splits_of(data)
    expect_same_end(train(tiny(), strings, tmp_path / "strings", quiet=True), expected)
    words = {split: [line.split() for line in lines] for split, lines in strings.items()}
    expect_same_end(train(tiny(), words, tmp_path / "words", quiet=True), expected)
    resumed = train(None, strings, tmp_path / "files", resume=True, quiet=True)
    assert resumed.finished


def test_a_list_holds_out_every_tenth() -> None:
    found = text_sources([f"w{i}" for i in range(25)] + ["", " "])
    assert [words[0] for words in found["valid"]] == ["w9", "w19"]
    assert len(found["train"]) == 23
    assert found["train"].left_out == {"empty_lines": 2}
    assert [len(part) for part in text_sources(["a", ["b", "c"]]).values()] == [1, 1]


def test_a_list_trains(tmp_path: Path) -> None:
    lines = [line for part in splits_of(write_corpus(tmp_path / "data")).values() for line in part]
    result = train(tiny(), lines, tmp_path / "run", quiet=True)
    assert result.finished
    assert result.test is None
    assert result.model.generate(1, seed=1)


def test_a_grammar_trains(tmp_path: Path) -> None:
    model = GrammarConfig(family="rankpcfg", num_nonterminals=3, num_preterminals=4, rank=3, dim=4)
    config = Config(model=model, train=TrainConfig(updates=2, evaluate_every=2, device="cpu"))
    lines = [["the", "dog", "slept"], ["the", "cat"], ["yes"]] * 7
    result = train(config, lines, tmp_path / "run", quiet=True)
    assert str(result.model.parse("the dog slept")).count("(") == 5
    assert '"sentences_of_one_word": 7' in (tmp_path / "run" / "data.json").read_text()
    with pytest.raises(DataError, match=r"data\[1\]: word 2 is '\('"):
        train(config, ["a b", "a ( b"], tmp_path / "other")


def recordings() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(12, 2)) + 3 * (i % 2) for i in range(4)]


def test_arrays_train_as_files_do(tmp_path: Path) -> None:
    config = Config(
        model=FrameConfig(family="frame_hmm", num_states=2, neural=False),
        data=DataConfig(tokens=64),
        train=TrainConfig(optimizer="em", updates=2, evaluate_every=1, device="cpu"),
    )
    arrays = recordings()
    np.savez(tmp_path / "all.npz", features=np.concatenate(arrays), lengths=[len(x) for x in arrays])
    expected = train(config, tmp_path / "all.npz", tmp_path / "files", quiet=True)
    found = train(config, arrays, tmp_path / "arrays", quiet=True)
    expect_equal(state(found.run)[0], state(expected.run)[0])
    assert found.best_valid == expected.best_valid
    assert found.model.segments(found.model.batch(arrays))
    by_split = train(config, {"train": arrays[:3], "valid": arrays[3]}, tmp_path / "splits", quiet=True)
    assert by_split.best_valid != expected.best_valid
    with pytest.raises(DataError, match="the data: the recordings are not those"):
        train(None, arrays[:3], tmp_path / "arrays", resume=True)


def test_frames_with_splits() -> None:
    frames = frames_of(recordings(), splits=["train", "train", "test", "train"])
    assert {name: len(split) for name, split in frame_splits(frames).items()} == {"train": 3, "test": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["one"], "the data are 1 sentence,"),
        ([], "data: no sentence has a word"),
        ({"train": ["a"], "dev": ["b"]}, "a split 'dev', but splits are train, valid and test"),
        ({"train": ["a"]}, "no split 'valid'; there are train"),
        ({"train": ["a"], "valid": []}, r"data\['valid'\]: no sentence has a word"),
        ({"train": ["a"], "valid": "b"}, r"data\['valid'\] is a str, but a list of sentences"),
        (["a", 3], r"data\[1\] is 3, but a string or a list of words"),
        (["a", ["b", 3]], r"data\[1\] is \['b', 3\]"),
        (7, "data is a int, but a list of sentences"),
    ],
)
def test_mistakes(data: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        train(tiny(), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
