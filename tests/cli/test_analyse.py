"""`rankfold analyse`, all subjects: against other commands, and by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rankfold import cli
from rankfold.models.config import Family
from tests.cli.test_grammar_commands import saved as save_grammar
from tests.cli.test_language_models import FAMILIES, TEXT, as_json, as_lines, said, save_model

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_add_up_to_the_scores_of_all_lines(family: Family, tmp_path: Path, text: Path, capsys: Captured) -> None:
    model = save_model(tmp_path / "model", family)
    found = as_json(capsys, "analyse", "losses", model, "--data", text)
    whole = as_json(capsys, "evaluate", model, text)
    assert found["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6)
    assert found["tokens"] == whole["tokens"] == 20
    for name in ("by_length", "by_frequency"):
        assert sum(group["nats"] for group in found[name]) == pytest.approx(found["nats"], rel=1e-6)
        assert sum(group["tokens"] for group in found[name]) == 20
    (end,) = (group for group in found["by_frequency"] if group["name"] == "<eos>")
    lines = as_lines(capsys, "score", model, text)
    open_lines = as_lines(capsys, "score", "--no-eos", model, text)
    gap = sum(x["log_prob"] for x in open_lines) - sum(x["log_prob"] for x in lines)
    assert end["nats"] == pytest.approx(gap, abs=1e-4)  # float32
    assert end["tokens"] == 5


def test_losses_of_a_grammar_go_by_length(tmp_path: Path, text: Path, capsys: Captured) -> None:
    text.write_text("the dog saw\n" * 2 + " ".join(["the"] * 12) + "\nthe\n")
    grammar = save_grammar(tmp_path / "grammar")
    found = as_json(capsys, "analyse", "losses", grammar, "--data", text)
    assert [(group["name"], group["tokens"]) for group in found["by_length"]] == [("1-10", 8), ("11-20", 13)]
    assert "by_frequency" not in found
    assert found["perplexity"] == pytest.approx(math.exp(found["nats"] / 21))


def test_losses_of_a_compound_grammar_are_bounds(tmp_path: Path, text: Path, capsys: Captured) -> None:
    for family, is_bound in (("cpcfg", True), ("npcfg", False)):
        grammar = save_grammar(tmp_path / family, family)
        assert as_json(capsys, "analyse", "losses", grammar, "--data", text)["bound"] is is_bound
        assert ("bounds" in said(capsys, "analyse", "losses", grammar, "--data", text)) is is_bound


def test_ranks_and_use(tmp_path: Path, text: Path, capsys: Captured) -> None:
    model = save_model(tmp_path / "model", "lhmm")
    found = as_json(capsys, "analyse", "ranks", model, "--threshold", "1e-9")
    assert (found["transition"]["bound"], found["transition"]["rank"]) == (4, 4)
    assert found["emission"]["shape"] == [6, 10]
    assert len(found["transition"]["singular_values"]) == 4
    none = as_json(capsys, "analyse", "ranks", model, "--threshold", "100")
    assert none["transition"]["rank"] == none["emission"]["rank"] == 0
    clusters = tmp_path / "clusters.txt"
    clusters.write_text("the\t0\na\t0\ncat\t1\ndog\t1\n")
    used = as_json(capsys, "analyse", "use", model, "--data", text, "--clusters", clusters)
    states = as_json(capsys, "states", model, "--data", text, "--top", "6")
    assert used["effective"] == pytest.approx(states["effective"])
    for state in states["states"]:
        assert used["use"][state["state"]] == pytest.approx(state["use"])
    assert used["purity_of_one_state"] <= used["purity"] <= 1
    assert "purity" in said(capsys, "analyse", "use", model, "--data", text, "--clusters", clusters)


def test_states_and_ranks_change_places(tmp_path: Path, text: Path, capsys: Captured) -> None:
    model = save_model(tmp_path / "model", "rank")
    found = as_json(capsys, "analyse", "interchange", model, "--data", text)
    wanted = as_json(capsys, "evaluate", model, text)["perplexity"]
    for name in ("state_order", "rank_order", "hmm"):
        assert found[f"perplexity_{name}"] == pytest.approx(wanted, rel=1e-5)  # float32
    assert found["largest_gap"] < 1e-5
    assert found["transition"]["shape"] == [4, 4]


def test_rules(tmp_path: Path, capsys: Captured) -> None:
    found = as_json(capsys, "analyse", "rules", save_grammar(tmp_path / "grammar"), "--parents", "2")
    assert len(found["parents"]) == 2
    assert sum(found["mean_kinds"].values()) == pytest.approx(1, rel=1e-5)
    assert "2 of 4 parents" in said(capsys, "analyse", "rules", tmp_path / "grammar", "--parents", "2")


def test_pictures(tmp_path: Path, text: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    model, grammar = save_model(tmp_path / "model", "rank"), save_grammar(tmp_path / "grammar")
    clusters = tmp_path / "clusters.txt"
    clusters.write_text("the\t0\ncat\t1\n")
    asked = {
        "ranks": [model],
        "rules": [grammar],
        "use": [model, "--clusters", clusters],
        "losses": [model, "--data", text],
        "interchange": [model, "--data", text],
    }
    for subject, arguments in asked.items():
        picture = tmp_path / f"{subject}.png"
        said(capsys, "analyse", subject, *arguments, "--plot", picture)
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ranks", "grammar"], "ask rankfold symbols"),
        (["ranks", "model", "--threshold", "0"], "--threshold is 0"),
        (["rules", "model"], "grammar"),
        (["rules", "grammar", "--parents", "0"], "at least 1 is needed"),
        (["interchange", "model", "--data", "missing.txt"], 'family is "lhmm"'),
        (["losses", "model", "--data", "empty.txt"], "at least one sentence was expected"),
    ],
)
def test_bad_input(
    arguments: list[str], message: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model", "lhmm")
    save_grammar(tmp_path / "grammar")
    (tmp_path / "empty.txt").write_text("\n")
    assert cli.main(["analyse", *arguments]) == 2
    assert message in capsys.readouterr().err
