"""Gradients summed while the last backward pass goes on are those summed after it, to the last bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from rankfold.errors import DataError
from rankfold.numerics.collectives import is_broken
from rankfold.training import distributed
from rankfold.training.distributed import EarlySums, add_gradients, joined
from rankfold.training.gradients import Gradients
from rankfold.training.loop import train
from tests.training.processes import (
    Group,
    at_update,
    case,
    hang,
    in_float64,
    kill_itself,
    raise_memory,
    run_cases,
    write_data,
)
from tests.training.runs import expect_equal, metrics, state

# Dropout; batches gathered; a start without gradient where a state is carried in; noise; parts; clipped.
CASES: dict[str, dict[str, Any]] = {
    "lhmm": {"clip": 0.01},
    "free tables": {},
    "streams": {},
    "cpcfg": {},
    "frames": {"memory": 1e-4},
}
FEW = {"tokens": 12}  # some batches have fewer sentences than there are processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def _both(folder: Path, out: Path) -> None:
    """The runs of some cases, with all sums after the backward pass, and with early ones."""
    early, sent, whole = EarlySums.__init__, [], []
    begin = Gradients._part

    def part(self: Gradients, *arguments: Any) -> Any:
        found = begin(self, *arguments)
        (sent if self.early.sent else whole).append(self.parts_left)
        return found

    def late(self: EarlySums, parameters: Any) -> None:
        early(self, ())

    with (
        joined(),
        in_float64(),
        mock.patch.object(distributed, "LARGE", 1),
        mock.patch.object(Gradients, "_part", part),
    ):
        for way, make in (("early", early), ("after", late)):
            with mock.patch.object(EarlySums, "__init__", make):
                for name, settings in CASES.items():
                    config, data = case(name, folder, updates=6, **settings)
                    train(config, data, out / way / name, quiet=True)
                config, data = case("lhmm", folder, updates=6, **FEW)
                train(config, data, out / way / "few", quiet=True)
            if way == "early":
                assert sent, "nothing was sent before the backward pass ended"
                assert set(sent) == {0}, "sent before the last backward pass"
                assert max(whole) > 0, "no update had several parts"
                sent.clear()
        assert not sent


def test_early_sums_have_the_bits_of_late_ones(folder: Path, tmp_path: Path) -> None:
    """Three processes: of two, sums would be the same in any order."""
    done = Group(3, _both, folder, tmp_path).finish()
    assert [status for status, _ in done] == [0, 0, 0], done
    for name in (*CASES, "few"):
        early, after = (tmp_path / way / name for way in ("early", "after"))
        expect_equal(state(early)[0], state(after)[0])
        assert metrics(early) == metrics(after)


def _sums(fails: bool) -> None:
    """Large parameters: rank 1 has no gradient of the first, nobody of the second, all have that of the third."""
    own = int(distributed.rank())
    x = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]

    with joined(), mock.patch.object(distributed, "LARGE", 1):
        early = EarlySums(x)

        def compute() -> float:
            with early.during_backward():
                value: Tensor = (x[2] * (own + 1)).sum() + (0 if own else (2 * x[0]).sum())
                value.backward()  # type: ignore[no-untyped-call]
                assert len(early.sent) == (0 if own else 1)  # then comes one without a gradient
            if fails and own:
                raise MemoryError("no memory left")
            return 1.0

        if fails:
            with pytest.raises(MemoryError if own else DataError, match="no memory left"):
                add_gradients(x, compute, early)
            return
        assert add_gradients(x, compute, early) == 2.0
        assert [None if y.grad is None else y.grad.tolist() for y in x] == [[2.0] * 3, None, [3.0] * 3]


@pytest.mark.parametrize("fails", [False, True])
def test_a_gradient_that_some_or_all_lack(fails: bool) -> None:
    done = Group(2, _sums, fails).finish(120)
    assert [status for status, _ in done] == [0, 0], done


def _faulty(folder: Path, out: Path, fault: Callable[[], None]) -> None:
    at_update(3, fault)
    with mock.patch.object(distributed, "LARGE", 1):
        run_cases(folder, out, ["lhmm"])


def test_an_error_amid_early_sums_ends_all(folder: Path, tmp_path: Path) -> None:
    """The others have sent some sums by then; they are told the error, and do not wait."""
    done = Group(2, _faulty, folder, tmp_path, raise_memory).finish(120)
    assert [status for status, _ in done] == [1, 1], done
    assert "rank 1: CUDA out of memory" in done[0].said, done[0].said


def test_sums_that_end_with_another_sum_are_broken() -> None:
    assert is_broken(RuntimeError("Application timeout caused pair closure"))
    assert not is_broken(RuntimeError("size mismatch"))


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "told"), [(kill_itself, "is gone"), (hang, "hangs")])
def test_a_process_that_is_lost_amid_early_sums(
    fault: Callable[[], None], told: str, folder: Path, tmp_path: Path
) -> None:
    """Several sums are on their way; all others name the process that does not answer."""
    done = Group(3, _faulty, folder, tmp_path, fault, RANKFOLD_TIMEOUT="4").finish(40)
    for number in (0, 2):
        assert done[number].status == 1
        assert f"ConnectionError: rank {number} of 3: rank 1 {told}: no answer" in done[number].said, done[number].said
