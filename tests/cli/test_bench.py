"""`rankfold bench`, as a new user would meet it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold import cli
from rankfold.cli import bench
from rankfold.models.pcfg import PCFG
from rankfold.models.sequence import ChainModel
from rankfold.planning import measure

SHAPE = "--batch 2 --length 5 --repeats 2 --device cpu"
LHMM = f"small-lhmm --set model.num_states=12 model.rank=4 model.dim=4 --words 20 {SHAPE}"


@pytest.fixture(autouse=True)
def _no_sweeping_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)  # nothing here is large


def run(text: str) -> int:
    return cli.main(["bench", *shlex.split(text)])


@pytest.mark.parametrize(
    "model",
    [
        LHMM,
        f"small-rank --set model.num_states=12 model.rank=4 model.dim=4 --words 20 --precision bf16 {SHAPE}",
        f"small-block --set model.num_states=16 model.num_clusters=4 model.dim=4 --words 20 {SHAPE}",
        f"small-rankpcfg --set model.num_nonterminals=4 model.num_preterminals=6 model.dim=4 --words 20 {SHAPE}",
        f"small-cpcfg --set model.num_nonterminals=2 model.num_preterminals=3 model.dim=4 --words 20 {SHAPE}",
        f"segment-hsmm --set model.num_features=3 {SHAPE}",
        f"segment-hmm --set model.num_features=3 model.observations=categorical {SHAPE}",
    ],
    ids=lambda line: line.split()[0],
)
def test_a_recipe_is_checked_and_timed(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model) == 0
    captured = capsys.readouterr()
    assert torch.__version__ in captured.out.splitlines()[0]
    assert re.search(r"\| log Z in \w+ against float64 +\| +\d\.\de[-+]\d+ \| +\de-\d+ \| +yes \|", captured.out)
    assert re.search(r"\| gradient step \| .* to .* \| +[\d,]+ \| +[\d,-]+ \|", captured.out)
    assert "times ..." in captured.err  # progress is not a result


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{LHMM} --json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {
        *("rankfold", "torch", "date", "device", "family", "parameters", "batch", "length", "precision"),
        *("step_ms", "eager_ms", "forward_ms", "peak_mib", "tokens_per_second", "checks", "passed"),
    }
    assert report["passed"] is True
    assert report["tokens_per_second"] == pytest.approx(1e3 * 2 * 5 / report["step_ms"]["median"])
    assert set(report["step_ms"]) == {"median", "low", "high", "repeats"}
    assert [check["what"] for check in report["checks"]] == [
        "log Z in float32 against float64",
        "gradients in float32 against float64",
        "log Z in float64 against logarithms",
    ]


def test_a_saved_model_is_benched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = bench.find_model("small-lhmm", ["model.num_states=12", "model.rank=4", "model.dim=4"], 20).config
    model = bench.fresh_model(config, 20)
    model.save_pretrained(tmp_path / "model")
    assert run(f"{tmp_path / 'model'} {SHAPE} --json") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(x.numel() for x in model.parameters())


@pytest.mark.parametrize("form", ["", "--json"])
def test_no_speed_for_code_that_is_wrong(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = ChainModel.log_z

    def rough(self: Any, p: Any, *rest: Any, **choices: Any) -> torch.Tensor:
        value = honest(self, p, *rest, **choices)
        return value * (1 + 1e-5) if p.log_obs.dtype == torch.float32 else value

    monkeypatch.setattr(ChainModel, "log_z", rough)
    assert run(f"{LHMM} {form}") == 1
    captured = capsys.readouterr()
    assert "times ..." not in captured.err
    if form:
        report = json.loads(captured.out)
        assert report["passed"] is False
        assert report["step_ms"] is report["tokens_per_second"] is None
        assert [check["passed"] for check in report["checks"]] == [False, True, True]
    else:
        assert "No time is reported for a result that is wrong." in captured.out
        assert "gradient step |" not in captured.out


def test_a_sum_that_logarithms_do_not_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PCFG.log_z
    monkeypatch.setattr(
        PCFG, "log_z", lambda self, p, *rest, **choices: honest(self, p, *rest, **choices) + (1e-6 if rest else 0.0)
    )
    lines = ["model.num_nonterminals=4", "model.num_preterminals=6", "model.dim=4"]
    model = bench.fresh_model(bench.find_model("small-npcfg", lines, 20).config, 20)
    checks = bench.check_step(model, bench.draw_batch(model.config, 20, 2, 5), "float32")
    assert [check.passed for check in checks] == [True, True, False]


def test_float64_that_does_not_fit_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = bench.gradients

    def greedy(model: Any, *arguments: Any) -> Any:
        if next(model.parameters()).dtype == torch.float64:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        return honest(model, *arguments)

    monkeypatch.setattr(bench, "gradients", greedy)
    assert run(LHMM) == 0
    out = capsys.readouterr().out
    assert out.count("| left out |") == 3
    assert "Left out: float64 does not fit into memory." in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (LHMM.replace("--batch 2", "--batch 0"), "--batch is 0"),
        (LHMM.replace("--length 5", "--length 0"), "--length is 0"),
        (LHMM.replace("--repeats 2", "--repeats 0"), "--repeats is 0"),
        (f"{LHMM} --precision tf32", "tf32, which a CPU computes as float32"),
        (f"small-npcfg --words 20 {SHAPE.replace('--length 5', '--length 1')}", "probability 0"),
        ("no-such-recipe", "no-such-recipe"),
    ],
)
def test_mistakes_exit_2(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_a_step_that_does_not_fit_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "available_bytes", lambda: 1000)
    assert run(LHMM) == 2
    assert re.search(r"does not fit: it needs about .* are free", capsys.readouterr().err)


def test_float64_is_not_begun_where_it_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bench.fresh_model(bench.find_model("small-lhmm", ["model.num_states=12", "model.rank=4"], 20).config, 20)
    plan = model.plan(2, 5, "cpu", "float32").best
    monkeypatch.setattr(measure, "available_bytes", lambda: plan.peak_bytes)
    checks = bench.check_step(model, bench.draw_batch(model.config, 20, 2, 5), "float32")
    assert [check.error for check in checks] == [None] * 3
    assert all(check.why.startswith("float64 needs about") for check in checks)


def test_the_examples_of_the_help_are_arguments_it_takes() -> None:
    parser = cli.build_parser()
    for line in bench.EXAMPLE.splitlines()[1:]:
        assert parser.parse_args(shlex.split(line)[1:]).run is bench.run


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_step_is_captured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{LHMM.replace('cpu', 'cuda')} --json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_ms"]["median"] < report["eager_ms"]["median"]
    assert report["peak_mib"] > 0
    assert len(report["checks"]) == 5
