"""`rankfold explore`: pages of every kind of model, and what it refuses."""

import json
from pathlib import Path

import pytest

from rankfold.cli import main
from rankfold.explore.bundle import read_page
from tests.explore.runs import SAVED, odd_model


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("w03 w15 w10 w17\n\nw01 w02\nw05 never w06\n")
    return path


def test_a_page_of_words(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["explore", str(SAVED / "lhmm"), "--data", str(text), "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    bundle = read_page(out)
    assert told["bytes"] == out.stat().st_size
    assert told["sentences"] == bundle.meta["sentences"] == 3
    assert bundle.meta["title"] == "lhmm"
    assert bundle.meta["trust"] == told["trust"]


def test_a_run_that_names_no_text_shows_its_own_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["explore", str(SAVED / "hmm"), "-o", str(out), "--sentences", "20"]) == 0
    bundle = read_page(out)
    assert bundle.meta["generated"] is True
    assert 1 <= bundle.meta["sentences"] <= 20
    shown = capsys.readouterr()
    assert "drawn from the model" in shown.err
    assert "open it in a browser" in shown.out


def test_a_page_of_trees(tmp_path: Path) -> None:
    out, gold = tmp_path / "page.html", tmp_path / "gold.trees"
    gold.write_text("(S (NP (D w03) (N w15)) (VP (V w10) (N w17)))\n")
    assert main(["explore", str(SAVED / "npcfg"), "--trees", str(gold), "-o", str(out)]) == 0
    bundle = read_page(out)
    assert bundle.meta["gold"] is True
    assert bundle.meta["labels"] == ["NP", "S", "VP"]


def test_a_page_of_recordings(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    data = str(SAVED / "frames.npz")
    assert main(["explore", str(SAVED / "hsmm"), "--data", data, "--split", "test", "-o", str(out)]) == 0
    bundle = read_page(out)
    assert bundle.meta["kind"] == "frames"
    assert len(bundle.arrays["state"]) == len(bundle.arrays["truth"]) == bundle.meta["frames"]
    state, p = bundle.arrays["state"], bundle.arrays["p"]
    assert state.max() < bundle.meta["states"]
    assert p.mean() > 255 / bundle.meta["states"]


def test_sentences_are_spread_over_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("".join(f"w{i:02}\n" for i in range(18)))
    assert main(["explore", str(SAVED / "lhmm"), "--data", str(text), "--sentences", "3", "-o", str(out)]) == 0
    bundle = read_page(out)
    words = bundle.arrays["words"].tobytes().decode().split("\n")
    known = {"w00", "w06", "w12"}
    assert {words[i] for i in bundle.arrays["token"][::2]} <= known | {"<unk>"}
    assert "3 of its 18 sentences" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere", "-o", "page.html"], "no such folder"),
        ([str(SAVED / "lhmm"), "--sentences", "0"], "at least 1"),
        ([str(SAVED / "lhmm"), "--serve", "-o", "page.html"], "--serve writes no file"),
        ([str(SAVED / "lhmm"), "--port", "70000"], "ports are"),
        ([str(SAVED / "lhmm"), "--trees", "gold.trees", "-o", "page.html"], "for a grammar"),
        ([str(SAVED / "lhmm"), "--data", "absent.txt", "-o", "page.html"], "absent.txt"),
        ([str(SAVED / "hsmm"), "-o", "page.html"], "--data FILE"),
        ([str(SAVED / "lhmm"), "-o", "mine.txt"], "is not a page that rankfold explore wrote"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("keep")
    assert main(["explore", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_a_newer_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd_model().save_pretrained(tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"version": 1', '"version": 9'))
    assert main(["explore", str(tmp_path / "m"), "-o", str(tmp_path / "page.html")]) == 2
    assert "format version 9" in capsys.readouterr().err
