"""`rankfold symbols`, as a new user would meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.cli import main
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import as_json, said, save_model

Captured = pytest.CaptureFixture[str]
TEXT = "the dog saw a cat\n\na cat slept\n( <script> dog\n"


@pytest.mark.parametrize("family", ["npcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"])
def test_symbols_of_a_text(family: str, tmp_path: Path, capsys: Captured) -> None:
    run = saved(tmp_path / "model", family)
    (tmp_path / "text.txt").write_text(TEXT)
    found = as_json(capsys, "symbols", run, "--data", tmp_path / "text.txt", "--top", "9", "--entries", "100")
    assert found["trees"] == 3
    spans = [symbol for symbol in found["symbols"] if symbol["symbol"].startswith("NT-")]
    words = [symbol for symbol in found["symbols"] if symbol["symbol"].startswith("T-")]
    assert sum(symbol["count"] for symbol in spans) == 4 + 2 + 2  # binary trees
    assert sum(symbol["count"] for symbol in words) == 5 + 3 + 3
    for kind in (spans, words):
        assert sum(symbol["use"] for symbol in kind) == pytest.approx(1)
    for symbol in spans:
        assert sum(p for *_, p in symbol["rules"]) == pytest.approx(1, abs=1e-5)
    yields = {text for symbol in words for text, _ in symbol["yields"]}
    assert {"-LRB-", "<script>", "the"} <= yields
    text = said(capsys, "symbols", run, "--data", tmp_path / "text.txt", "--top", "1")
    assert f"{spans[0]['symbol']}   {spans[0]['use']:.2%} of the spans" in text


def test_symbols_of_the_grammar_s_own_sentences(tmp_path: Path, capsys: Captured) -> None:
    run = saved(tmp_path / "model", "tnpcfg")
    assert "500 sentences that the grammar makes" in said(capsys, "symbols", run)
    found = as_json(capsys, "symbols", run, "--symbol", "T-4", "NT-0")["symbols"]
    assert [symbol["symbol"] for symbol in found] == ["T-4", "NT-0"]


def test_the_picture(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "text.txt").write_text(TEXT)
    run = saved(tmp_path / "model", "tnpcfg")
    said(capsys, "symbols", run, "--data", tmp_path / "text.txt", "--plot", tmp_path / "symbols.png")
    assert (tmp_path / "symbols.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--symbol", "NP"], "the symbol 'NP' is not known"),
        (["--symbol", "NT-4"], "no symbol NT-4: this grammar has NT-0 to NT-3"),
        (["--top", "0"], "--top is 0"),
        (["--data", "nothing.txt"], "nothing.txt"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["symbols", str(saved(tmp_path / "model")), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_other_models_are_refused(tmp_path: Path, capsys: Captured) -> None:
    for folder, message in (
        (save_model(tmp_path / "hmm"), 'family "lhmm", which has none'),
        (saved(tmp_path / "compound", "cpcfg"), "rankfold parse --labels"),
    ):
        assert main(["symbols", str(folder)]) == 2
        assert message in capsys.readouterr().err
