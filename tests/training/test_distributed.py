"""Several processes make the updates of one process: all families, gradients and EM; killed, resumed, refused."""

import signal
import time
from pathlib import Path

import pytest
import torch

from rankfold.data.demo import draw_trees
from rankfold.errors import DataError, DomainError
from rankfold.training.distributed import expect_rows, own_slice, together, waiting_time
from tests.training.processes import CASES, case, finish, run_cases, start, trained
from tests.training.recordings import write_recordings
from tests.training.runs import expect_equal, metrics, state, write_corpus

FAST = ["lhmm", "streams", "block em", "frame batch em", "cpcfg"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of all cases."""
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder / "words")
    write_recordings(folder / "recordings.npz")
    (folder / "grammar").mkdir()
    for split, num in (("train", 40), ("valid", 6), ("test", 4)):
        lines = [" ".join(tree.words) for tree in draw_trees(num, seed=num, max_words=9)]
        (folder / "grammar" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of one process."""
    out = tmp_path_factory.mktemp("alone")
    run_cases(folder, out, FAST)
    return out


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of two."""
    out = tmp_path_factory.mktemp("pair")
    trained(2, folder, out, FAST)
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
    for one, two in zip(metrics(run), metrics(other), strict=True) if whole else ():
        assert one == {name: pytest.approx(x, rel=rtol) for name, x in two.items()}


@pytest.mark.parametrize("name", FAST)
def test_two_processes_are_one(name: str, alone: Path, pair: Path) -> None:
    expect_close(pair / name, alone / name)


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
def test_every_family(num: int, folder: Path, tmp_path: Path) -> None:
    names = [name for name in CASES if num < 4 or name != "frame streams"]  # which has three rows
    run_cases(folder, tmp_path / "alone", names)
    trained(num, folder, tmp_path / "together", names)
    for name in names:
        expect_close(tmp_path / "together" / name, tmp_path / "alone" / name)


@pytest.mark.slow
def test_two_runs_have_the_same_bits(folder: Path, pair: Path, tmp_path: Path) -> None:
    trained(2, folder, tmp_path, FAST)
    for name in FAST:
        expect_equal(state(tmp_path / name)[0], state(pair / name)[0])


def test_resumed_by_another_number(folder: Path, alone: Path, tmp_path: Path) -> None:
    """Ten updates by two processes, the rest by one: a checkpoint holds the streams of all."""
    trained(2, folder, tmp_path, FAST, "updates=10")
    run_cases(folder, tmp_path, FAST, resume=True)
    for name in FAST:
        expect_close(tmp_path / name, alone / name, whole=False)  # ten updates more: its metrics have an end at ten
        assert metrics(tmp_path / name)[-1]["update"] == 20


@pytest.mark.slow
def test_killed_and_resumed(folder: Path, pair: Path, tmp_path: Path) -> None:
    """kill -9 of either process at ten moments: the other ends too, and the run goes on to the same numbers."""
    for moment in range(10):
        out = tmp_path / str(moment)
        arguments = ["-m", "tests.training.processes", str(folder), str(out), "streams"]
        processes = start(2, arguments, RANKFOLD_TIMEOUT="5")
        while not (out / "streams" / "metrics.jsonl").is_file() and processes[0].poll() is None:
            time.sleep(0.01)
        time.sleep(0.02 * moment)
        processes[moment % 2].send_signal(signal.SIGKILL)
        (_, first), (_, second) = finish(processes)
        finished = (out / "streams" / "report.html").is_file()
        assert finished or "another process is gone" in (first, second)[1 - moment % 2] or "finished" in first + second
        trained(2, folder, out, ["streams"], "resume")
        expect_equal(state(out / "streams")[0], state(pair / "streams")[0])


def test_what_every_rank_is_told(folder: Path, tmp_path: Path) -> None:
    """A batch too small, data that a rank does not have: an error on each, and no run."""
    trains = ["-m", "rankfold", "train", "--recipe", "small-lhmm", "--out", str(tmp_path / "run"), "--device", "cpu"]
    small = ["--set", "data.tokens=1", "data.rounding=1", "--data", str(folder / "words")]
    for status, text in finish(start(2, [*trains, *small])):
        assert status == 2, text
        assert "2 processes" in text
    there = start(2, [*trains, "--data", str(tmp_path / "none")])
    for status, text in finish(there):
        assert status == 2, text
        assert "none" in text
    assert not (tmp_path / "run").exists()


def test_rows_are_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    for num in (0, 1, 2, 3, 7):
        dealt = []
        for i in range(3):
            monkeypatch.setenv("RANK", str(i))
            dealt += range(num)[own_slice(num)]
        assert dealt == list(range(num))


def test_one_process_is_untouched(folder: Path) -> None:
    config, _ = case("lhmm", folder)
    assert own_slice(5) == slice(0, 5)
    expect_rows(config, [])
    with pytest.raises(DataError, match="own"), together():
        raise DataError("its own")


def test_bad_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_TIMEOUT", "soon")
    with pytest.raises(DomainError, match="soon"):
        waiting_time()
