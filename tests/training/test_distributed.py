"""Several processes make the updates of one process: all families, gradients and EM; killed and resumed."""

import random
import time
from pathlib import Path

import pytest
import torch

from tests.training.processes import CASES, Group, run_cases, run_some, trained, write_data
from tests.training.runs import expect_equal, metrics, state

FAST = ["lhmm", "streams", "block em", "frame batch em", "cpcfg"]
KILLED = ["streams", "cpcfg", "batch em", "frame batch em", "block streams"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of two processes."""
    out = tmp_path_factory.mktemp("pair")
    trained(2, folder, out, FAST)
    return out


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one."""
    out = tmp_path_factory.mktemp("alone")
    run_cases(folder, out, FAST)
    return out


@pytest.fixture(scope="module")
def every_alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all families."""
    out = tmp_path_factory.mktemp("every")
    run_cases(folder, out, [*CASES])
    return out


def expect_close(run: Path, other: Path, *, rtol: float = 1e-6, whole: bool = True) -> None:
    """Raise unless two runs agree in parameters, moments, what is carried, and (`whole`) all numbers of the metrics."""
    tensors, others = state(run)[0], state(other)[0]
    assert tensors.keys() == others.keys()
    for name, x in tensors.items():
        # Entries near 0 are differences of terms of the tensor's size: 1e-6 of that.
        finite = others[name][others[name].double().isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 0.0
        torch.testing.assert_close(x, others[name], rtol=rtol, atol=rtol * scale, msg=lambda m, name=name: name + m)
    best = float("-inf")
    for one, two in zip(metrics(run), metrics(other), strict=True) if whole else ():
        value = two.get("valid_log_likelihood", best)
        if one.get("best") != two.get("best") and value == pytest.approx(best, rel=1e-12):
            one["best"] = two["best"]  # where EM has converged, rounding says which evaluation is the best
        best = max(best, value)
        assert one == {name: pytest.approx(x, rel=rtol) for name, x in two.items()}


@pytest.mark.parametrize("name", FAST)
def test_two_processes_are_one(name: str, alone: Path, pair: Path) -> None:
    expect_close(pair / name, alone / name)


def test_resumed_by_another_number(folder: Path, alone: Path, tmp_path: Path) -> None:
    """Ten updates by two processes, the rest by one: a checkpoint holds the streams of all."""
    names = ["streams", "frame batch em"]
    trained(2, folder, tmp_path, names, updates=10)
    run_cases(folder, tmp_path, names, resume=True)
    for name in names:
        expect_close(tmp_path / name, alone / name, whole=False)  # ten updates more: its metrics have an end at ten
        assert metrics(tmp_path / name)[-1]["update"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
def test_every_family(num: int, folder: Path, every_alone: Path, tmp_path: Path) -> None:
    """Losses, parameters and moments after 20 updates are those of one process; two runs have the same bits."""
    for again in ("first", "second"):
        trained(num, folder, tmp_path / again, [*CASES])
    for name in CASES:
        expect_close(tmp_path / "first" / name, every_alone / name)
        expect_equal(state(tmp_path / "first" / name)[0], state(tmp_path / "second" / name)[0])
        assert metrics(tmp_path / "first" / name) == metrics(tmp_path / "second" / name)


@pytest.mark.slow
def test_every_family_resumed_by_other_numbers(folder: Path, every_alone: Path, tmp_path: Path) -> None:
    """Seven updates by two processes, seven by four, the rest by one."""
    trained(2, folder, tmp_path, [*CASES], updates=7)
    trained(4, folder, tmp_path, [*CASES], resume=True, updates=14)
    run_cases(folder, tmp_path, [*CASES], resume=True)
    for name in CASES:
        expect_close(tmp_path / name, every_alone / name, whole=False)


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
def test_killed_and_resumed(num: int, folder: Path, tmp_path: Path) -> None:
    """kill -9 of one process at ten random moments: the others end and name it; the run goes on to the same bits."""
    settings = {"updates": 60, "log_every": 1}
    trained(num, folder, tmp_path / "whole", KILLED, **settings)
    drawn = random.Random(num)
    for moment in range(10):
        name, out, killed = KILLED[moment % len(KILLED)], tmp_path / str(moment), drawn.randrange(num)
        records, delay = drawn.randrange(40), drawn.uniform(0, 0.03)
        group = Group(num, run_some, folder, out, (name,), False, settings, RANKFOLD_TIMEOUT="20")
        file = out / name / "metrics.jsonl"
        while group.running() and (file.read_bytes().count(b"\n") if file.is_file() else -1) < records:
            time.sleep(0.002)
        time.sleep(delay)
        group.kill(killed)
        done = group.finish()
        assert done[killed].status == -9, "it had ended before"
        for rank, (status, said) in enumerate(done):
            if rank != killed:
                assert status == 1, said
                assert f"ConnectionError: rank {rank} of {num}: rank {killed} is gone: no answer" in said
        trained(num, folder, out, [name], resume=True, **settings)
        expect_equal(state(out / name)[0], state(tmp_path / "whole" / name)[0])
        assert metrics(out / name) == metrics(tmp_path / "whole" / name)
