"""Run folders: one writer, nothing lost, and a clear word before any work."""

import errno
import json
import math
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankfold
from rankfold.errors import DataError, DomainError
from rankfold.training import run_dir
from rankfold.training.run_dir import RunDir, environment, read_metrics


def test_a_new_run_makes_its_folder(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "a" / "b") as run:
        assert run.path == tmp_path / "a" / "b"
        assert os.listdir(run.path) == ["lock"]
        run.append({"step": 1})
    (run.path / "metrics.jsonl").unlink()
    (run.path / "lock").write_text("pid 123456789 on a host with a long name, which left this when it ended\n")
    with RunDir.create(run.path):  # it holds no run yet
        assert (run.path / "lock").read_text() == f"pid {os.getpid()} on {platform.node()}\n"


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    RunDir.create(tmp_path / "own" / "a" / "b").close()
    assert os.listdir(tmp_path / "own") == []
    RunDir.create(tmp_path / "own").close()  # the folder was there before
    assert os.listdir(tmp_path) == ["own"]
    assert os.listdir(tmp_path / "own") == []


@pytest.mark.parametrize("name", ["notes.txt", "metrics.jsonl", "recipe.toml"])
def test_what_is_beside_the_lock_stays(tmp_path: Path, name: str) -> None:
    with RunDir.create(tmp_path / "run") as run:
        (run.path / name).touch()
    assert set(os.listdir(run.path)) == {"lock", name}


def test_a_lock_of_another_stays(tmp_path: Path) -> None:
    first = RunDir.create(tmp_path / "run")
    (first.path / "lock").unlink()  # by hand, so that another got in
    with RunDir.create(first.path) as second:
        first.close()
        assert os.listdir(second.path) == ["lock"]
    assert os.listdir(tmp_path / "run") == []


def test_a_lock_that_is_removed_while_another_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has opened the file that the first then removes, folder and all: a lock on it would be nobody's."""
    first, flock = RunDir.create(tmp_path / "run"), run_dir.fcntl.flock

    def late(*arguments: int) -> None:
        monkeypatch.undo()
        first.close()
        flock(*arguments)

    monkeypatch.setattr(run_dir.fcntl, "flock", late)
    with RunDir.create(tmp_path / "run") as second:
        assert os.listdir(second.path) == ["lock"]
        with pytest.raises(DataError, match="in use by"):
            RunDir.create(second.path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["recipe.toml", "checkpoint.safetensors", "metrics.jsonl"])
