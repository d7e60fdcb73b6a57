"""What lets a row have times: errors as they are defined, and limits that NaN never meets."""

import math
from typing import Any, get_args

import pytest
import torch

from benchmarks.steps import checks, row
from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.cases import Case
from benchmarks.steps.checks import full_check, gradient_error, order_check, small_checks
from benchmarks.steps.row import TIMES, Settings, measure_row
from rankfold.cli.bench import Check, Gradients, relative_error, replay_checks
from rankfold.models import ModelConfig
from rankfold.models.config import Family, GrammarConfig, GrammarFamily
from rankfold.models.sequence import ChainModel
from rankfold.planning import measure

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e10, {"float32": 1e10, "tf32": 1e10, "bf16": 1e10})
LHMM = Case(ModelConfig(family="lhmm", num_states=12, rank=4, dim=4), batch=2, length=5, num_words=20)


def of(log_z: list[float], *parameters: list[float]) -> Gradients:
    return Gradients(torch.tensor(log_z), tuple(torch.tensor(x) for x in parameters))


def test_errors_are_relative_to_what_they_are_of() -> None:
    assert relative_error(torch.tensor([-10.0, -99.0]), torch.tensor([-10.0, -100.0])) == pytest.approx(0.01)
    assert gradient_error(of([0], [2.0, 1.0], [5.0]), of([0], [2.0, 1.5], [5.0])) == pytest.approx(0.25)
    # A gradient that nearly vanishes is measured against a hundredth of the largest.
    assert gradient_error(of([0], [0.001], [5.0]), of([0], [0.0], [5.0])) == pytest.approx(0.02)


def test_nan_is_never_within_a_limit() -> None:
    assert math.isnan(relative_error(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 1.0])))
    assert math.isnan(gradient_error(of([0], [5.0], [math.nan], [5.0]), of([0], [4.0], [1.0], [4.0])))
    assert not Check("what", math.nan, 1.0).passed
    assert Check("what", 0.5, 0.5).passed
    assert not Check("what", 0.6, 0.5).passed


def test_a_check_left_out_says_why() -> None:
    check = Check("log Z", None, 1e-6, "too large")
    assert check.passed
    assert check.text() == "log Z: left out, too large"


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded", "rank", "block"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_honest_code_passes(family: Family, precision: Any) -> None:
    case = Case(ModelConfig(family=family, num_states=32, num_clusters=32))
    assert [check.text() for check in small_checks(case, precision, CPU) if not check.passed] == []


@pytest.mark.parametrize("family", get_args(GrammarFamily))
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_honest_grammars_pass(family: GrammarFamily, precision: Any) -> None:
    found = small_checks(Case(GrammarConfig(family=family), length=9), precision, CPU)
    assert [check.text() for check in found if not check.passed] == []
    left_out = [check.text() for check in found if check.error is None]
    assert all("left out, the reference is not written for cpcfg" in text for text in left_out)
    assert len(left_out) == (family == "cpcfg")


