"""What every process is told where one has no data, no memory, another device, or is gone; nothing is half-written."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import rankfold
from rankfold.errors import DataError, DomainError
from rankfold.training import distributed, loop
from rankfold.training.board import waiting_time
from rankfold.training.distributed import expect_rows, job, joined, num_sharing, own_slice, restarted, together
from rankfold.training.gradients import Gradients
from tests.training.processes import (
    Done,
    Group,
    at_update,
    case,
    command,
    hang,
    raise_memory,
    run_cases,
    updates_done,
    write_data,
)
from tests.training.runs import metrics, state

TRAIN = ("train", "--recipe", "small-lhmm", "--device", "cpu")
SIZES = ("--set", "model.num_states=8", "model.rank=4", "model.dim=4", "train.updates=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def expect_told(done: list[Done], *words: str, status: int = 2) -> None:
    """Raise unless all processes ended with this status and these words."""
    for rank, (own, said) in enumerate(done):
        assert own == status, f"rank {rank}: {own}\n{said}"
        for word in words:
            assert word in said, f"rank {rank}:\n{said}"
        assert "Traceback" not in said or status == 1, said


def files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*")) if run.exists() else []


def test_a_batch_smaller_than_the_processes(folder: Path, tmp_path: Path) -> None:
    small = ("--set", "data.tokens=1", "data.rounding=1", "--data", str(folder / "words"))
    done = Group(2, command, *TRAIN, "--out", str(tmp_path / "run"), *small).finish()
    expect_told(done, "the largest batch has 1 sequences", "2 processes", "data.tokens")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_that_no_process_has(tmp_path: Path) -> None:
    done = Group(2, command, *TRAIN, "--out", str(tmp_path / "run"), "--data", str(tmp_path / "none")).finish()
    expect_told(done, "none")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [pytest.param("folder", marks=pytest.mark.slow), "text"])
def test_data_that_one_process_does_not_have(kind: str, folder: Path, tmp_path: Path) -> None:
    """A text, too, which the first process would prepare into the run."""
    own = folder / "words" if kind == "folder" else folder / "words" / "train.txt"
    data = [str(own), str(tmp_path / "elsewhere")]
    done = Group(2, command, *TRAIN, "--out", str(tmp_path / "run"), "--data", data).finish()
    expect_told(done, "not there on rank 1 of 2")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_other_data_on_one_process(folder: Path, tmp_path: Path) -> None:
    other = write_data(tmp_path / "other") / "words"
    (other / "train.txt").write_text((other / "train.txt").read_text() + "w01 w02\n")
    data = [str(folder / "words"), str(other)]
    done = Group(2, command, *TRAIN, "--out", str(tmp_path / "run"), "--data", data).finish()
    expect_told(done, "ranks 0 and 1 do not have the same data")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_another_recipe_on_one_process(folder: Path, tmp_path: Path) -> None:
    rate = ["train.lr=0.1", "train.lr=0.2"]
    given = (*TRAIN, "--out", str(tmp_path / "run"), "--data", str(folder / "words"), *SIZES)
    expect_told(Group(2, command, *given, rate).finish(), "do not have the same recipe")
    assert not (tmp_path / "run").exists()


def _on_a_device(folder: Path, out: Path, device: str) -> None:
    loop.choose_device = lambda name: torch.device(device)
    run_cases(folder, out, ["lhmm"])


def test_devices_of_different_kinds(folder: Path, tmp_path: Path) -> None:
    done = Group(2, _on_a_device, folder, tmp_path / "run", ["cpu", "cuda"]).finish()
    expect_told(done, "do not have the same kind of device (cpu and cuda)", "train.device", status=1)
    assert files(tmp_path / "run" / "lhmm") == []


@pytest.mark.slow
def test_a_checkpoint_that_one_process_does_not_see(folder: Path, tmp_path: Path) -> None:
    run_cases(folder, tmp_path / "one", ["lhmm"], updates=5)
    for name in ("recipe.toml", "vocab.json", "data.json"):
        (tmp_path / "two" / "lhmm").mkdir(parents=True, exist_ok=True)
        (tmp_path / "two" / "lhmm" / name).write_bytes((tmp_path / "one" / "lhmm" / name).read_bytes())
    before = state(tmp_path / "one" / "lhmm")
    done = Group(2, _resumes, folder, [tmp_path / "one", tmp_path / "two"]).finish()
    expect_told(done, "do not have the same checkpoint (update 5 and update 0)", "disk", status=1)
    assert state(tmp_path / "one" / "lhmm")[1] == before[1]


def _resumes(folder: Path, out: Path) -> None:
    run_cases(folder, out, ["lhmm"], resume=True)


def _run_out_of_memory() -> None:
    """Less address space than a tensor asks for, as of a machine that is full."""
    resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.RLIM_INFINITY))
    torch.empty(2**34)


def _interrupt() -> None:
    raise KeyboardInterrupt


FAULTS = {"raised": raise_memory, "limit": _run_out_of_memory, "hangs": hang, "interrupted": _interrupt}


def _meets(folder: Path, out: Path, fault: str, name: str) -> None:
    at_update(8, FAULTS[fault])
    run_cases(folder, out, [name])


@pytest.mark.parametrize("fault", ["raised", pytest.param("limit", marks=pytest.mark.slow)])
def test_a_process_out_of_memory(fault: str, folder: Path, tmp_path: Path) -> None:
    """The first says that the second had no memory, and for what; the checkpoint before is whole."""
    done = Group(2, _meets, folder, tmp_path, fault, "lhmm").finish()
    words = "CUDA out of memory" if fault == "raised" else "can't allocate memory"
    expect_told(done, words, status=1)
    assert "DataError: rank 1: " in done[0].said
    assert state(tmp_path / "lhmm")[1]["progress"]["update"] == 7
    run_cases(folder, tmp_path, ["lhmm"], resume=True)
    assert metrics(tmp_path / "lhmm")[-1]["update"] == 20


@pytest.mark.slow
def test_a_process_that_hangs(folder: Path, tmp_path: Path) -> None:
    """The others say which, and after how long."""
    group = Group(3, _meets, folder, tmp_path, "hangs", "lhmm", RANKFOLD_TIMEOUT="2")
    for rank in (0, 2):
        group.members[rank].join(60)
    group.kill(1)
    done = group.finish()
    for rank in (0, 2):
        said = done[rank].said
        assert f"rank {rank} of 3: rank 1 hangs: no answer after " in said, said
        assert "at most 2 seconds, which RANKFOLD_TIMEOUT sets" in said
    assert state(tmp_path / "lhmm")[1]["progress"]["update"] == 7


@pytest.mark.slow
def test_a_process_that_ends_by_itself(folder: Path, tmp_path: Path) -> None:
    done = Group(2, _meets, folder, tmp_path, "interrupted", "lhmm").finish()
    assert "rank 0 of 2: rank 1 ended with: KeyboardInterrupt" in done[0].said
    assert state(tmp_path / "lhmm")[1]["progress"]["update"] == 7


def _full_disk(folder: Path, out: Path) -> None:
    save = loop.save_checkpoint

    def full(path: Path, *arguments: Any, **options: Any) -> None:
        if arguments[2].update > 7:
            raise OSError(28, f"{path} could not be written: no space left")
        save(path, *arguments, **options)

    loop.save_checkpoint = full
    run_cases(folder, out, ["lhmm"])


@pytest.mark.slow
def test_a_disk_that_is_full(folder: Path, tmp_path: Path) -> None:
    """Only the first process writes; all are told."""
    done = Group(2, _full_disk, folder, tmp_path).finish()
    expect_told(done, "no space left", status=1)
    assert state(tmp_path / "lhmm")[1]["progress"]["update"] == 7


@pytest.mark.slow
def test_a_process_that_never_comes(folder: Path, tmp_path: Path) -> None:
    """Two of three are started."""
    group = Group(2, _resumes, folder, tmp_path, WORLD_SIZE="3", RANKFOLD_TIMEOUT="2")
    expect_told(group.finish(), "of 3", "within 2 seconds", "RANKFOLD_TIMEOUT", status=1)


@pytest.mark.slow
def test_a_loss_that_is_not_finite(folder: Path, tmp_path: Path) -> None:
    """The process whose rows they are keeps them; the other is told by it."""
    done = Group(2, _loses, folder, tmp_path).finish()
    assert [status for status, _ in done] == [1, 1]
    assert "rank 1: update 9: its log-likelihood is nan" in done[0].said, done[0].said
    assert [file.name for file in (tmp_path / "lhmm").glob("bad-batch*")] == ["bad-batch-9-rank-1.json"]
    assert json.loads((tmp_path / "lhmm" / "bad-batch-9-rank-1.json").read_text())["update"] == 9


def _loses(folder: Path, out: Path) -> None:
    part = Gradients._part

    def lost(self: Gradients, batch: Any, *arguments: Any) -> Any:
        if os.environ["RANK"] == "1" and updates_done(self.optimizer) == 8:
            raise self.not_finite([batch], "its log-likelihood is nan")
        return part(self, batch, *arguments)

    Gradients._part = lost  # type: ignore[method-assign]
    run_cases(folder, out, ["lhmm"])


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all(folder: Path, tmp_path: Path) -> None:
    """The update is finished, a checkpoint is written, and the run goes on to the end of an uninterrupted one."""
    settings = {"updates": 60, "log_every": 1}
    group = Group(2, _long, folder, tmp_path, settings)
    file = tmp_path / "streams" / "metrics.jsonl"
    while group.running() and (file.read_bytes().count(b"\n") if file.is_file() else -1) < 5:
        time.sleep(0.002)
    os.kill(group.members[1].pid or 0, signal.SIGTERM)
    done = group.finish()
    assert [status for status, _ in done] == [0, 0], done
    progress = state(tmp_path / "streams")[1]["progress"]
    assert 5 <= progress["update"] < 60
    assert metrics(tmp_path / "streams")[-1]["update"] == progress["update"]


def _long(folder: Path, out: Path, settings: dict[str, Any]) -> None:
    run_cases(folder, out, ["streams"], **settings)


def _processes(monkeypatch: pytest.MonkeyPatch, num: int, **environment: str) -> None:
    own = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": str(num), "RANK": "0", **environment}
    for name, value in own.items():
        monkeypatch.setenv(name, value)


def test_rows_are_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    for num in (0, 1, 2, 3, 7):
        dealt = []
        for i in range(3):
            _processes(monkeypatch, 3, RANK=str(i))
            dealt += range(num)[own_slice(num)]
        assert dealt == list(range(num))


def test_a_restart_goes_on_with_its_own_run_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run of another job stays refused, however often torchrun tries."""
    _processes(monkeypatch, 2, TORCHELASTIC_RUN_ID="mine", TORCHELASTIC_RESTART_COUNT="1")
    monkeypatch.setattr(distributed, "any_process", bool)
    assert not restarted(tmp_path, "recipe.toml")
    (tmp_path / "recipe.toml").touch()
    for content, goes_on in (({"job": "mine"}, True), ({"job": "another"}, False), ({}, False)):
        (tmp_path / "environment.json").write_text(json.dumps(content))
        assert restarted(tmp_path, "recipe.toml") is goes_on
    (tmp_path / "environment.json").write_text(json.dumps({"job": "mine"}))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not restarted(tmp_path, "recipe.toml")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # of every torchrun that is given no name
    assert str(os.getppid()) in (job() or "")


