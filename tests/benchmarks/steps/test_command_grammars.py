"""`python -m benchmarks steps` of grammars, as a new user would meet it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.steps import command as bench
from benchmarks.steps.row import TIMES
from rankfold.models.pcfg import PCFG

TINY = "--dim 4 --words 20 --batch 2 --length 5 --repeats 2 --device cpu"


def run(text: str) -> int:
    return main(["steps", *shlex.split(text)])


@pytest.mark.parametrize("family", ["npcfg", "tnpcfg --rank 2", "rankpcfg --rank 3", "lpcfg --rank 2", "spcfg"])
def test_every_grammar_is_checked_and_timed(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--family {family} --nonterminals 3 {TINY}") == 0
    out = capsys.readouterr().out
    line = rf"\| {family.split()[0]}, 3 / 6 symbols.*\| +2 x 5 \| +float32 \| .* to .*x \| +\d\.\de-\d+ \|"
    assert re.search(line, out)
    assert "recursion |" in out
    assert "share of the ceiling" in out
    assert "left out" not in out


def test_the_compound_grammar_says_that_it_has_no_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--family cpcfg --nonterminals 2 --preterminals 3 {TINY}") == 0
    out = capsys.readouterr().out
    assert re.search(r"\| cpcfg, 2 / 3 symbols \| +2 x 5 \|", out)
    left_out = "log Z and gradients at this size, against the reference: left out, it is not written for cpcfg"
    assert f"cpcfg, 2 / 3 symbols, float32: {left_out}" in out
    assert "reference / step" not in out


def test_plans_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"--family rankpcfg --nonterminals 20 --rank 3 --plan rank state {TINY}"
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| +rank space( \(auto\))? \|", out)
    compared = r"state space / rank space: step \d+\.\d\dx, recursion \d+\.\d\dx; log Z differs by \d\.\de-\d+"
    assert re.search(compared, out)
    assert run(f"{arguments} --json --no-reference") == 0
    rank, state = json.loads(capsys.readouterr().out)["rows"]
    assert (rank["num_states"], rank["num_nonterminals"], rank["num_preterminals"], rank["rank"]) == (None, 20, 40, 3)
    assert state["against"]["recursion_ratio"] == pytest.approx(
        state["recursion_ms"]["median"] / rank["recursion_ms"]["median"]
    )
    assert len(state["checks"]) == len(rank["checks"]) + 1 == 8


def test_no_speed_for_a_grammar_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = PCFG.log_z
    monkeypatch.setattr(PCFG, "log_z", lambda *args, **choices: honest(*args, **choices) + 1e-3)
    assert run(f"--family npcfg --nonterminals 2 {TINY} --json") == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert all(row[key] is None for key in TIMES)


def test_a_sweep_of_two_orders_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "sweep.png"
    assert run(f"--family tnpcfg --rank 2 --sweep states --values 3,6 --plan rank state {TINY} --plot {picture}") == 0
    out = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for code in ("rankfold, rank space", "rankfold, state space", "reference"):
        assert re.search(rf"time ~ states\^-?\d+\.\d\d: {code}, float32, 3 to 6", out)


def test_sizes_of_a_grammar_are_taken_as_they_are_given() -> None:
    parser = bench.build_parser()
    arguments = "--family lpcfg --nonterminals 5 --preterminals 7 --rank 2 --dim 8 --words 11 --batch 3 --length 9"
    case = bench.read_case(parser.parse_args(arguments.split()))
    assert case is not None
    assert isinstance(case.config, bench.GrammarConfig)
    assert (case.config.num_nonterminals, case.config.num_preterminals, case.config.rank) == (5, 7, 2)
    assert (case.config.dim, case.num_words, case.batch, case.length) == (8, 11, 3, 9)
    case = bench.read_case(parser.parse_args(["--family", "npcfg"]))
    assert case is not None
    assert case.name == "npcfg, 30 / 60 symbols"
    assert case.config.dim == 256


def test_published_grammars_stand_beside_ours() -> None:
    case = bench.grammar_cases()[4]
    assert case.name == "npcfg, 30 / 60 symbols"
    report = bench.bench([case._replace(batch=2, length=4, num_words=30)], repeats=2, device=torch.device("cpu"))
    assert report["rows"][0]["passed"] is True
    out = bench.text(report)
    assert " 176.1 |" in out
    assert f"{176.1 / report['rows'][0]['step_ms']['median']:.2f}x" in out
