"""Two processes on one GPU, which gloo connects, have the numbers of one: rows of batches shared out, or states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import processes
from tests.recursions.shards import CHAINS, solved
from tests.training import shards
from tests.training.processes import FRAMES, GRAMMARS, WORDS, run_cases, trained, write_data
from tests.training.test_distributed import expect_close
from tests.training.test_shards import expect_same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("names", [[*WORDS], [*FRAMES], [*GRAMMARS]], ids=["words", "frames", "grammars"])
def test_rows_are_shared_out(names: list[str], graphs: bool, folder: Path, tmp_path: Path) -> None:
    """Gradients and EM, captured as well as eager; the run of two goes on with one."""
    run_cases(folder, tmp_path / "one", names, device="cuda", graphs=graphs)
    trained(2, folder, tmp_path / "two", names, device="cuda", graphs=graphs)
    trained(2, folder, tmp_path / "resumed", names, device="cuda", graphs=graphs, updates=10)
    run_cases(folder, tmp_path / "resumed", names, resume=True, device="cuda", graphs=graphs)
    for name in names:
        expect_close(tmp_path / "two" / name, tmp_path / "one" / name)
        expect_close(tmp_path / "resumed" / name, tmp_path / "one" / name, whole=False)


def test_states_are_shared_out(folder: Path, tmp_path: Path) -> None:
    names = list(shards.CASES)
    shards.run(folder / "words", tmp_path / "one", names, device="cuda", graphs=False)
    shards.trained(2, folder / "words", tmp_path / "two", names, device="cuda")
    for name in names:
        expect_same(tmp_path / "one" / name, tmp_path / "two" / name, rtol=1e-6)


def test_chains_in_shards() -> None:
    solved(2, [f"{case} cuda" for case in CHAINS])


def test_one_process_that_torchrun_starts_costs_at_most_three_percent() -> None:
    """An update of 2,048 states, captured; the two take turns. `python -m benchmarks processes --device cuda`."""
    assert processes.main(["--device", "cuda", "--num"]) == 0