def _restarts(out: Path) -> None:
    with mock.patch.object(distributed, "job", return_value=f"machine {os.environ['RANK']}"), joined():
        assert restarted(out, "recipe.toml")
        assert not restarted(out / "another", "recipe.toml")


def test_machines_agree_on_a_restart(tmp_path: Path) -> None:
    """A torchrun without a name is another job on each machine: the first says whether it began the run."""
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "environment.json").write_text(json.dumps({"job": "machine 0"}))
    done = Group(2, _restarts, tmp_path, TORCHELASTIC_RESTART_COUNT="1").finish()
    assert [status for status, _ in done] == [0, 0], done


def test_processes_share_the_memory_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    _processes(monkeypatch, 8, LOCAL_WORLD_SIZE="4")
    assert num_sharing("cpu") == 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert num_sharing("cuda") == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert num_sharing("cuda:1") == 2


def test_one_process_is_untouched(folder: Path) -> None:
    config, _ = case("lhmm", folder)
    assert own_slice(5) == slice(0, 5)
    assert num_sharing("cpu") == 1
    expect_rows(config, [])
    with pytest.raises(DataError, match="own"), together():
        raise DataError("its own")


def test_bad_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_TIMEOUT", "soon")
    with pytest.raises(DomainError, match="soon"):
        waiting_time()


ENDS = """
from pathlib import Path
import torch
from rankfold.training.distributed import joined

with joined():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.AdamW([weight]).step()  # loads parts of torch that hold a group
left = [x.read_text().strip() for x in Path("/proc/self/task").glob("*/comm")]
raise SystemExit(any("gloo" in name for name in left))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_no_thread_of_the_group_outlives_it(tmp_path: Path) -> None:
    """One that does may abort the process at its end, when all is done."""
    (tmp_path / "ends.py").write_text(ENDS)
    own = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(rankfold.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*own, str(tmp_path / "ends.py")], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