def test_a_folder_with_a_run_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"already holds a run .{name}.: go on with --resume, or give another --out"):
        RunDir.create(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_run_that_came_while_we_waited_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = run_dir._lock

    def late(folder: Path) -> int:
        (folder / "recipe.toml").touch()
        return lock(folder)

    with monkeypatch.context() as patch:
        patch.setattr(run_dir, "_lock", late)
        with pytest.raises(DataError, match="already holds a run"):
            RunDir.create(tmp_path)
    RunDir.open(tmp_path).close()  # and the lock was given back


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: is a file, but a folder"):
        RunDir.create(tmp_path / "file")
    with pytest.raises(DataError, match=r"file/run: cannot be made: Not a directory"):
        RunDir.create(tmp_path / "file" / "run")
    (tmp_path / "run" / "lock").mkdir(parents=True)
    with pytest.raises(DataError, match="run: cannot be written: Is a directory"):
        RunDir.create(tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DataError, match="run: cannot be made: Permission denied"):
        RunDir.create(tmp_path / "run")
    with pytest.raises(DataError, match="cannot be written: Permission denied"):
        RunDir.create(tmp_path)


def test_going_on_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: no such folder"):
        RunDir.open(tmp_path / "none")
    with pytest.raises(DataError, match=r"holds no recipe.toml"):
        RunDir.open(tmp_path)
    assert os.listdir(tmp_path) == []
    (tmp_path / "recipe.toml").touch()
    with RunDir.open(tmp_path) as run:
        assert run.path == tmp_path


def test_the_second_is_told_who_is_first(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        for enter in (RunDir.create, RunDir.open):
            if enter == RunDir.open:
                (tmp_path / "recipe.toml").touch()
            with pytest.raises(DataError) as caught:
                enter(tmp_path)
            assert str(tmp_path) in str(caught.value)
            assert f"in use by pid {os.getpid()} on {platform.node()}" in str(caught.value)
    run.close()  # twice does no harm
    RunDir.open(tmp_path).close()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from rankfold.training.run_dir import RunDir\n"
        "run = RunDir.create(sys.argv[1]); run.append({'step': 1}); print('ready', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (tmp_path / "recipe.toml").touch()
        with pytest.raises(DataError, match=f"in use by pid {process.pid} on"):
            RunDir.open(tmp_path)
        process.send_signal(signal.SIGKILL)
    with RunDir.open(tmp_path):
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
        assert (tmp_path / "lock").read_text() == f"pid {os.getpid()} on {platform.node()}\n"


@pytest.mark.parametrize("number", [None, errno.ENOLCK])
def test_without_locks_runs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, "no locks")

    if number is None:
        monkeypatch.setattr(run_dir, "fcntl", None)
    else:
        monkeypatch.setattr(run_dir.fcntl, "flock", flock)
    with RunDir.create(tmp_path) as first, RunDir.create(tmp_path) as second:
        assert first.path == second.path
    assert os.listdir(tmp_path) == ["lock"]  # it may be another's


def test_metrics_come_back(tmp_path: Path) -> None:
    records = [{"step": 1, "loss": 0.1}, {"text": "a\n\u2028\u00e4"}, {"loss": math.inf}, {}]
    with RunDir.create(tmp_path) as run:
        assert run.metrics_size() == 0
        for number, record in enumerate(records, 1):
            run.append(record)
            assert read_metrics(tmp_path / "metrics.jsonl") == records[:number]  # each is there at once
        run.sync()
        assert run.metrics_size() == (tmp_path / "metrics.jsonl").stat().st_size


def test_metrics_after_the_checkpoint_are_kept_aside(tmp_path: Path) -> None:
    metrics, lost = tmp_path / "metrics.jsonl", tmp_path / "metrics.lost.jsonl"
    with RunDir.create(tmp_path) as run:
        assert run.cut_metrics(0) == 0
        run.append({"step": 1})
        size = run.metrics_size()
        assert run.cut_metrics(size) == 0
        assert not lost.exists()
        run.append({"step": 2})
        with metrics.open("ab") as stream:
            stream.write(b'{"step": 3, "lo')
        assert run.cut_metrics(size) == 2
        assert read_metrics(metrics) == [{"step": 1}]
        run.append({"step": 2, "again": True})
        assert read_metrics(metrics) == [{"step": 1}, {"step": 2, "again": True}]
        assert run.cut_metrics(size) == 1
        assert run.metrics_size() == size
    assert lost.read_text() == '{"step": 2}\n{"step": 3, "lo\n{"step": 2, "again": true}\n'


def test_an_interrupted_cut_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with RunDir.create(tmp_path) as run:
        run.append({"step": 1})
        for function in ("fsync", "truncate"):
            with monkeypatch.context() as patch:
                patch.setattr(os, function, killed)
                with pytest.raises(KeyboardInterrupt):
                    run.cut_metrics(0)
            assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
        (tmp_path / "metrics.lost.jsonl").write_bytes(b'{"st')
        assert run.cut_metrics(0) == 1
    assert (tmp_path / "metrics.lost.jsonl").read_bytes() == b'{"st\n{"step": 1}\n'


def test_cuts_that_do_not_fit_the_file(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        run.append({"step": 1})
        with pytest.raises(DataError, match=r"metrics.jsonl: has 12 bytes, but 13 when"):
            run.cut_metrics(13)
        with pytest.raises(DataError, match="byte 11 is within a line"):
            run.cut_metrics(11)
        with pytest.raises(DomainError, match="-1 bytes"):
            run.cut_metrics(-1)
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


def test_a_torn_line_is_not_written_on(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st')
        with pytest.raises(DataError, match=r"last line is torn(.|\n)*cut_metrics"):
            run.append({"step": 2})
        assert run.cut_metrics(12) == 1
        run.append({"step": 2})
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 2}]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def nearly_full(descriptor: int, content: memoryview) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[: len(content) // 2])

    with RunDir.create(tmp_path) as run:
        run.append({"step": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", nearly_full)
            with pytest.raises(OSError, match=r"metrics.jsonl could not be written: No space left") as caught:
                run.append({"step": 2, "text": "x" * 50})
        assert caught.value.errno == errno.ENOSPC
        run.append({"step": 3})
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}, {"step": 3}]


def test_a_closed_run_takes_nothing(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    run.append({"step": 1})
    run.close()
    with pytest.raises(AssertionError, match="was closed"):
        run.append({"step": 2})
    with pytest.raises(AssertionError, match="was closed"):
        run.cut_metrics(0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}\n{"a"', "line 2 is torn"),
        (b'{"a": 1}\n{"a": 2}', "line 2 is torn"),
        (b'{"a": 1}\n\n{"a": 2}\n', "line 2 is no JSON object: ''"),
        (b'{"a": 1}\n[1]\n', "line 2 is no JSON object"),
        (b'{"a": "\xff"}\n', "line 1 is no JSON object"),
        (b"\0\0\0\0\n", "line 1 is no JSON object"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "m.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"m.jsonl: {words}"):
        read_metrics(tmp_path / "m.jsonl")


def test_missing_metrics_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"m.jsonl: no such file"):
        read_metrics(tmp_path / "m.jsonl")


def test_the_environment_is_plain() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found.keys() >= {"python", "torch", "numpy", "rankfold", "platform", "cpu_count", "torch_threads", "argv"}
    assert found["date"].endswith("+00:00")
    assert found["rankfold"][0].isdigit()


@pytest.mark.parametrize("name", ["data.json", "environment.json", "vocab.json", "frames.json", "best", "lock"])
def test_files_of_somebody_else_are_not_written_over(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataError, match=f"holds no run, but {name}"):
        RunDir.create(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_a_run_that_was_killed_as_it_began_may_begin_again(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("pid 1 on a host\n")
    (tmp_path / "data.json").write_text("{}")
    RunDir.create(tmp_path).close()


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "metrics.lost.jsonl", "log.txt"])
@pytest.mark.parametrize("resume", [False, True])
def test_links_are_not_written_through(name: str, resume: bool, tmp_path: Path) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("precious\n")
    run.mkdir()
    (run / name).symlink_to(mine)
    if resume:
        (run / "recipe.toml").write_text("")
    with pytest.raises(DataError, match=rf"{name}: is a link"):
        (RunDir.open if resume else RunDir.create)(run)
    assert mine.read_text() == "precious\n"


def test_load_opens_a_run_and_a_model(tmp_path: Path) -> None:
    model = rankfold.models.build_model(rankfold.models.ModelConfig(num_states=4, rank=2, dim=4), 7)
    model.save_pretrained(tmp_path / "best")
    for folder in (tmp_path, tmp_path / "best", str(tmp_path)):
        loaded = rankfold.load(folder)
        assert all(torch.equal(x, loaded.state_dict()[name]) for name, x in model.state_dict().items())
    for folder in (tmp_path / "nothing", tmp_path.parent):
        with pytest.raises(DataError, match=r"no such folder|holds no model"):
            rankfold.load(folder)
