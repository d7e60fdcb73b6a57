"""`rankfold states`, as a new user would meet it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankfold import cli
from rankfold.data.vocab import Vocabulary
from rankfold.models import HMM
from rankfold.models.config import Family
from tests.cli.test_grammar_commands import saved as save_grammar
from tests.cli.test_language_models import FAMILIES, TEXT, as_json, said, save_model

HEBREW = "\u05e9\u05dc\u05d5\u05dd"
ODD = ["<script>alert(1)</script>", HEBREW, "a\x1b[31mred", "$x_1$"]


def odd_model(folder: Path, num_words: int = 0) -> Path:
    """Two states: the first says odd words, the second ends the sentence."""
    vocabulary = Vocabulary.build([[*ODD, *(f"word{i}" for i in range(num_words))]])
    emission = torch.zeros(2, len(vocabulary))
    emission[0, 2:] = 1 / (len(vocabulary) - 2)
    emission[1, 1] = 1.0
    transition = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    model = HMM.from_tables(torch.tensor([1.0, 0.0]), transition, emission)
    model.vocabulary = vocabulary
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_states_to_show(family: Family, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model", family)
    (tmp_path / "text.txt").write_text(TEXT)
    for data in ((), ("--data", tmp_path / "text.txt")):
        found = as_json(capsys, "states", model, *data, "--top", "100", "--entries", "100")
        assert found["of"] == ("ranks" if family == "rank" else "states")
        size = found["num_states"]
        assert size == (4 if family == "rank" else 6)
        uses = [state["use"] for state in found["states"]]
        silent = [state["words"][0][0] in ("<unk>", "<eos>") for state in found["states"]]
        order = list(zip(silent, (-use for use in uses), strict=True))
        assert order == sorted(order)  # states of words come first
        assert sum(uses) == pytest.approx(1, abs=1e-6)
        assert 1 <= found["effective"] <= size
        for state in found["states"]:
            for name in ("words", "next", "previous"):
                assert sum(entry[1] for entry in state[name]) == pytest.approx(1, abs=1e-5)
        text = said(capsys, "states", model, *data, "--top", "1")
        assert f"{found['of'][:-1]} {found['states'][0]['state']}   use {uses[0]:.2%}" in text
        assert ("20 positions" in text) == bool(data)


def test_a_word_and_chosen_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path / "model", "lhmm")
    whole = as_json(capsys, "states", model, "--top", "6", "--entries", "20")["states"]
    joint = {state["state"]: state["use"] * dict(state["words"])["cat"] for state in whole}
    found = as_json(capsys, "states", model, "--word", "cat", "--top", "6")["states"]
    assert [state["state"] for state in found] == sorted(joint, key=lambda state: -joint[state])
    for state in found:
        share = joint[state["state"]] / sum(joint.values())
        assert state["share_of_word"] == pytest.approx(share, rel=1e-4)
    assert "of all cat" in said(capsys, "states", model, "--word", "cat", "--top", "1")
    assert [s["state"] for s in as_json(capsys, "states", model, "--state", "5", "2", "--state", "5")["states"]] == [
        5,
        2,
    ]
    entropies = [s["word_entropy"] for s in as_json(capsys, "states", model, "--sort", "entropy")["states"]]
    assert entropies == sorted(entropies)


def test_odd_words_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = odd_model(tmp_path / "model")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{HEBREW}\n".encode())))
    text = said(capsys, "states", model, "--data", "-")
    assert "<script>alert(1)</script> 25.0%" in text
    assert HEBREW in text
    assert text.index("state 0") < text.index("state 1 ")  # which ends sentences, and is used as often
    assert "a\\x1b[31mred" in text
    assert "\x1b" not in text  # nothing steers the terminal
    assert "the share of 2 positions" in text
    assert text.count("use 50.00%") == 2


def test_300_000_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = odd_model(tmp_path / "model", 300_000)
    found = as_json(capsys, "states", model, "--word", "word299999")
    assert [state["state"] for state in found["states"]] == [0]
    assert found["states"][0]["share_of_word"] == 1.0


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "states.png"
    said(capsys, "states", odd_model(tmp_path / "model"), "--plot", picture)
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    said(capsys, "states", tmp_path / "model", "--plot", picture)  # one of ours is replaced
    (tmp_path / "mine.png").write_text("mine")
    assert cli.main(["states", str(tmp_path / "model"), "--plot", str(tmp_path / "mine.png")]) == 2
    assert (tmp_path / "mine.png").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--state", "6"], "no state 6: this model has 0 to 5"),
        (["--state", "-1"], "no state -1"),
        (["--word", "yak"], "'yak' is not among the 10 words"),
        (["--word", "cat", "--state", "1"], "--state and --word: one of them"),
        (["--top", "0"], "--top is 0"),
        (["--entries", "0"], "--entries is 0"),
        (["--data", "nothing.txt"], "nothing.txt"),
        (["--data", "empty.txt"], "at least one sentence was expected"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n\n")
    assert cli.main(["states", str(save_model(tmp_path / "model")), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_other_models_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["states", str(save_grammar(tmp_path / "grammar"))]) == 2
    assert "rankfold symbols" in capsys.readouterr().err
