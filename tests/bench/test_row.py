"""A row: what is timed beside what, and what is left out."""

from typing import Any

import pytest
import torch

from rankfold.bench import plain, row
from rankfold.bench.cases import Case
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.checks import Check
from rankfold.bench.plain import cost, measure_plain
from rankfold.bench.row import TIMES, Settings, measure_row
from rankfold.bench.step import Gradients
from rankfold.bench.timing import Spread
from rankfold.models import ModelConfig

CPU = torch.device("cpu")
CEILINGS = Ceilings(1e10, {"float32": 1e10, "bf16": 1e10})
CASE = Case(ModelConfig(family="lhmm", num_states=12, rank=4, dim=4), batch=2, length=5, num_words=20)
DROPPED = Case(ModelConfig(family="block", num_states=12, num_clusters=3, dim=4, state_dropout=0.5), 2, 5, 20)


def test_a_row_without_dropout_compares_the_same_step() -> None:
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=3))
    assert record["passed"] is True
    assert record["same_step_ms"] == record["step_ms"] == record["eager_ms"]
    assert record["step_ms"]["repeats"] == 3
    assert record["ratio"] == pytest.approx(record["reference_ms"]["median"] / record["step_ms"]["median"])
    assert record["share"] == pytest.approx(record["floor_ms"] / record["step_ms"]["median"])
    assert record["peak_mib"] is None  # a CPU does not say
    plan = CASE.build(CPU).plan(2, 5, "cpu", "float32").best
    assert record["estimate_ms"] == pytest.approx(1e3 * plan.seconds)
    assert record["estimate_mib"] == pytest.approx(plan.peak_bytes / 2**20)


def test_dropout_is_timed_but_not_compared_with_a_reference_that_has_none() -> None:
    record = measure_row(DROPPED, "float32", Settings(CPU, CEILINGS, repeats=2))
    assert record["same_step_ms"] != record["step_ms"]
    assert record["ratio"] == pytest.approx(record["reference_ms"]["median"] / record["same_step_ms"]["median"])


def test_the_step_that_is_timed_drops_states(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []
    honest = row.gradients

    def spy(*arguments: Any) -> Gradients:
        given.append(arguments[3] is not None)
        return honest(*arguments)

    monkeypatch.setattr(row, "gradients", spy)
    measure_row(DROPPED, "float32", Settings(CPU, CEILINGS, repeats=2))
    assert given == [True] * 5 + [False] * 4  # one, two to warm up and two; two to warm up and two without dropout


def test_without_the_reference() -> None:
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1, reference=False))
    assert record["step_ms"] is not None
    assert (record["ratio"], record["reference_ms"]) == (None, None)


def test_a_reference_that_is_too_large_or_too_slow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = CASE.build(CPU), CASE.draw(CPU)

    def measured(rate: float = 1e10) -> plain.Plain:
        return measure_plain(model, CASE, batch, "float32", rate=rate, repeats=2)

    assert measured().time is not None
    assert "60 s" in measured(rate=cost(CASE).multiply_adds / 61).why
    monkeypatch.setattr(plain, "host_time", lambda work, device: work() or 61_000.0)
    assert "takes 61 s" in measured().why
    monkeypatch.setattr(plain, "too_large", lambda num_bytes, device: f"{num_bytes} bytes")
    assert measured().why == f"{cost(CASE).bytes} bytes"


def test_a_reference_that_runs_out_of_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40 GiB.")

    monkeypatch.setattr(plain, "reference_gradients", full)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["reference_note"] == "does not fit into memory"
    assert record["step_ms"] is not None
    assert record["ratio"] is None


def test_a_reference_that_differs_at_the_full_size_leaves_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = plain.reference_gradients

    def other(*arguments: Any) -> Gradients:
        found = honest(*arguments)
        return found._replace(log_z=found.log_z * 1.001)

    monkeypatch.setattr(plain, "reference_gradients", other)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1))
    assert record["passed"] is False
    assert all(record[key] is None for key in TIMES)
    assert [check["what"] for check in record["checks"] if not check["passed"]] == [
        "log Z in float32 at this size, against the reference"
    ]


def test_a_late_failure_takes_back_the_times_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(record: dict[str, Any], checks: Any, *_: Any) -> None:
        record["eager_ms"] = Spread(1.0, 1.0, 1.0, 1)._asdict()
        checks.add(Check("the captured step", 0.5, 0.1))

    monkeypatch.setattr(row, "_own_times", late)
    record = measure_row(CASE, "float32", Settings(CPU, CEILINGS, repeats=1, reference=False))
    assert record["passed"] is False
    assert record["checks"][-1]["text"] == "the captured step: off by 0.5, allowed 0.1"
    assert all(record[key] is None for key in TIMES)


@pytest.mark.parametrize(("off", "passed"), [(1.0, True), (1.1, False)])
def test_a_captured_step_is_checked_before_it_is_timed(
    off: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture and replay stood in for: what they give is compared with the eager step of the same seed."""

    class Graph:
        def replay(self) -> None:
            pass

    def captured(work: Any, **_: Any) -> tuple[Graph, Gradients]:
        found = work()
        return Graph(), found._replace(parameters=tuple(off * x for x in found.parameters))

    monkeypatch.setattr(row, "captured", captured)
    monkeypatch.setattr(row, "replay_times", lambda graph, repeats: Spread(1.0, 1.0, 1.0, repeats))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    step = row.Step(CASE.build(CPU), CASE.draw(CPU), "float32", torch.Generator().manual_seed(0))
    checks = row._Checks()
    if passed:
        assert row._replayed(checks, step, Settings(CPU, CEILINGS, repeats=4)) == Spread(1.0, 1.0, 1.0, 4)
    else:
        with pytest.raises(row.CheckError):
            row._replayed(checks, step, Settings(CPU, CEILINGS, repeats=4))
    assert [check.passed for check in checks] == [True, passed]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", [CASE, DROPPED], ids=lambda case: case.name)
def test_on_a_gpu_the_step_is_captured(case: Case) -> None:
    record = measure_row(case, "float32", Settings(torch.device("cuda"), CEILINGS, repeats=3))
    assert [check["text"] for check in record["checks"] if not check["passed"]] == []
    assert record["captured"] is True
    assert record["step_ms"]["median"] < record["eager_ms"]["median"]
    assert record["peak_mib"] > 0
    assert record["reference_mib"] > 0
