"""A row: what is timed next to what, and what is left out."""

import weakref
from typing import Any, get_args

import pytest
import torch

from benchmarks.steps import baselines, row, step
from benchmarks.steps.baselines import Ceilings, cost, try_plain
from benchmarks.steps.cases import Case
from benchmarks.steps.row import TIMES, CheckError, Checks, Settings, Timed, measure_row
from benchmarks.steps.step import Recursion, Step, Update
from rankfold.cli import bench
from rankfold.cli.bench import Check, Gradients
from rankfold.models import ModelConfig
from rankfold.models.config import GrammarConfig, GrammarFamily
from rankfold.planning.measure import forget_peak

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e10, {"float32": 1e10, "bf16": 1e10})
CASE = Case(ModelConfig(family="lhmm", num_states=12, rank=4, dim=4), batch=2, length=5, num_words=20)
DROPPED = Case(ModelConfig(family="block", num_states=12, num_clusters=3, dim=4, state_dropout=0.5), 2, 5, 20)

GRAMMARS = [
    Case(GrammarConfig(family=family, num_nonterminals=3, num_preterminals=4, rank=2, dim=4), 2, 5, 20)
    for family in get_args(GrammarFamily)
]


class Graph:
    """A captured graph where there is no CUDA."""

    def replay(self) -> None:
        pass


def test_a_row_without_dropout_compares_the_same_step() -> None:
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=3))
    assert record["passed"] is True
    assert record["same_step_ms"] == record["step_ms"] == record["eager_ms"]
    assert record["step_ms"]["repeats"] == 3
    assert record["ratio"] == pytest.approx(record["reference_ms"]["median"] / record["step_ms"]["median"])
    assert record["share"] == pytest.approx(record["floor_ms"] / record["step_ms"]["median"])
    assert (record["peak_mib"] is not None) == (record["held_mib"] > 0) == forget_peak()  # a CPU says it on Linux
    plan = CASE.build(CPU).plan(2, 5, "cpu", "float32").best
    assert record["estimate_ms"] == pytest.approx(1e3 * plan.seconds)
    assert record["estimate_mib"] == pytest.approx(plan.peak_bytes / 2**20)


def test_an_update_is_a_step_and_its_optimizer() -> None:
    """Gradients reach AdamW, whose moments they fill; a rate of 0 leaves the parameters as they are."""
    record = measure_row(CASE._replace(update=True), "float32", Settings(CPU, CEILINGS, repeats=2))
    assert record["passed"] is True
    assert record["update_ms"]["median"] > 0
    assert record["update_mib"] is None  # a CPU does not say
    assert measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=2))["update_ms"] is None
    model = CASE.build(CPU)
    before = [x.detach().clone() for x in model.parameters()]
    work = Step(model, CASE.draw(CPU), "float32", None)
    update = Update.of(work)
    update.run()
    wanted = work.run().parameters
    for parameter, first, gradient in zip(model.parameters(), before, wanted, strict=True):
        torch.testing.assert_close(parameter.detach(), first, rtol=0, atol=0)
        torch.testing.assert_close(update.optimizer.state[parameter]["exp_avg"], 0.1 * gradient)
        assert parameter.grad is None


def test_dropout_is_timed_but_not_compared_with_a_reference_that_has_none() -> None:
    record = measure_row(DROPPED, "float32", Settings(CPU, CEILINGS, repeats=2))
    assert record["same_step_ms"] != record["step_ms"]
    assert record["ratio"] == pytest.approx(record["reference_ms"]["median"] / record["same_step_ms"]["median"])


def test_the_step_that_is_timed_drops_states(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    honest = step.gradients

    def spy(*arguments: Any) -> Gradients:
        given.append(arguments[3] is not None)
        return honest(*arguments)

    monkeypatch.setattr(step, "gradients", spy)
    measure_row(DROPPED, "float32", Settings(CPU, CEILINGS, repeats=2))
    # One, and one for its peak where that is told; two of each to warm up; then in turns, with and without dropout.
    turns = [True, True, True, False, False, True, False, True, False]
    assert given in (turns, [True, *turns])


def test_without_the_reference() -> None:
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1, reference=False))
    assert record["step_ms"] is not None
    assert (record["ratio"], record["reference_ms"]) == (None, None)


def test_a_reference_that_is_too_large_or_too_slow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = CASE.build(CPU), CASE.draw(CPU)

    def measured(rate: float = 1e10) -> baselines.Plain:
        return try_plain(model, CASE, batch, "float32", rate=rate, repeats=2)

    assert (measured().repeats, measured().why) == (2, "")
    assert "60 s" in measured(rate=cost(CASE).multiply_adds / 61).why
    monkeypatch.setattr(baselines, "host_time", lambda work, device: work() or 61_000.0)
    assert "takes 61 s" in measured().why
    assert measured().repeats == 0
    monkeypatch.setattr(baselines, "too_large", lambda num_bytes, device: f"{num_bytes} bytes")
    assert measured().why == f"{cost(CASE).bytes} bytes"


def test_a_reference_that_runs_out_of_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40 GiB.")

    monkeypatch.setattr(baselines, "reference_gradients", full)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["reference_note"] == "does not fit into memory"
    assert record["step_ms"] is not None
    assert record["ratio"] is None


