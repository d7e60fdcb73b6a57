"""`rankfold evaluate`, as a new user would meet it."""

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
from rankfold.training import evaluation
from tests.cli.test_language_models import OTHER, as_json, said, save_model, write_corpus, write_recipe


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data")


def test_the_numbers(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model")
    found = as_json(capsys, "evaluate", model, "--data", data)
    loaded, vocabulary = load_words(model)
    rows = [vocabulary.encode(line.split()) for line in OTHER.splitlines()]
    truth = sum(loaded(torch.tensor([row])).log_partition.item() for row in rows)
    assert found == {
        "perplexity": pytest.approx(math.exp(-truth / 15), rel=1e-6),  # float32, in batches of another shape
        "tokens": 15,
        "log_likelihood": pytest.approx(truth, rel=1e-6),
        "sentences": 3,
        "unknown_words": 2,
        "unknown_rate": pytest.approx(2 / 12),
        "denominator": "words and one <eos> a sentence",
        "protocol": "sentences independent",
        "largest_log_difference": pytest.approx(0, abs=1e-6),  # float32 against float64, nats a token
        "log_checked_sentences": 3,
    }
    assert found == as_json(capsys, "evaluate", model, "--data", data / "test.txt")
    assert as_json(capsys, "evaluate", model, "--data", data, "--split", "valid")["sentences"] == 5


def test_what_float32_cannot_hold_is_told(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(save_model(tmp_path / "tame")), "--data", str(data)]) == 0
    assert "warning" not in capsys.readouterr().err
    assert cli.main(["evaluate", str(save_model(tmp_path / "sharp", "hmm", spread=40.0)), "--data", str(data)]) == 0
    error = capsys.readouterr().err
    assert "too small for float32: computed in float64" in error
    assert "warning" not in error


def test_in_words(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "test.txt").write_text("the yak\n\na gnu\n" + "".join(f"w{i}\n" * (9 - i) for i in range(6)))
    assert cli.main(["evaluate", str(save_model(tmp_path / "model")), "--data", str(data)]) == 0
    captured = capsys.readouterr()
    assert "(words and one <eos> a sentence)" in captured.out
    assert "sentences independent" in captured.out
    assert "nats a token from logarithms" in captured.out
    assert "<unk>: 41, of them w0 (9), w1 (8), w2 (7), w3 (6), w4 (5) and 3 more" in captured.err
    assert "skipped 1 empty line" in captured.err
    assert "no trained probability" not in captured.err


