"""Text in, model out: every command on every family, and what they must agree on. Also the models other tests use."""

from __future__ import annotations

import json
import math
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from rankfold import cli
from rankfold.data.clusters import uniform_clusters
from rankfold.data.vocab import Vocabulary
from rankfold.models import ModelConfig, build_model
from rankfold.models.config import Family

FAMILIES: tuple[Family, ...] = get_args(Family)
TEXT = "the cat sat\nthe dog ran\na cat ran away\n<unk> saw a dog\nthe\n"
OTHER = "the cat ran\na dog sat away\nthe zebra saw the zebra\n"
RECIPE = """\
# A model for tests.
[model]
family = "{family}"
num_states = 6
rank = 4
dim = 5
num_layers = 1
band = 1
num_clusters = 2

[data]
tokens = 16

[train]
updates = 3
evaluate_every = 2
checkpoint_every = 2
log_every = 1
device = "cpu"
"""


def write_corpus(folder: Path) -> Path:
    """A folder with train.txt, valid.txt and test.txt; the last holds an unknown word, twice."""
    folder.mkdir()
    for split, text in (("train", TEXT), ("valid", TEXT), ("test", OTHER)):
        (folder / f"{split}.txt").write_text(text)
    return folder


def write_recipe(path: Path, family: str = "lhmm", extra: str = "") -> Path:
    """A recipe file for a run of a second."""
    path.write_text(RECIPE.format(family=family) + extra)
    return path