def test_a_reference_that_differs_at_the_full_size_leaves_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = baselines.reference_gradients

    def other(*arguments: Any) -> Gradients:
        found = honest(*arguments)
        return found._replace(log_z=found.log_z * 1.001)

    monkeypatch.setattr(baselines, "reference_gradients", other)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["passed"] is False
    assert all(record[key] is None for key in TIMES)
    assert [check["what"] for check in record["checks"] if not check["passed"]] == [
        "log Z in float32 at this size, against the reference"
    ]


def test_a_late_failure_takes_back_the_times_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: Any, checks: Checks, settings: Any) -> None:
        checks.add(Check("the captured step", 0.5, 0.1))

    monkeypatch.setattr(Timed, "prepare", late)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1, reference=False))
    assert record["passed"] is False
    assert record["checks"][-1]["text"] == "the captured step: off by 0.5, allowed 0.1"
    assert all(record[key] is None for key in TIMES)


@pytest.mark.parametrize(("off", "passed"), [(1.0, True), (1.1, False)])
def test_a_captured_step_is_checked_before_it_is_timed(
    off: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture and replay stood in for: what they give is compared with the eager step of the same seed."""

    def capture_graph(work: Any, **_: Any) -> tuple[Graph, Gradients]:
        found = work()
        return Graph(), found._replace(parameters=tuple(off * x for x in found.parameters))

    monkeypatch.setattr(bench, "capture_graph", capture_graph)
    monkeypatch.setattr(bench, "replay_time", lambda graph: 1.5)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    work = Step(CASE.build(CPU), CASE.draw(CPU), "float32", torch.Generator().manual_seed(0))
    checks, settings = Checks(), Settings(torch.device("cuda"), CEILINGS, repeats=4)
    if passed:
        found = row.turn(checks, work, settings)
        assert (found.take(), found.repeats) == (1.5, 4)
    else:
        with pytest.raises(CheckError):
            row.turn(checks, work, settings)
    assert [check.passed for check in checks] == [True, passed]


def test_a_graph_has_its_inputs_as_long_as_it_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Potentials that were given back would be overwritten, or read where nothing is."""
    monkeypatch.setattr(bench, "capture_graph", lambda work, **_: (Graph(), work()))
    monkeypatch.setattr(bench, "replay_checks", lambda *_: [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "replay_time", lambda graph: 1.5)
    work = Recursion.of(GRAMMARS[0].build(CPU), GRAMMARS[0].draw(CPU), "float32")
    inputs = [weakref.ref(x) for x in work.inputs]
    turn = row.turn(Checks(), work, Settings(torch.device("cuda"), CEILINGS))
    del work
    assert all(x() is not None for x in inputs)
    assert turn.take() == 1.5
    del turn
    assert all(x() is None for x in inputs)


def test_the_reference_takes_turns_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def told(name: str, honest: Any) -> Any:
        return lambda *arguments: calls.append(name) or honest(*arguments)

    monkeypatch.setattr(step, "gradients", told("step", step.gradients))
    monkeypatch.setattr(row, "reference_gradients", told("reference", row.reference_gradients))
    measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=3))
    assert calls[-6:] == ["step", "reference"] * 3


def test_a_reference_that_does_not_fit_together_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40 GiB.")

    monkeypatch.setattr(row, "reference_gradients", full)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=2))
    assert record["reference_note"] == "does not fit into memory together with our step"
    assert record["step_ms"]["repeats"] == 2
    assert record["ratio"] is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", [CASE, DROPPED, *GRAMMARS], ids=lambda case: case.name)
def test_on_a_gpu_the_step_is_captured(case: Case) -> None:
    record = measure_row(case, "float32", Settings(torch.device("cuda"), CEILINGS, repeats=3))
    assert [check["text"] for check in record["checks"] if not check["passed"]] == []
    assert record["captured"] is True
    assert record["step_ms"]["median"] < record["eager_ms"]["median"]
    assert record["peak_mib"] > 0
    assert record["reference_mib"] is None or record["reference_mib"] > 0
    assert (record["recursion_ms"] is not None) == case.trees


def test_gradients_of_an_update_lie_in_memory_as_the_parameters_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for all parameters at once refuses others."""
    model = CASE.build(CPU)
    work = Step(model, CASE.draw(CPU), "float32", None)
    found = work.run()
    turned = [x.T.contiguous().T if x.ndim == 2 else x for x in found.parameters]
    assert any(x.stride() != y.stride() for x, y in zip(turned, model.parameters(), strict=True))
    monkeypatch.setattr(Step, "run", lambda _: found._replace(parameters=tuple(turned)))
    update = Update.of(work)
    seen: list[bool] = []

    def spy() -> None:
        for parameter, gradient in zip(model.parameters(), found.parameters, strict=True):
            assert parameter.grad is not None
            seen.append(parameter.grad.stride() == parameter.stride() and bool((parameter.grad == gradient).all()))

    monkeypatch.setattr(update.optimizer, "step", spy)
    update.run()
    assert len(seen) == len(found.parameters)
    assert all(seen)
