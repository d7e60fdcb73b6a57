"""What `python -m benchmarks steps` refuses before it measures anything, and how it says how long it will take."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.steps import command as runs
from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.tables import modest_cases, published_cases


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sweep length --family hmm --plot a.foo", "--plot is a.foo, but matplotlib draws no such kind"),
        ("--sweep length --family hmm --plot a", "Take .png"),
        ("--family hmm --precision float32 tf32", "tf32, which a CPU computes as float32"),
        ("--family lhmm --band 3", "--band is for banded: lhmm has none"),
        ("--family banded --clusters 3", "--clusters is for block: banded has none"),
        ("--family npcfg --states 3", "--states is for hmm, lhmm, banded, block, rank: npcfg has none"),
        ("--family hmm --nonterminals 3", "--nonterminals is for npcfg"),
        ("--family hmm --preterminals 3", "rankpcfg, lpcfg, spcfg: hmm has none"),
        ("--family spcfg --rank 3", "tnpcfg, rankpcfg: spcfg has none"),
        ("--family tnpcfg --state-dropout 0.5", "--state-dropout is for hmm, lhmm, banded, block: tnpcfg has none"),
        ("--family rankpcfg --logit-dropout 0.5", "--logit-dropout is for rank: rankpcfg has none"),
        ("--family spcfg --plan rank state", "--plan is for rank, tnpcfg, rankpcfg: spcfg has none"),
        ("--family lhmm --plan auto", "--plan is for rank, tnpcfg, rankpcfg: lhmm has none"),
        ("--plan rank", "--plan is of one model"),
        ("--table grammars --plan rank", "--plan is of one model"),
        ("--table grammars --family npcfg", "--table grammars has its own models"),
        ("--family npcfg --length 1", "a sentence of one word has no tree"),
        ("--family npcfg --nonterminals 0", "num_nonterminals is 0"),
        ("--family npcfg --sweep states --preterminals 8", "Leave out --preterminals"),
        ("--family spcfg --sweep rank", "spcfg has no rank"),
    ],
)
def test_refused_before_any_work(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["steps", "--device", "cpu", *shlex.split(arguments)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "..." not in captured.err
    assert captured.out == ""


def test_long_tables_say_so_and_count_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(cases: Any, precision: Any, settings: Any) -> list[dict[str, Any]]:
        settings.say("checks")
        return [{"passed": True}]

    monkeypatch.setattr(runs, "measure_rows", measure)
    monkeypatch.setattr(runs, "measure_ceilings", lambda *_: Ceilings(1.0, {}))
    lines: list[str] = []
    runs.run_cases(published_cases(), ["float32"], torch.device("cpu"), say=lines.append)
    assert lines[0].startswith("10 rows of 15 repeats, at least ")
    assert lines[2:4] == ["1/10 checks", "2/10 checks"]
    lines.clear()
    runs.run_cases(modest_cases()[:1], ["float32"], torch.device("cpu"), say=lines.append)
    assert lines == ["the ceiling of this machine", "checks"]
