"""`python -m benchmarks steps`, as a new user would meet it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.steps import command as bench
from benchmarks.steps.row import TIMES
from rankfold.models.sequence import ChainModel
from rankfold.planning import measure as memory

TINY = "--states 12 --dim 4 --words 20 --batch 2 --length 4 --repeats 2 --device cpu"


def run(text: str) -> int:
    return main(["steps", *shlex.split(text)])


@pytest.mark.parametrize(
    "family", ["hmm", "lhmm --rank 3", "banded --rank 3 --band 2", "rank --rank 3", "block --clusters 3"]
)
def test_every_family_is_checked_and_timed(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--family {family} {TINY}") == 0
    captured = capsys.readouterr()
    line = rf"\| {family.split()[0]}, 12 states.*\| +2 x 4 \| +float32 \| .* to .*x \| +\d\.\de-\d+ \|"
    assert re.search(line, captured.out)
    assert torch.__version__ in captured.out.splitlines()[0]
    assert "share of the ceiling" in captured.out
    assert "checks ..." in captured.err  # progress is not a result


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--family block --clusters 3 --state-dropout 0.5 --precision float32 bf16 --json {TINY}") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"rankfold", "device", "torch", "date", "ceilings", "rows", "passed"}
    assert report["passed"] is True
    assert set(report["ceilings"]["multiply_adds_per_second"]) == {"float32", "bf16"}
    assert [row["precision"] for row in report["rows"]] == ["float32", "bf16"]
    row = report["rows"][0]
    assert set(row) == {
        *("name", "family", "given_tables", "num_states", "rank", "band", "num_clusters", "dim", "state_dropout"),
        *("num_nonterminals", "num_preterminals", "plans", "order_error"),
        *("observations", "num_features", "max_duration", "self_transitions"),
        *("logit_dropout", "num_words", "batch", "length", "precision", "order", "error", "captured", "held_mib"),
        *("note", "reference_note", "estimate_ms", "estimate_mib", "published_ms", "published_mib", "checks", "passed"),
        *TIMES,
    }
    sizes = {"family": "block", "num_states": 12, "num_clusters": 3, "rank": None, "num_words": 20, "batch": 2}
    assert row.items() >= sizes.items()
    for key in ("step_ms", "eager_ms", "forward_ms", "same_step_ms", "reference_ms"):
        assert set(row[key]) == {"median", "low", "high", "repeats"}
        assert 0 < row[key]["low"] <= row[key]["median"] <= row[key]["high"]
    assert all(row[key] > 0 for key in ("ratio", "error", "floor_ms", "share", "estimate_ms", "estimate_mib"))
    assert all(set(check) == {"what", "error", "allowed", "why", "passed", "text"} for check in row["checks"])
    assert len(row["checks"]) == 18


@pytest.mark.parametrize("form", ["", "--json"])
def test_no_speed_for_code_that_is_wrong(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = ChainModel.log_z
    monkeypatch.setattr(ChainModel, "log_z", lambda *args, **choices: honest(*args, **choices) + 1e-3)
    assert run(f"--family lhmm --rank 3 {TINY} {form}") == 1
    captured = capsys.readouterr()
    assert "checks ..." in captured.err
    assert "times ..." not in captured.err
    out = captured.out
    if form:
        report = json.loads(out)
        assert report["passed"] is False
        assert all(report["rows"][0][key] is None for key in TIMES)
    else:
        assert "CHECK FAILED" in out
        assert re.search(r"FAILED lhmm, .*: log Z in float64 at a small size.*: off by 0.000\d+, allowed 1e-10", out)
        assert not re.search(r"\dx \|", out)
        assert "share of the ceiling" not in out


def test_one_wrong_row_of_two_exits_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    honest = ChainModel.log_z

    def rough(self: Any, p: Any, *rest: Any, precision: Any = "float32") -> torch.Tensor:
        return honest(self, p, *rest, precision=precision) * (1.1 if precision == "bf16" else 1.0)

    monkeypatch.setattr(ChainModel, "log_z", rough)
    assert run(f"--family hmm {TINY} --precision float32 bf16 --json") == 1
    good, bad = json.loads(capsys.readouterr().out)["rows"]
    assert (good["passed"], bad["passed"]) == (True, False)
    assert good["step_ms"] is not None


def test_a_sweep_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = TINY.replace("--states 12", "")
    picture = tmp_path / "new" / "sweep.png"
    assert run(f"--sweep states --family hmm --values 6,12,24 {tiny} --plot {picture} --json") == 0
    report = json.loads(capsys.readouterr().out)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert report["plot"] == str(picture)
    assert [curve["code"] for curve in report["sweep"]["curves"]] == ["rankfold", "reference"]
    for curve in report["sweep"]["curves"]:
        assert curve["sizes"] == [6, 12, 24]
        assert isinstance(curve["exponent"], float)
        assert isinstance(curve["last_exponent"], float)
    assert run(f"--sweep length --family hmm --values 2,3 {TINY.replace('--length 4', '')} --no-reference") == 0
    assert re.search(r"time ~ length\^-?\d+\.\d\d: rankfold, float32, 2 to 3", capsys.readouterr().out)


def test_an_update_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"--family lhmm --rank 2 {TINY} --update --no-reference") == 0
    out = capsys.readouterr().out
    assert re.search(r"\| +update \|", out)
    assert "Update: a step without a graph, and AdamW." in out


def test_the_default_table_is_of_every_family(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def spy(cases: Any, precisions: Any, device: Any, **_: Any) -> dict[str, Any]:
        seen.update(cases=cases, precisions=precisions)
        return {"rows": [{"step_ms": 1}], "passed": True}

    monkeypatch.setattr(bench, "run_cases", spy)
    assert run("--device cpu --json") == 0
    assert [case.config.family for case in seen["cases"][:5]] == ["hmm", "lhmm", "banded", "rank", "block"]
    assert len(seen["cases"]) == 5 + 6
    assert seen["precisions"] == ("float32",)
    assert run("--table published --device cpu --json") == 0
    assert len(seen["cases"]) == 10
    assert run("--table million --device cpu --json") == 0
    assert seen["cases"][-1].config.num_states == 2**20
    assert run("--table grammars --device cpu --json") == 0
    assert [case.published_ms for case in seen["cases"]][:2] == [102.1, 74.9]
    bench.bench(bench.published_cases(), device="cuda")
    assert seen["precisions"] == ("tf32", "bf16", "float32")
    bench.bench(bench.grammar_cases(), device="cuda")
    assert seen["precisions"] == ("tf32",)


def test_published_numbers_stand_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    (case,) = [case for case in bench.published_cases() if case.given]
    tiny = case._replace(config=dataclasses.replace(case.config, num_states=9), batch=2, length=3, num_words=11)
    report = bench.bench([tiny], repeats=2)
    assert report["rows"][0]["passed"] is True
    out = bench.text(report)
    assert "published / step" in out
    assert " 39.1 |" in out
    assert f"{39.1 / report['rows'][0]['step_ms']['median']:.2f}x" in out


def test_nothing_that_fits_exits_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    assert run(f"--family hmm {TINY}") == 2
    assert re.search(r"hmm, 12 states, float32: not run, needs about .* are free", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--states 64", "Say which: --family"),
        ("--sweep states", "Say which: --family"),
        ("--family hmm --rank 3", "tnpcfg, rankpcfg: hmm has none"),
        ("--family rank --state-dropout 0.1", "--state-dropout is for"),
        ("--family lhmm --logit-dropout 0.1", "--logit-dropout is for rank"),
        ("--family lhmm --table published", "has its own models"),
        ("--family lhmm --states 0", "num_states is 0"),
        ("--family lhmm --words 0", "num_words is 0"),
        ("--family lhmm --batch 0", "batch is 0"),
        ("--family block --clusters 5 --states 12", "cannot share evenly"),
        ("--family block --clusters 32 --words 8", "needs a word"),
        ("--family lhmm --repeats 0", "repeats is 0"),
        ("--family lhmm --values 1,2", "--values is of a sweep"),
        ("--family lhmm --plot a.png", "--plot is of a sweep"),
        ("--family lhmm --sweep states --values 1;2", "sizes as 1024,2048,4096"),
        ("--family lhmm --sweep states --values 8", "at least 2 different"),
        ("--family lhmm --sweep states --states 8", "takes its sizes from --values"),
        ("--family hmm --sweep rank", "hmm has no rank"),
    ],
)
def test_mistakes_exit_2(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="of machines without CUDA")
def test_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--family hmm --device cuda") == 2
    assert "cuda" in capsys.readouterr().err.lower()


def test_a_picture_that_cannot_be_written_loses_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("not a folder")
    tiny = TINY.replace("--length 4", "")
    assert run(f"--sweep length --family hmm --values 2,3 --plot {tmp_path}/file/a.png {tiny} --json") == 2
    out, error = capsys.readouterr()
    assert len(json.loads(out)["rows"]) == 2
    assert f"{tmp_path}/file/a.png: the picture cannot be written" in error


def test_no_picture_without_matplotlib_and_no_work_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run(f"--sweep length --family hmm --values 2,3 --plot a.png {TINY.replace('--length 4', '')}") == 2
    error = capsys.readouterr().err
    assert "pip install matplotlib" in error
    assert "..." not in error.replace("pip install", "")


def test_the_examples_of_the_help_are_arguments_it_takes() -> None:
    lines = [line.strip() for line in bench.EXAMPLE.splitlines()[1:]]
    parser = bench.build_parser()
    for line in lines:
        arguments = parser.parse_args(shlex.split(line)[4:])
        bench.read_case(arguments)
    assert all(line.startswith("python -m benchmarks steps") for line in lines)


def test_neither_rich_nor_matplotlib_is_needed() -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'matplotlib', 'scipy'): sys.modules[name] = None\n"
        "from benchmarks.steps import baselines as ceilings\n"
        "ceilings.COPY, ceilings.SIDE = {'cpu': 4096}, {'cpu': 16}\n"
        "from benchmarks.__main__ import main\n"
        f"sys.exit(main('steps --family hmm {TINY}'.split()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hmm, 12 states" in done.stdout
