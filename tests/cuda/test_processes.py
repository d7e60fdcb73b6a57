"""Two processes on one GPU, which gloo connects, have the numbers of one: rows of batches shared out, or states.

With `-v` each test says how it ended as it ends. Tests are small, the quickest come first, and the two and the one run
at the same time: a run that is cut short has shown something, and one test that hangs does not take the rest along.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import processes
from tests.recursions.shards import CHAINS, solved
from tests.training import shards
from tests.training.processes import CASES, Group, expect_done, run_cases, run_some, write_data
from tests.training.test_distributed import FAST, expect_close
from tests.training.test_shards import expect_same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
WAYS = pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])


def some(names: tuple[str, ...], num: int) -> list[tuple[str, ...]]:
    """At most so many names for one test."""
    return [tuple(names[i : i + num]) for i in range(0, len(names), num)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def _within_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group.finish, "__defaults__", (110.0,))


def test_one_process_that_torchrun_starts_costs_at_most_three_percent() -> None:
    """An update of 2,048 states, captured; the two take turns. `python -m benchmarks processes --device cuda`."""
    assert processes.main(["--device", "cuda", "--num"]) == 0


def test_chains_in_shards() -> None:
    solved(2, [f"{case} cuda" for case in CHAINS])


@WAYS
def test_one_goes_on(graphs: bool, folder: Path, tmp_path: Path) -> None:
    """Ten updates by two processes, the rest by one."""
    two = Group(
        2,
        run_some,
        folder,
        tmp_path / "resumed",
        tuple(FAST),
        False,
        {"device": "cuda", "graphs": graphs, "updates": 10},
    )
    run_cases(folder, tmp_path / "one", FAST, device="cuda", graphs=graphs)
    expect_done(two)
    run_cases(folder, tmp_path / "resumed", FAST, resume=True, device="cuda", graphs=graphs)
    for name in FAST:
        expect_close(tmp_path / "resumed" / name, tmp_path / "one" / name, whole=False)


@pytest.mark.parametrize("names", some(tuple(shards.CASES), 5), ids="-".join)
def test_states_are_shared_out(names: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    settings = {"device": "cuda", "graphs": False}
    two = Group(2, shards.run_some, folder / "words", tmp_path / "two", names, False, {**settings, "shards": 2})
    shards.run(folder / "words", tmp_path / "one", [*names], **settings)
    expect_done(two)
    for name in names:
        expect_same(tmp_path / "one" / name, tmp_path / "two" / name, rtol=1e-6)


@WAYS
@pytest.mark.parametrize("names", some(CASES, 5), ids="-".join)
def test_rows_are_shared_out(names: tuple[str, ...], graphs: bool, folder: Path, tmp_path: Path) -> None:
    """Gradients and EM, captured as well as eager."""
    settings = {"device": "cuda", "graphs": graphs}
    two = Group(2, run_some, folder, tmp_path / "two", names, False, settings)
    run_cases(folder, tmp_path / "one", [*names], **settings)
    expect_done(two)
    for name in names:
        expect_close(tmp_path / "two" / name, tmp_path / "one" / name)
