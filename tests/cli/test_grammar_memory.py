"""Sentences that there is no memory for are refused before anything is computed, with the length that would fit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankfold.cli import main
from rankfold.models import load_model, strings
from tests.cli.test_grammar_commands import Captured, given, saved

NUM_WORDS = 40


@pytest.mark.parametrize("command", ["parse", "score", "evaluate"])
def test_a_sentence_that_is_too_long(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    run, trees = saved(tmp_path / "model"), tmp_path / "gold.trees"
    words = ["the"] * NUM_WORDS
    given(monkeypatch, f"a cat\n{' '.join(words)}\n")
    trees.write_text(f"(S (D a) (N cat))\n(S {' '.join(f'(D {word})' for word in words)})\n")
    options = ["--trees", str(trees)] if command == "evaluate" else []
    plan = load_model(run).plan(1, 30).best
    memory = 30 * (plan.eval_token_bytes if command == "score" else plan.token_bytes)
    monkeypatch.setattr(strings, "available", lambda device: memory)
    assert main([command, str(run), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"(line|sentence) 2: a sentence of 40 words needs .* GiB, but cpu has .* GiB", err)
    fits = re.search(r"At most (\d+) words fit", err)
    assert fits is not None
    assert 30 <= int(fits[1]) < NUM_WORDS
    monkeypatch.setattr(strings, "available", lambda device: None)  # where nobody says
    given(monkeypatch, f"a cat\n{' '.join(words)}\n")
    assert main([command, str(run), *options]) == 0