def remembered(work: Any) -> Any:
    """The same work on the same parameters, done once."""
    known: dict[Any, Any] = {}

    def once(model: Any, *rest: Any, **options: Any) -> Any:
        key = tuple((x.dtype, x.sum().item()) for x in model.parameters())
        if key not in known:
            known[key] = work(model, *rest, **options)
        return known[key]

    return once


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded", "rank", "block"])
def test_no_parameter_goes_without_its_gradient(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a share of the whole it is, and in low precision alone."""
    honest, case = remembered(checks.gradients), Case(ModelConfig(family=family))
    monkeypatch.setattr(checks, "reference_gradients", remembered(checks.reference_gradients))
    for lost, _ in checks.shrink(case).build(CPU).named_parameters():

        def forgetful(model: Any, batch: Any, precision: Any, *rest: Any, lost: str = lost) -> Gradients:
            found = honest(model, batch, precision, *rest)
            names = [name for name, _ in model.named_parameters()]
            kept = (x * (name != lost or precision != "bf16") for name, x in zip(names, found.parameters, strict=True))
            return found._replace(parameters=tuple(kept))

        monkeypatch.setattr(checks, "gradients", forgetful)
        failed = [check.what for check in small_checks(case, "bf16", CPU) if not check.passed]
        assert failed, lost
        assert failed[-1].startswith("the worst parameter's gradient in bf16 at a small size"), lost


def test_a_gradient_of_nothing_is_right_if_it_is_found_to_be_nothing() -> None:
    whole = of([0], [3.0, 4.0], [0.0])
    assert checks.parameter_distance(whole, whole) == 0
    assert checks.parameter_distance(of([0], [3.0, 4.0], [1e-9]), whole) == math.inf
    assert checks.parameter_distance(of([0], [3.0, 4.0], [1e-9]), whole, least=1e-4) == pytest.approx(2e-6)
    assert math.isnan(checks.parameter_distance(of([0], [3.0, 4.0], [math.nan]), whole))


def test_a_wrong_gradient_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checks.gradients

    def biased(*arguments: Any) -> Gradients:
        found = honest(*arguments)
        return found._replace(parameters=(*found.parameters[:-1], found.parameters[-1] * 1.01))

    monkeypatch.setattr(checks, "gradients", biased)
    failed = [check.what for check in small_checks(LHMM, "float32", CPU) if not check.passed]
    assert failed
    assert all("gradient" in what for what in failed)


def test_the_full_size_is_compared_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = LHMM.build(CPU), LHMM.draw(CPU)
    good = full_check(model, batch, "float32", 0)
    assert good.error is not None
    assert 0 < good.error < 1e-6
    honest = ChainModel.log_z

    def rough(self: Any, p: Any, *rest: Any, **choices: Any) -> torch.Tensor:
        value = honest(self, p, *rest, **choices)
        return value * (1 + 1e-5) if p.log_obs.dtype == torch.float32 else value

    monkeypatch.setattr(ChainModel, "log_z", rough)
    bad = full_check(model, batch, "float32", 0)
    assert bad.error == pytest.approx(1e-5, rel=0.1)
    assert not bad.passed
    assert full_check(model, batch, "tf32", 0).passed  # a limit of its own


def test_float64_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = LHMM.build(CPU), LHMM.draw(CPU)
    monkeypatch.setattr(measure, "available_bytes", lambda: 2**30)
    check = full_check(model, batch, "float32", 2**30)
    assert check.error is None
    assert "2.0 GiB, 1.0 GiB are free" in check.why
    assert full_check(model, batch, "float32", 2**29).error is not None
    monkeypatch.setattr(checks, "log_z", _greedy(checks.log_z))
    check = full_check(model, batch, "float32", 0)
    assert (check.error, check.why) == (None, "float64 does not fit into memory")


def _greedy(honest: Any) -> Any:
    """log Z on a machine whose memory ends where float64 begins."""

    def log_z(model: Any, *arguments: Any) -> torch.Tensor:
        if next(model.parameters()).dtype == torch.float64:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")
        value: torch.Tensor = honest(model, *arguments)
        return value

    return log_z


def test_a_step_that_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "available_bytes", lambda: 100)
    record = measure_row(LHMM, "float32", Settings(CPU, CEILINGS, repeats=1))
    assert "are free" in record["note"]
    assert record["passed"] is True
    assert all(record[key] is None for key in TIMES)


def test_other_errors_are_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(row, "full_check", broken)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        measure_row(LHMM, "float32", Settings(CPU, CEILINGS, repeats=1))


def test_orders_are_held_to_one_another() -> None:
    one = torch.tensor([-100.0, -50.0], dtype=torch.float64)
    assert order_check(one * (1 + 9e-7), one, "state against rank space", "float32").passed
    check = order_check(one * (1 + 1.1e-6), one, "state against rank space", "float32")
    assert not check.passed
    assert check.text().startswith("log Z in float32 at this size, state against rank space: off by 1.1e-06")


def test_replays_are_held_to_the_eager_step() -> None:
    eager = of([-10.0], [1.0, 2.0])
    assert all(check.passed for check in replay_checks(eager, eager, "tf32"))
    wrong_value, wrong_gradient = of([-10.01], [1.0, 2.0]), of([-10.0], [1.0, 2.5])
    assert [check.passed for check in replay_checks(wrong_value, eager, "tf32")] == [False, True]
    assert [check.passed for check in replay_checks(wrong_gradient, eager, "tf32")] == [True, False]
    assert not replay_checks(of([math.nan], [1.0, 2.0]), eager, "bf16")[0].passed
