"""Runs in shards that are killed, hang, or find a disk full or a file cut short: what is told, and what goes on."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from rankfold.errors import DataError
from rankfold.files import write_text
from rankfold.training import sharded_checkpoint
from rankfold.training.checkpoint import Progress
from rankfold.training.sharded_checkpoint import POINTER, load_shares
from tests.training.processes import Group, at_update, hang, kill_itself, raise_memory
from tests.training.runs import metrics, write_corpus
from tests.training.shards import run, run_some, trained

SETTINGS: dict[str, Any] = {"shards": 2, "updates": 9, "checkpoint_every": 3, "log_every": 1}
KILLED = ["lhmm", "block streams", "hmm"]
FAULTS = {"killed": kill_itself, "memory": raise_memory, "hangs": hang}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "words")


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole")
    trained(2, folder, out, ["lhmm"], **SETTINGS)
    return out / "lhmm"


def progress(out: Path) -> Progress:
    """Where the run of a case goes on."""
    loaded = load_shares(out / "lhmm")
    assert loaded is not None
    return loaded.progress


def _meets(folder: Path, out: Path, fault: str, settings: dict[str, Any]) -> None:
    at_update(4, FAULTS[fault])
    run_some(folder, out, ("lhmm",), False, settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("killed", "rank 0 of 2: rank 1 is gone: no answer"),
        ("memory", "rank 1 ended with: OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_process_that_ends_in_an_update(fault: str, told: str, folder: Path, whole: Path, tmp_path: Path) -> None:
    done = Group(2, _meets, folder, tmp_path, fault, SETTINGS).finish()
    assert done[0].status == 1
    assert told in done[0].said, done[0].said
    assert progress(tmp_path).update == 3
    trained(2, folder, tmp_path, ["lhmm"], resume=True, **SETTINGS)
    assert metrics(tmp_path / "lhmm") == metrics(whole)


@pytest.mark.slow
def test_killed_and_resumed(folder: Path, tmp_path: Path) -> None:
    """kill -9 of one process at ten random moments, of three families: the run goes on to the same numbers."""
    settings, drawn = {**SETTINGS, "updates": 40}, random.Random(1)
    trained(2, folder, tmp_path / "whole", KILLED, **settings)
    for moment in range(10):
        name, out, killed = KILLED[moment % len(KILLED)], tmp_path / str(moment), drawn.randrange(2)
        records, delay = drawn.randrange(30), drawn.uniform(0, 0.1)
        group = Group(2, run_some, folder, out, (name,), False, settings, RANKFOLD_TIMEOUT="20")
        file = out / name / "metrics.jsonl"
        while group.running() and (file.read_bytes().count(b"\n") if file.is_file() else -1) < records:
            time.sleep(0.002)
        time.sleep(delay)
        group.kill(killed)
        done = group.finish()
        assert done[killed].status == -9, "it had ended before"
        assert done[1 - killed].status == 1
        assert f"rank {killed} is gone: no answer" in done[1 - killed].said, done[1 - killed].said
        trained(2, folder, out, [name], resume=True, **settings)
        assert metrics(out / name) == metrics(tmp_path / "whole" / name)


@pytest.mark.slow
def test_a_process_that_hangs_is_told_from_one_that_waits(folder: Path, tmp_path: Path) -> None:
    group = Group(3, _meets, folder, tmp_path, "hangs", {**SETTINGS, "shards": 3}, RANKFOLD_TIMEOUT="2")
    for rank in (0, 2):
        group.members[rank].join(60)
    group.kill(1)
    done = group.finish()
    for rank in (0, 2):
        assert f"rank {rank} of 3: rank 1 hangs: no answer after " in done[rank].said, done[rank].said


def _full(folder: Path, out: Path, settings: dict[str, Any]) -> None:
    write = FileSystemWriter.write_data

    def full(self: FileSystemWriter, *arguments: Any) -> Any:
        if os.environ["RANK"] == "1" and "checkpoint-6" in str(self.path):
            raise OSError(28, "No space left on device")
        return write(self, *arguments)

    FileSystemWriter.write_data = full  # type: ignore[method-assign]
    run_some(folder, out, ("lhmm",), False, settings)


def test_a_disk_that_is_full_for_one(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Both are told; the checkpoint before stays, and the run goes on from it."""
    done = Group(2, _full, folder, tmp_path, SETTINGS).finish()
    assert [status for status, _ in done] == [1, 1]
    assert "DataError: rank 1: [Errno 28] No space left on device" in done[0].said, done[0].said
    assert "OSError: [Errno 28] No space left on device" in done[1].said
    assert progress(tmp_path).update == 3
    trained(2, folder, tmp_path, ["lhmm"], resume=True, **SETTINGS)
    assert metrics(tmp_path / "lhmm") == metrics(whole)


def _killed_while_it_saves(folder: Path, out: Path, saving: int, settings: dict[str, Any]) -> None:
    """Rank 0 is killed after the tensors of so many checkpoints are written, before `checkpoint.json` names them."""
    count = 0

    def write(path: Path, text: str) -> None:
        nonlocal count
        if path.name == POINTER and (count := count + 1) == saving:
            kill_itself()
        write_text(path, text)

    sharded_checkpoint.write_text = write  # type: ignore[attr-defined]
    run_some(folder, out, ("lhmm",), False, settings)


@pytest.mark.parametrize(("saving", "update"), [pytest.param(2, 3, marks=pytest.mark.slow), (4, 9)])
def test_killed_while_a_checkpoint_is_written(
    saving: int, update: int, folder: Path, whole: Path, tmp_path: Path
) -> None:
    """The fourth is of the last update once more: the third stays until it is whole."""
    done = Group(2, _killed_while_it_saves, folder, tmp_path, saving, SETTINGS).finish()
    assert done[0].status == -9
    assert "rank 1 of 2: rank 0 is gone" in done[1].said, done[1].said
    assert progress(tmp_path).update == update
    trained(2, folder, tmp_path, ["lhmm"], resume=True, **SETTINGS)
    assert metrics(tmp_path / "lhmm") == metrics(whole)


@pytest.mark.parametrize("damage", ["short", pytest.param("missing", marks=pytest.mark.slow)])
def test_the_one_before_serves_where_the_newest_is_damaged(damage: str, folder: Path, tmp_path: Path) -> None:
    """The damaged one is kept, under another name."""
    settings = {**SETTINGS, "updates": 4}
    trained(2, folder, tmp_path, ["lhmm"], **settings)
    newest = tmp_path / "lhmm" / json.loads((tmp_path / "lhmm" / POINTER).read_text())["folder"]
    before = json.loads((tmp_path / "lhmm" / POINTER).read_text())["before"]
    file = sorted(newest.glob("*.distcp"))[0]
    if damage == "short":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()
    loaded = load_shares(tmp_path / "lhmm")
    assert loaded is not None
    assert loaded.path.name == before["folder"]
    assert newest.name in loaded.damage
    run(folder, tmp_path, ["lhmm"], resume=True, **{**settings, "shards": 1, "updates": 6})
    assert metrics(tmp_path / "lhmm")[-1]["update"] == 6
    assert newest.with_name(newest.name + ".bad").is_dir()


def test_both_damaged(folder: Path, tmp_path: Path) -> None:
    trained(2, folder, tmp_path, ["lhmm"], **{**SETTINGS, "updates": 2})
    for old in (tmp_path / "lhmm").glob("checkpoint-*"):
        (old / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(DataError, match=r"damaged(.|\n)*Nor is the one before it good"):
        load_shares(tmp_path / "lhmm")