def test_unknown_words_without_trained_probability(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = save_model(tmp_path / "bare", text="the cat saw a dog\n")
    assert cli.main(["evaluate", str(bare), "--data", str(data)]) == 0
    assert "unknown words have no trained probability" in capsys.readouterr().err


def test_the_protocol_is_that_of_the_run_unless_asked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    best = save_model(run / "best")
    bare = as_json(capsys, "evaluate", run, "--data", data)
    recipe = write_recipe(run / "recipe.toml")
    recipe.write_text(recipe.read_text().replace("[data]", '[data]\nbatching = "streams"\nnum_streams = 2\nwindow = 3'))
    carried = as_json(capsys, "evaluate", run, "--data", data)
    assert bare["protocol"] == "sentences independent"
    assert carried["protocol"] == "state carried across"
    assert carried["tokens"] == bare["tokens"]
    assert carried["log_likelihood"] != bare["log_likelihood"]
    assert as_json(capsys, "evaluate", best, "--data", data) == carried
    assert as_json(capsys, "evaluate", run, "--data", data, "--protocol", "sentences") == bare
    assert as_json(capsys, "evaluate", run, "--data", data, "--protocol", "streams") == carried


@pytest.mark.parametrize("plan", ["state", "rank"])
def test_a_plan_is_followed(
    plan: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model", "rank")
    asked, honest = [], evaluation.evaluate
    monkeypatch.setattr(evaluation, "evaluate", lambda *a, **options: asked.append(options) or honest(*a, **options))
    said(capsys, "evaluate", model, "--data", data, "--plan", plan)
    assert [options["plan"] for options in asked] == [plan]


def test_plans_are_for_rank_space_models(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model", "lhmm")
    assert cli.main(["evaluate", str(model), "--data", str(data), "--plan", "rank"]) == 2
    assert 'the family "lhmm" has one order only' in capsys.readouterr().err
    said(capsys, "evaluate", model, "--data", data, "--plan", "auto")


@pytest.mark.parametrize("method", ["posterior", "viterbi"])
@pytest.mark.parametrize(("family", "of"), [("block", "states"), ("rank", "ranks")])
def test_tags(
    family: str, of: str, method: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = tmp_path / "tags.txt"
    tags.write_text("D N V\nD N V A\nD N V D N\n")
    arguments = ("evaluate", save_model(tmp_path / "model", family), "--data", data, "--tags", tags, "--method", method)
    found = as_json(capsys, *arguments)["tags"]
    assert found["of"] == of
    assert 1 <= found["states_used"] <= 6
    assert 0 <= found["v_measure"] <= 1
    assert 5 / 12 <= found["many_to_one"] <= 1
    assert set(found) == {
        "many_to_one",
        "one_to_one",
        "v_measure",
        "homogeneity",
        "completeness",
        "states_used",
        "of",
    }
    assert f"{of} used" in said(capsys, *arguments)


def test_the_tags_are_those_of_the_tag_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tagged with its own states, a text is predicted without a mistake."""
    model, tags = save_model(tmp_path / "model"), tmp_path / "tags.txt"
    lines = said(capsys, "tag", model, "--data", data / "test.txt").splitlines()
    tags.write_text("".join(" ".join(word.rpartition("/")[2] for word in line.split()) + "\n" for line in lines))
    found = as_json(capsys, "evaluate", model, "--data", data, "--tags", tags)["tags"]
    assert found["many_to_one"] == found["v_measure"] == 1


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ("D N V\nD N V A\n", "has 2 lines, but"),
        ("D N V\nD N V\nD N V D N\n", "line 2: 3 tags, but"),
        ("D N V\n\nD N V A\nD N V D N\n", "1 empty lines"),
        ("", "the file is empty"),
    ],
)
def test_tags_that_do_not_fit(
    tags: str, words: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tags.txt").write_text(tags)
    model = save_model(tmp_path / "model")
    assert cli.main(["evaluate", str(model), "--data", str(data), "--tags", str(tmp_path / "tags.txt")]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "tags.txt" in captured.err
    assert captured.out == ""


def test_text_by_its_place_and_from_a_pipe(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = save_model(tmp_path / "model"), data / "test.txt"
    expected = as_json(capsys, "evaluate", model, "--data", text)
    assert as_json(capsys, "evaluate", model, text) == expected
    assert as_json(capsys, "evaluate", model, data) == expected
    spaced = text.read_bytes().replace(b"\n", b"\n\n")
    for words in (["-"], []):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(spaced)))
        found = as_json(capsys, "evaluate", model, *words)
        assert found == expected | {"empty_lines": spaced.count(b"\n") // 2}


def test_tags_whose_empty_lines_are_those_of_the_text(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text("the cat\n\na dog\n")
    for tags, status in (("D N\n\nD N\n", 0), ("D N\nD N\n\n", 2)):
        (tmp_path / "tags.txt").write_text(tags)
        assert cli.main(["evaluate", str(model), str(tmp_path / "text.txt"), "--tags", str(tmp_path / "tags.txt")]) == (
            status
        )
    assert "not in the same places" in capsys.readouterr().err


def test_a_split_that_is_not_there(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(save_model(tmp_path / "m")), "--data", str(data), "--split", "dev"]) == 2
    assert "no file for the split 'dev'" in capsys.readouterr().err
