"""A run that was stopped, in whichever way, ends as if it had not been, to the last bit."""

import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError
from rankfold.settings import to_toml
from rankfold.training.checkpoint import load_checkpoint
from rankfold.training.config import Config
from rankfold.training.loop import Result, train
from rankfold.training.report import Lines, Reporter
from rankfold.training.run_dir import RunDir, read_metrics
from tests.training.runs import (
    DROPOUT,
    FAMILIES,
    StopAfter,
    expect_equal,
    expect_same_end,
    metrics,
    replaced,
    state,
    tiny,
    write_corpus,
)

ROUGH = {"lr": 0.3, "evaluate_every": 1, "seed": 2}
CASES: dict[str, dict[str, Any]] = {
    **{family: {"family": family, **DROPOUT} for family in FAMILIES},
    "banded-streams": {"family": "banded", "batching": "streams", "feature_dropout": 0.3},
    "block-streams": {"family": "block", "batching": "streams", "state_dropout": 0.5, "reset_eos": True},
    "rank-streams": {"family": "rank", "batching": "streams", "logit_dropout": 0.2},
    "plateau": {**ROUGH, "schedule": "plateau", "plateau_patience": 1, "plateau_factor": 0.5},
    "patience": {**ROUGH, "schedule": "constant", "patience": 3},
    "accumulate": {"accumulate": 3, "updates": 8, **DROPOUT},
    "accumulate-streams": {"accumulate": 3, "updates": 8, "batching": "streams"},
    "bernoulli": {"state_dropout_kind": "bernoulli", "batching": "unsorted", **DROPOUT},
    "brown": {"family": "block", "clusters": "brown", **DROPOUT},
    "em": {"family": "hmm", "neural": False, "optimizer": "em", "smoothing": 0.1},
    "batch em": {"family": "hmm", "neural": False, "optimizer": "em", "momentum": 0.8},
    "batch em of blocks": {"family": "block", "neural": False, "optimizer": "em", "momentum": 0.8, "accumulate": 2},
    "cosine": {"schedule": "cosine", "warmup": 3, "optimizer": "adam", "weight_decay": 0.1, "clip": 0.1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


def checkpointed(run: Path) -> int:
    return load_checkpoint(run / "checkpoint.safetensors").progress.update


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_after_any_update(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """Interrupted where nothing is due, after 2 updates, and at the end of an epoch, after 7."""
    config = tiny(**settings)
    plain = train(config, data, tmp_path / "plain")
    assert plain.updates > 7
    for k in (2, 7):
        run = tmp_path / str(k)
        stopped = train(config, data, run, report=StopAfter(k))
        assert (stopped.updates, stopped.finished, stopped.test) == (k, False, None)
        assert checkpointed(run) == k
        expect_same_end(train(config, data, run, resume=True), plain)
        assert not (run / "metrics.lost.jsonl").exists()
    assert plain.test is not None


def test_after_every_update(data: Path, tmp_path: Path) -> None:
    """Stopped again and again, once an update."""
    config = tiny(**DROPOUT)
    plain = train(config, data, tmp_path / "plain")
    run = tmp_path / "run"
    for k in range(1, 12):
        result = train(config, data, run, resume=k > 1, report=StopAfter(k))
        assert (result.updates, result.finished) == (k, False)  # after the last update, too: no test yet
    expect_same_end(train(config, data, run, resume=True), plain)


def test_a_run_says_where_it_is(data: Path, tmp_path: Path) -> None:
    stop = StopAfter(4, number=signal.SIGTERM)
    train(tiny(), data, tmp_path / "run", report=stop)
    assert stop.said[-1] == "interrupted after update 4; --resume goes on from there"
    again = StopAfter(99)
    train(tiny(), data, tmp_path / "run", resume=True, report=again)
    assert again.said[0].endswith(", from update 4")


def test_the_seconds_add_up(data: Path, tmp_path: Path) -> None:
    first = train(tiny(), data, tmp_path / "run", report=StopAfter(4))
    second = train(tiny(), data, tmp_path / "run", resume=True)
    assert second.seconds > first.seconds > 0
    seconds = [record["seconds"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert seconds == sorted(seconds)


# The process rests after each update, so that there is time to end it in the middle.
PROGRAM = """
import sys, time, torch
from rankfold.settings import build, read_toml
from rankfold.training.config import Config
from rankfold.training.loop import train
from rankfold.training.report import Lines

class Slow(Lines):
    def update(self, done, record):
        super().update(done, record)
        time.sleep(60 if done == int(rest) else 0.03)

torch.set_num_threads(1)
recipe, data, out, rest = sys.argv[1:]
result = train(build(Config, read_toml(recipe), source=recipe), data, out, report=Slow())
print(result.updates, result.finished)
"""


class Process:
    """A training run in a process of its own."""

    def __init__(self, config: Config, data: Path, out: Path, *, rest: int) -> None:
        recipe = out.with_name(f"{out.name}.toml")
        recipe.write_text(to_toml(config))
        command = [sys.executable, "-c", PROGRAM, str(recipe), str(data), str(out), str(rest)]
        self.out = out
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, number: int, *, update: int) -> tuple[int, str, str]:
        """Send a signal once the metrics have come so far; the exit status, and what was printed."""
        deadline = time.monotonic() + 60
        path = self.out / "metrics.jsonl"
        try:
            while not path.exists() or path.read_bytes().count(b"train_perplexity") < update:
                assert self.process.poll() is None, self.process.communicate()
                assert time.monotonic() < deadline, "the process makes no progress"
                time.sleep(0.01)
            self.process.send_signal(number)
            out, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


@pytest.mark.parametrize(
    "settings", [{"family": "lhmm", **DROPOUT}, {"family": "block", "batching": "streams"}], ids=["lhmm", "streams"]
)
def test_a_killed_process(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    config = tiny(updates=20, checkpoint_every=5, log_every=1, **settings)
    run = tmp_path / "run"
    status, out, _ = Process(config, data, run, rest=18).end(signal.SIGKILL, update=12)
    assert (status, out) == (-signal.SIGKILL, "")
    progress = load_checkpoint(run / "checkpoint.safetensors").progress
    assert progress.update in (10, 15)
    before = (run / "metrics.jsonl").read_bytes()
    expect_same_end(train(config, data, run, resume=True), train(config, data, tmp_path / "plain"))
    lost = before[progress.metrics_size :]
    assert (run / "metrics.jsonl").read_bytes().startswith(before[: progress.metrics_size])
    if lost:
        assert (run / "metrics.lost.jsonl").read_bytes() == lost.removesuffix(b"\n") + b"\n"


def test_ctrl_c_in_a_process(data: Path, tmp_path: Path) -> None:
    """The update is finished and a checkpoint written, though none was due."""
    config, run = tiny(updates=1000, checkpoint_every=1000, log_every=1), tmp_path / "run"
    status, out, err = Process(config, data, run, rest=-1).end(signal.SIGINT, update=3)
    done = checkpointed(run)
    assert (status, out) == (0, f"{done} False\n")
    assert f"interrupted after update {done}; --resume goes on from there" in err
    assert metrics(run)[-1]["update"] == done
    train(config, data, run, resume=True, report=StopAfter(done + 3))
    plain = train(config, data, tmp_path / "plain", report=StopAfter(done + 3))
    assert metrics(run) == metrics(plain.run)
    (tensors, content), (others, other) = state(run), state(plain.run)
    assert content == other
    expect_equal(tensors, others)


class KilledError(Exception):
    """In place of a signal that leaves no time for anything."""


class DieAfter(Reporter):
    def __init__(self, update: int) -> None:
        self.at = update

    def update(self, done: int, record: dict[str, Any]) -> None:
        if done == self.at:
            raise KilledError


def died(config: Config, data: Path, run: Path, update: int, *, resume: bool = False) -> None:
    with pytest.raises(KilledError):
        train(config, data, run, resume=resume, report=DieAfter(update))


@pytest.mark.parametrize(
    "settings", [DROPOUT, {"batching": "streams"}, {"accumulate": 2}, {"family": "block"}], ids=str
)
def test_what_came_after_the_checkpoint_is_done_again(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    config, run = tiny(**settings), tmp_path / "run"
    plain = train(config, data, tmp_path / "plain")
    died(config, data, run, 9)
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (run / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"update": 9, "tra')  # killed while it wrote
    died(config, data, run, 8, resume=True)
    expect_same_end(train(config, data, run, resume=True), plain)
    updates = [json.loads(line)["update"] for line in lines]
    assert updates == [3, 4, 6, 8, 9]
    lost = (run / "metrics.lost.jsonl").read_bytes().splitlines(keepends=True)
    assert lost[:4] == [*lines[2:], b'{"update": 9, "tra\n']
    assert [json.loads(line)["update"] for line in lost[4:]] == [6, 8]


def test_killed_before_the_first_checkpoint(data: Path, tmp_path: Path) -> None:
    config, run = tiny(family="block", clusters="brown", **DROPOUT), tmp_path / "run"
    plain = train(config, data, tmp_path / "plain")
    died(config, data, run, 4)
    assert not (run / "checkpoint.safetensors").exists()
    assert [record["update"] for record in metrics(run)] == [3, 4]
    expect_same_end(train(config, data, run, resume=True), plain)
    assert len((run / "metrics.lost.jsonl").read_bytes().splitlines()) == 2


def test_killed_before_the_first_update(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KilledError

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.training.loop.Trainer.run", killed)
        with pytest.raises(KilledError):
            train(tiny(), data, run)
    expect_same_end(train(tiny(), data, run, resume=True), train(tiny(), data, tmp_path / "plain"))


def test_killed_before_the_recipe(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KilledError

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.training.loop.to_toml", killed)
        with pytest.raises(KilledError):
            train(tiny(), data, run)
    with pytest.raises(DataError, match=r"holds no recipe.toml(.|\n)*without --resume"):
        train(tiny(), data, run, resume=True)
    expect_same_end(train(tiny(), data, run), train(tiny(), data, tmp_path / "plain"))


@pytest.mark.parametrize(
    "settings", [{}, CASES["patience"], {"batching": "streams"}], ids=["plain", "early", "streams"]
)
def test_after_the_end(settings: dict[str, Any], data: Path, tmp_path: Path) -> None:
    config, run = tiny(**settings), tmp_path / "run"
    first = train(config, data, run)
    shutil.copytree(run, tmp_path / "copy")
    before = (run / "metrics.jsonl").read_bytes()
    second = train(config, data, run, resume=True)
    assert (second.updates, second.finished, second.test) == (first.updates, True, first.test)
    assert second.best_valid_perplexity == first.best_valid_perplexity
    assert metrics(run) == metrics(tmp_path / "copy")
    assert (run / "metrics.jsonl").read_bytes() == before
    assert not (run / "metrics.lost.jsonl").exists()
    for name in ("checkpoint.safetensors", "recipe.toml", "vocab.json", "environment.json", "best/model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "copy" / name).read_bytes()


def interrupted(data: Path, run: Path, config: Config | None = None) -> Result:
    return train(config or tiny(), data, run, report=StopAfter(4))


def contents(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file() and path.name != "lock"}


def test_another_recipe_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    before = contents(run)
    other = replaced(replaced(tiny(), "train", lr=0.5, betas=(0.1, 0.2)), "model", rank=3)
    with pytest.raises(DataError) as caught:
        train(other, data, run, resume=True)
    assert f"{run} was started with another recipe: " in str(caught.value)
    for line in ("model.rank: 4 -> 3", "train.lr: 0.02 -> 0.5", "train.betas: [0.9, 0.999] -> [0.1, 0.2]"):
        assert line in str(caught.value)
    assert contents(run) == before
    train(tiny(), data, run, resume=True)  # the lock was given back


def test_a_recipe_that_cannot_be_read(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    good = (run / "recipe.toml").read_text()
    for bad, words in ((good.replace("rank =", "rnak ="), "Did you mean model.rank"), ("[model", "not valid TOML")):
        (run / "recipe.toml").write_text(bad)
        with pytest.raises(DataError, match=rf"recipe.toml: (.|\n)*{words}"):
            train(tiny(), data, run, resume=True)
    (run / "recipe.toml").write_text(good)
    assert train(tiny(), data, run, resume=True).finished  # the lock was given back


def changed_text(folder: Path, split: str) -> Path:
    """The corpus with two lines of a split exchanged: the same words, another text."""
    write_corpus(folder)
    lines = (folder / f"{split}.txt").read_text().splitlines(keepends=True)
    (folder / f"{split}.txt").write_text("".join([lines[1], lines[0], *lines[2:]]))
    return folder


def test_other_data_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    before = contents(run)
    other = changed_text(tmp_path / "other", "train")
    with pytest.raises(DataError, match=r"other: the text is not the one .*run was started with"):
        train(tiny(), other, run, resume=True)
    assert contents(run) == before
    moved = shutil.copytree(data, tmp_path / "moved")  # the same text elsewhere is welcome
    expect_same_end(train(tiny(), moved, run, resume=True), train(tiny(), data, tmp_path / "plain"))


def test_other_data_is_refused_before_the_first_checkpoint(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    died(tiny(), data, run, 2)
    with pytest.raises(DataError, match="text is not the one"):
        train(tiny(), changed_text(tmp_path / "other", "train"), run, resume=True)


def test_a_run_in_use_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    with RunDir.open(run), pytest.raises(DataError, match=f"in use by pid {os.getpid()} on {platform.node()}"):
        train(tiny(), data, run, resume=True)
    assert train(tiny(), data, run, resume=True).finished


def test_a_folder_without_a_run(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: no such folder"):
        train(tiny(), data, tmp_path / "none", resume=True)


def test_a_truncated_checkpoint_is_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    whole = (run / "checkpoint.safetensors").read_bytes()
    (run / "checkpoint.safetensors").write_bytes(whole[:-9])
    before = contents(run)
    with pytest.raises(DataError, match=r"checkpoint.safetensors: cut short or damaged"):
        train(tiny(), data, run, resume=True)
    assert contents(run) == before
    (run / "checkpoint.safetensors").write_bytes(whole)
    expect_same_end(train(tiny(), data, run, resume=True), train(tiny(), data, tmp_path / "plain"))


def test_a_deleted_checkpoint_starts_again(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = tiny(family="block", **DROPOUT)
    plain = train(config, data, run)
    shutil.copytree(run, tmp_path / "copy")
    for name in ("checkpoint", "checkpoint-before"):
        (run / f"{name}.safetensors").unlink()
    again = train(config, data, run, resume=True)
    expect_same_end(again, Result(**{**vars(plain), "run": tmp_path / "copy"}))
    assert (run / "metrics.lost.jsonl").read_bytes() == (tmp_path / "copy" / "metrics.jsonl").read_bytes()


def test_the_clusters_of_the_checkpoint_are_used(data: Path, tmp_path: Path) -> None:
    """They are not searched again: the file they came from may be gone, and Brown clusters take their time."""
    file = tmp_path / "words.tsv"
    file.write_text("w03\t1\nw01\t0\n<eos>\t2\nw02\t3\n")
    config = tiny(family="block", clusters=str(file))
    plain = train(config, data, tmp_path / "plain")
    interrupted(data, tmp_path / "run", config)
    file.unlink()
    expect_same_end(train(config, data, tmp_path / "run", resume=True), plain)


def test_metrics_that_were_changed_are_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(DataError, match=r"metrics.jsonl: has .* bytes, but .* when the checkpoint was written"):
        train(tiny(), data, run, resume=True)


def test_the_vocabulary_of_the_run_is_used(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupted(data, run)
    (run / "vocab.json").unlink()
    with pytest.raises(DataError, match=r"vocab.json: no such file"):
        train(tiny(), data, run, resume=True)
    Vocabulary.build([["w01"]]).save(run / "vocab.json")
    with pytest.raises(DataError, match="text is not the one"):
        train(tiny(), data, run, resume=True)


def test_a_full_disk_ends_the_run_and_keeps_its_checkpoint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, run = os.fsync, tmp_path / "run"

    def full(descriptor: int) -> None:
        if (run / "checkpoint.safetensors").exists() and (run / "checkpoint.safetensors.part").exists():
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"checkpoint.safetensors could not be written: No space left"):
            train(tiny(), data, run)
    assert checkpointed(run) == 5
    expect_same_end(train(tiny(), data, run, resume=True), train(tiny(), data, tmp_path / "plain"))


def flipped(place: float) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int(place * (len(content) - 1))] ^= 16
        file.write_bytes(content)

    return damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


DAMAGES = [*map(flipped, (0, 0.01, 0.3, 0.7, 1)), cut, Path.unlink, lambda file: file.write_bytes(b"")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(
    damage: Callable[[Path], None], data: Path, tmp_path: Path
) -> None:
    config, run = tiny(**DROPOUT), tmp_path / "run"
    plain = train(config, data, tmp_path / "plain")
    train(config, data, run, report=StopAfter(9))  # with a checkpoint after update 5
    damage(run / "checkpoint.safetensors")
    before = (run / "checkpoint.safetensors").read_bytes() if (run / "checkpoint.safetensors").exists() else None
    report = StopAfter(8)
    train(config, data, run, resume=True, report=report)
    told = next(line for line in report.said if "goes on from the checkpoint before it" in line)
    assert f"{run / 'checkpoint.safetensors'}: " in told
    assert "after update 5" in told
    assert told in (run / "log.txt").read_text()
    if before is not None:  # kept, and not as the one before
        assert (run / "checkpoint.safetensors.bad").read_bytes() == before
    damage(run / "checkpoint.safetensors")  # again: the one before is still the good one
    expect_same_end(train(config, data, run, resume=True), plain)


@pytest.mark.parametrize("which", ["index", "first", "last"])
@pytest.mark.parametrize("damage", [flipped(0.5), cut, Path.unlink])
def test_damaged_shards_are_replaced_by_the_ones_before(
    which: str, damage: Callable[[Path], None], data: Path, tmp_path: Path
) -> None:
    config, run = tiny(checkpoint_shard_mb=0.02, num_states=64, dim=32, **DROPOUT), tmp_path / "run"
    plain = train(config, data, tmp_path / "plain")
    train(config, data, run, report=StopAfter(9))
    for stop in (7, 8, 99):
        index = run / "checkpoint.safetensors.index.json"
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        damage(index if which == "index" else run / names[0 if which == "first" else -1])
        report = StopAfter(stop)
        again = train(config, data, run, resume=True, report=report)
        assert any("goes on from the checkpoint before it, after update 5" in line for line in report.said)
    assert (again.test, metrics(again.run)) == (plain.test, metrics(plain.run))
    ends = [load_checkpoint(result.run / "checkpoint.safetensors").tensors for result in (again, plain)]
    expect_equal(*ends)


def test_two_damaged_checkpoints_are_refused(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(), data, run, report=StopAfter(9))
    for name in ("checkpoint", "checkpoint-before"):
        cut(run / f"{name}.safetensors")
    before = contents(run)
    with pytest.raises(DataError, match=r"checkpoint.safetensors: cut(.|\n)*checkpoint-before.safetensors: cut"):
        train(tiny(), data, run, resume=True)
    assert contents(run) == before


def test_a_closed_terminal_is_a_request_to_stop(data: Path, tmp_path: Path) -> None:
    stop = StopAfter(4, number=signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may have been started by nohup
    try:
        train(tiny(), data, tmp_path / "run", report=stop)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stop.said[-1] == "interrupted after update 4; --resume goes on from there"
    expect_same_end(train(tiny(), data, tmp_path / "run", resume=True), train(tiny(), data, tmp_path / "plain"))


def test_what_outlives_its_terminal(data: Path, tmp_path: Path) -> None:
    """As nohup starts it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(tiny(), data, tmp_path / "run", report=StopAfter(4, number=signal.SIGHUP)).finished
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_ends_no_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Gone())
        assert train(tiny(), data, tmp_path / "run", report=Lines()).finished