def save_model(
    folder: Path,
    family: Family = "lhmm",
    text: str = TEXT,
    *,
    named: bool = True,
    spread: float = 2.0,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A model that was never trained, whose parameters are spread so that words differ, in a folder."""
    vocabulary = Vocabulary.build([line.split() for line in text.splitlines()])
    config = ModelConfig(family=family, num_states=6, rank=4, dim=5, num_layers=1, band=1, num_clusters=2)
    clusters = uniform_clusters(len(vocabulary), 2, seed=0) if family == "block" else None
    model = build_model(config, len(vocabulary), clusters=clusters, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(spread)
    model.vocabulary = vocabulary if named else None
    model.to(dtype).save_pretrained(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard output of a command that must succeed."""
    assert cli.main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON object a command prints."""
    return json.loads(said(capsys, *arguments, "--json"))


def as_lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[Any]:
    """The JSON objects a command prints, one a line."""
    return list(map(json.loads, said(capsys, *arguments, "--json").splitlines()))


@pytest.mark.parametrize("family", FAMILIES)
def test_from_text_to_answers(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = write_corpus(tmp_path / "data"), tmp_path / "run"
    recipe = write_recipe(tmp_path / "tiny.toml", family)
    trained = as_json(capsys, "train", "--recipe", recipe, "--data", data, "--out", run)
    assert trained["finished"] is True
    assert trained["updates"] == 3

    evaluated = as_json(capsys, "evaluate", run, "--data", data)
    assert evaluated["perplexity"] == pytest.approx(trained["test_perplexity"], rel=1e-12)
    assert evaluated["tokens"] == trained["test_tokens"] == 15
    scored = as_lines(capsys, "score", run, "--data", data / "test.txt")
    total = sum(entry["log_prob"] for entry in scored)
    assert total == pytest.approx(evaluated["log_likelihood"], rel=1e-12)  # the same float64 terms, another order
    assert math.exp(-total / 15) == pytest.approx(evaluated["perplexity"], rel=1e-12)
    assert as_json(capsys, "evaluate", run / "best", "--data", data) == evaluated

    following = as_json(capsys, "predict", run, "the", "cat", "--top", "100")["next"]
    assert sum(entry["probability"] for entry in following) == pytest.approx(1, abs=1e-6)  # float32 parameters
    drawn = as_json(capsys, "sample", run, "--num", "3", "--prefix", "the cat")
    assert all(sentence["words"][:2] == ["the", "cat"] for sentence in drawn["sentences"])
    tags = as_lines(capsys, "tag", run, "--data", data / "test.txt")
    assert [len(entry["states"]) for entry in tags] == [3, 4, 5]
    assert {entry["of"] for entry in tags} == {"ranks" if family == "rank" else "states"}
    explained = as_json(capsys, "explain", run)
    assert explained["family"] == family
    assert explained["num_words"] == 10


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_word_is_what_the_scores_say(
    family: Family, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """p(word | prefix) = p(prefix word) / p(prefix), <eos> included: predict and score take different roads."""
    model = save_model(tmp_path / "model", family)
    following = as_json(capsys, "predict", model, "a cat", "--top", "100")["next"]
    words = [entry["word"] for entry in following]
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{line}\n" for line in ["a cat", *(f"a cat {word}" for word in words)]))
    before, *after = (entry["log_prob"] for entry in as_lines(capsys, "score", model, "--no-eos", "--data", lines))
    assert "<eos>" in words
    assert [x - before for x in after] == pytest.approx([entry["log_prob"] for entry in following], abs=1e-5)  # float32


def test_both_plans_of_a_rank_space_model_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, model = write_corpus(tmp_path / "data"), save_model(tmp_path / "model", "rank")
    state, rank = (as_json(capsys, "evaluate", model, "--data", data, "--plan", plan) for plan in ("state", "rank"))
    assert state["tokens"] == 15
    assert abs(state["log_likelihood"] - rank["log_likelihood"]) / 15 < 1e-6  # float32 sums in another order


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_example_parses(name: str) -> None:
    command: Any = import_module(f"rankfold.cli.{name.replace('-', '_')}")
    title, *lines = command.EXAMPLE.splitlines()
    assert title == "example:"
    assert lines
    for line in lines:
        assert line.startswith("  rankfold ")
        words = shlex.split(re.split("[<>]", line)[0])
        assert cli.build_parser().parse_args(words[1:]).run.__module__ == command.__name__


@pytest.mark.parametrize("command", ["evaluate", "score", "sample", "predict", "tag", "explain"])
@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        ("missing", "no such folder"),
        ("file", "a file, but a folder"),
        ("empty", "holds no model"),
        ("young", "the run has no model yet"),
        ("truncated", "model.safetensors"),
        ("vocabulary", "the vocabulary of another model"),
        ("nameless", "saved without a vocabulary"),
        ("config", "not a whole JSON file"),
    ],
)
def test_a_folder_that_is_not_a_model(
    command: str, breaking: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = break_model(tmp_path, breaking), write_corpus(tmp_path / "data")
    reading = command in ("evaluate", "score", "tag")
    status = cli.main([command, str(run), *(["--data", str(data / "valid.txt")] if reading else [])])
    captured = capsys.readouterr()
    if command == "explain" and breaking == "nameless":  # its sizes are all there
        assert status == 0
        return
    if command == "explain" and breaking in ("missing", "file"):  # then it may be a recipe
        words = "no recipe and no file" if breaking == "missing" else "not valid TOML"
    assert status == 2
    assert words in captured.err
    assert str(run) in captured.err
    assert captured.out == ""


def break_model(tmp_path: Path, breaking: str) -> Path:
    """A folder that is wrong in one way."""
    run = tmp_path / "run"
    if breaking == "file":
        run.write_text("not a table\n")
    elif breaking in ("empty", "young"):
        run.mkdir()
        if breaking == "young":
            write_recipe(run / "recipe.toml")
    elif breaking != "missing":
        save_model(run / "best", named=breaking != "nameless")
        weights = run / "best" / "model.safetensors"
        if breaking == "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        elif breaking == "vocabulary":
            other = save_model(tmp_path / "other", text=TEXT.replace("cat", "cow"))
            (run / "best" / "vocab.json").write_bytes((other / "vocab.json").read_bytes())
        elif breaking == "config":
            (run / "best" / "config.json").write_text("{")
    return run


@pytest.mark.parametrize("command", ["evaluate", "score", "tag"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"the cat\nthe d\xe9g\n", "line 2: byte 6 is 0xe9"),
        (b"the\n" + b"a " * 600_000 + b"\n", "line 2: 1,200,001 bytes long"),
        (b"\x7fELF\x00\x01\n", "line 1: byte 5 is NUL"),
        (b"the <eos>\n", "line 1: token 2 is <eos>"),
        (None, "no such file"),
    ],
    ids=["empty", "latin-1", "1-MB-line", "binary", "eos", "missing"],
)
def test_a_text_that_breaks_a_rule(
    command: str, content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = save_model(tmp_path / "model"), tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    assert cli.main([command, str(model), "--data", str(text)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert str(text) in captured.err
    assert captured.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without CUDA")
@pytest.mark.parametrize("command", ["sample", "predict"])
def test_cuda_where_there_is_none(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, str(save_model(tmp_path / "model")), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
