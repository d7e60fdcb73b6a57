"""Training without a recipe: a text is prepared into the run, a recipe fits the data, and raw text is understood."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankfold
from rankfold import cli
from rankfold.errors import DataError
from rankfold.training.automatic import FOLDER, choose_recipe, for_frames, for_text, is_text_file, resolve
from rankfold.training.recipes import load_recipe

TOKENS = (20_000, 47_000, 250_000, 4_000_000)
QUICK = ["train.updates=2", "train.evaluate_every=2", "model.num_states=8", "model.rank=4", "model.dim=8"]
SENTENCE = "The {0} cat sat on the mat, said Mr. {0}. It isn't true!\n\n"


def book(folder: Path, num: int = 60) -> Path:
    path = folder / "book.txt"
    path.write_text("".join(SENTENCE.format(f"word{i % 7}") for i in range(num)))
    return path


def arguments(*given: object) -> list[str]:
    return [*map(str, given), *(x for setting in QUICK for x in ("--set", setting))]


def test_one_file_to_a_model_that_reads_raw_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert cli.main(arguments("train", "--data", book(tmp_path), "--out", run)) == 0
    told = capsys.readouterr().err
    assert f"book.txt is prepared in {run / 'data'}:\n  read       1 file, " in told
    assert "no recipe was given; for 918 training tokens and 21 words seen twice or more: a low-rank HMM" in told
    assert f"With {', '.join(QUICK)} on top." in told
    model = rankfold.load(run)
    assert model.vocabulary is not None
    assert model.vocabulary.tokenizer.kind == "simple"
    raw, tokens = tmp_path / "raw.txt", tmp_path / "tokens.txt"
    raw.write_text("The cat sat, it isn't.\n")
    tokens.write_text("The cat sat , it isn't .\n")
    values = []
    for file in (raw, tokens):
        assert cli.main(["score", str(run), str(file)]) == 0
        values.append(capsys.readouterr().out.split("\t")[0])
    assert values[0] == values[1]
    assert cli.main(["predict", str(run), "The cat", "--top", "1"]) == 0
    assert cli.main(["sample", str(run), "--num", "3"]) == 0


def test_a_run_is_resumed_with_the_same_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = book(tmp_path), tmp_path / "run"
    packed = tmp_path / "book.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert cli.main(arguments("train", "--data", packed, "--out", run)) == 0
    for given in (["--data", str(path)], ["--data", str(packed)], []):
        assert cli.main(["train", "--resume", "--out", str(run), *given]) == 0
    path.write_text(path.read_text() + "More.\n")
    assert cli.main(["train", "--resume", "--data", str(path), "--out", str(run)]) == 2
    assert "holds another text, not that of" in capsys.readouterr().err
    assert cli.main(arguments("train", "--data", packed, "--out", run)) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_text_that_is_prepared_already_is_not_prepared_again(tmp_path: Path) -> None:
    path, run = book(tmp_path), tmp_path / "run"
    said: list[str] = []
    config, data = resolve(None, path, run, QUICK, said.append)
    assert data == run / FOLDER
    before = {file.name: file.stat().st_mtime_ns for file in data.iterdir()}
    assert resolve(None, path, run, QUICK, said.append) == (config, data)
    assert {file.name: file.stat().st_mtime_ns for file in data.iterdir()} == before
    assert sum("is prepared in" in line for line in said) == 1
    other = tmp_path / "other.txt"
    other.write_text("a b c.\n" * 30)
    with pytest.raises(DataError, match="holds another text"):
        resolve(None, other, run, QUICK, said.append)


def test_mistakes_are_found_before_the_text_is_read(tmp_path: Path) -> None:
    path = book(tmp_path)
    with pytest.raises(DataError, match="no recipe and no file"):
        resolve("small-hm", path, tmp_path / "run", [], print)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "vocab.json").write_text("{}")
    with pytest.raises(DataError, match=r"holds no run, but vocab\.json"):
        resolve(None, path, tmp_path / "mine", [], print)
    assert os.listdir(tmp_path / "mine") == ["vocab.json"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"caf\xe9 au lait\n", "line 1: byte 4 of the file is 0xe9"),
        (b"\x7fELF\0", "NUL: a binary file"),
        (b"one sentence only.\n", "1 sentence, but train, valid and test"),
    ],
)
def test_what_is_no_text_leaves_no_run(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        rankfold.train(data=tmp_path / "bad.txt", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_what_a_text_file_is(tmp_path: Path) -> None:
    path = book(tmp_path)
    assert is_text_file(path)
    assert is_text_file(str(path))
    (tmp_path / "a.csv").write_text("1\n")
    (tmp_path / "gum.train.txt").write_text("a\n")
    for other in (tmp_path, tmp_path / "a.csv", tmp_path / "gum", tmp_path / "missing.txt", [["a"]]):
        assert not is_text_file(other)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe"):
        resolve(None, tmp_path / "pipe", tmp_path / "run", [], print)
    with pytest.raises(DataError, match="no such file or folder"):
        resolve(None, tmp_path / "gone" / "x.txt", tmp_path / "run", [], print)


@pytest.mark.parametrize(
    ("tokens", "words", "device", "family", "states"),
    [
        (10, 2, "cpu", "lhmm", 256),
        (19_999, 3000, "cpu", "lhmm", 256),
        (200_000, 5000, "cpu", "block", 2048),
        (200_000, 80, "cpu", "lhmm", 1024),
        (40_000_000, None, "cpu", "block", 4096),
        (200_000, 5000, "cuda", "block", 8192),
    ],
)
def test_a_recipe_by_size(tokens: int, words: int | None, device: str, family: str, states: int) -> None:
    choice = for_text(tokens, words, device)
    model: Any = load_recipe(choice.recipe, choice.settings).model
    assert (model.family, model.num_states) == (family, states)
    assert f"{tokens:,} training tokens" in choice.why
    assert f"{states:,} states" in choice.why
    assert ("two cores" in choice.why) == (device == "cpu" and states in (256, 2048))  # times that were measured


def test_characters_get_a_model_without_clusters(tmp_path: Path) -> None:
    from rankfold.data.prepare import prepare

    prepare([str(book(tmp_path, 1000))], tmp_path / "out", tokenizer="characters")
    assert choose_recipe(tmp_path / "out", "cpu").recipe == "small-lhmm"


def test_sentences_in_memory_and_folders(tmp_path: Path) -> None:
    sentences = [["the", "cat", "sat"]] * 30
    assert "81 training tokens and 3 words" in choose_recipe(sentences, "cpu").why
    assert "90 training tokens" in choose_recipe({"train": sentences, "valid": sentences}, "cpu").why
    (tmp_path / "train.txt").write_text("the cat sat\n" * 30)
    assert "90 training tokens and 3 words" in choose_recipe(tmp_path, "cpu").why
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "train.trees").write_text("(S (A a) (B b))\n")
    with pytest.raises(DataError, match="holds trees"):
        choose_recipe(tmp_path / "trees", "cpu")


def test_short_texts_have_fewer_updates() -> None:
    updates = [next(x for x in for_text(n, 3000, "cpu").settings if x.startswith("train.updates=")) for n in TOKENS]
    assert updates == ["train.updates=200", "train.updates=600", "train.updates=1200", "train.updates=3000"]


def test_recordings_without_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(1).normal(size=(300, 2)) + np.repeat([[0, 0], [9, 9], [0, 0]], 100, axis=0)
    path = tmp_path / "walk.csv"
    path.write_text("x,y\n" + "".join(f"{x:.3f},{y:.3f}\n" for x, y in drawn))
    assert cli.main(["train", "--data", str(path), "--out", str(tmp_path / "run"), "--set", "train.updates=2"]) == 0
    told = capsys.readouterr().err
    assert "for 1 recording of 300 frames and no labels: segment-hmm, a Gaussian HMM of 5 states" in told
    assert json.loads((tmp_path / "run" / "data.json").read_text())["train"]["frames"] == 300
    assert for_frames([drawn, drawn], 3).settings[0] == "model.num_states=3"
    assert for_frames([np.eye(4)], 0).recipe == "small-music"
    assert choose_recipe([drawn], "cpu").recipe == "segment-hmm"


def test_a_text_in_which_no_word_stands_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every word would be <unk>: a perplexity near 1 of a model that knows nothing."""
    text = tmp_path / "three.txt"
    text.write_text("The quick brown fox. It ran away. Then it slept.\n")
    given = ["train", "--data", str(text), "--out", str(tmp_path / "run")]
    assert cli.main(given) == 2
    assert "no word stands twice in the 4 training tokens" in capsys.readouterr().err
    assert cli.main([*given, "--recipe", "small-lhmm", "--set", "data.min_count=1", "train.updates=1"]) == 0
