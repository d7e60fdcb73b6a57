"""Processes that train together, as torchrun starts them: forked from one that has torch loaded, which is quick."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from rankfold import cli
from rankfold.data.demo import draw_trees
from rankfold.training.config import Config
from rankfold.training.distributed import joined
from rankfold.training.gradients import Gradients
from rankfold.training.loop import train
from rankfold.training.task import FrameTask, TextTask
from tests.training import recordings, test_grammars
from tests.training.runs import DROPOUT, tiny, write_corpus

ROOT = Path(__file__).parents[2]
UPDATES: dict[str, Any] = {"updates": 20, "checkpoint_every": 7, "schedule": "constant"}
EM: dict[str, Any] = {"neural": False, "optimizer": "em"}
STREAMS: dict[str, Any] = {"batching": "streams", "num_streams": 7}
WORDS: dict[str, dict[str, Any]] = {
    "hmm": {"family": "hmm", **DROPOUT},
    "lhmm": {"family": "lhmm", **DROPOUT},
    "banded": {"family": "banded", **DROPOUT},
    "rank": {"family": "rank", **DROPOUT},
    "block": {"family": "block", **DROPOUT},
    "free tables": {"family": "lhmm", "neural": False, "average": 0.9, "accumulate": 2},
    "streams": {"family": "banded", **STREAMS, "feature_dropout": 0.3},
    "rank streams": {"family": "rank", **STREAMS},
    "block streams": {"family": "block", **STREAMS, "state_dropout": 0.5, "reset_eos": True},
    "em": {"family": "hmm", **EM, "smoothing": 0.1},
    "lhmm em": {"family": "lhmm", **EM},
    "banded em": {"family": "banded", **EM},
    "block whole em": {"family": "block", **EM},
    "rank em": {"family": "rank", **EM},
    "hmm batch em": {"family": "hmm", **EM, "momentum": 0.8},
    "batch em": {"family": "lhmm", **EM, "momentum": 0.8},
    "rank batch em": {"family": "rank", **EM, "momentum": 0.8},
    "block em": {"family": "block", **EM, "momentum": 0.8, "accumulate": 2},
}
FRAMES: dict[str, dict[str, Any]] = {
    "frame_hmm": {"family": "frame_hmm"},
    "frame_lhmm": {"family": "frame_lhmm"},
    "frames": {},
    "lhsmm": {"family": "lhsmm"},
    "rank_hsmm": {"family": "rank_hsmm"},
    "frame streams": {"batching": "streams", "num_streams": 5},
    "frame_hmm streams": {"family": "frame_hmm", "batching": "streams", "num_streams": 5},
    "frame em": {"optimizer": "em"},
    "frame_hmm em": {"family": "frame_hmm", "optimizer": "em"},
    "frame_lhmm em": {"family": "frame_lhmm", "optimizer": "em"},
    "lhsmm em": {"family": "lhsmm", "optimizer": "em"},
    "rank_hsmm em": {"family": "rank_hsmm", "optimizer": "em"},
    "frame batch em": {"optimizer": "em", "momentum": 0.7},
    "frame_hmm batch em": {"family": "frame_hmm", "optimizer": "em", "momentum": 0.7},
}
GRAMMARS = test_grammars.FAMILIES
CASES = (*WORDS, *FRAMES, *GRAMMARS)


def write_data(folder: Path) -> Path:
    """The data of all cases."""
    write_corpus(folder / "words")
    recordings.write_recordings(folder / "recordings.npz")
    (folder / "grammar").mkdir()
    for split, num in (("train", 40), ("valid", 6), ("test", 4)):
        lines = [" ".join(tree.words) for tree in draw_trees(num, seed=num, max_words=9)]
        (folder / "grammar" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def case(name: str, folder: Path, **settings: Any) -> tuple[Config, Path]:
    """A recipe, and its data in a folder that has all of them."""
    if name in WORDS:
        return tiny(**{**WORDS[name], **UPDATES, **settings}), folder / "words"
    if name in FRAMES:
        return recordings.tiny(**{"tokens": 200, **FRAMES[name], **UPDATES, **settings}), folder / "recordings.npz"
    return test_grammars.tiny(name, **{"sentences": 5, "tokens": 60, **UPDATES, **settings}), folder / "grammar"


def _wide(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda task: make(task).double()


@contextmanager
def in_float64() -> Iterator[None]:
    """Runs have models of float64."""
    with pytest.MonkeyPatch.context() as patch:
        for task in (TextTask, FrameTask):
            patch.setattr(task, "model", _wide(task.model))
        yield


def run_cases(folder: Path, out: Path, names: list[str], *, resume: bool = False, **settings: Any) -> None:
    """Train some cases, in float64, each into a folder of its own."""
    with joined(), in_float64():
        for name in names:
            config, data = case(name, folder, **settings)
            train(config, data, out / name, resume=resume, quiet=True)


class Done(NamedTuple):
    """How a process ended."""

    status: int  # negative: the signal that killed it
    said: str  # on standard output and error


class Group:
    """Processes that call one function, whose result is the exit status of each."""

    def __init__(self, num: int, work: Callable[..., int | None], *arguments: Any, **environment: str) -> None:
        """An argument that is a list of `num` gives each process its own."""
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch._dynamo", "tests.training.processes"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
        shared |= {"LOCAL_WORLD_SIZE": str(num), "RANKFOLD_TIMEOUT": "120", **environment}
        self.logs = Path(tempfile.mkdtemp())
        self.members = []
        for i in range(num):
            own = [x[i] if isinstance(x, list) and len(x) == num else x for x in arguments]
            named = {**shared, "RANK": str(i), "LOCAL_RANK": str(i)}
            self.members.append(context.Process(target=_member, args=(work, own, named, self.logs / str(i))))
        for member in self.members:
            member.start()

    def kill(self, rank: int) -> None:
        """kill -9."""
        self.members[rank].kill()

    def running(self) -> bool:
        """Whether none has ended."""
        return all(member.is_alive() for member in self.members)

    def finish(self, seconds: float = 600.0) -> list[Done]:
        """How each has ended; none is left over."""
        end = time.monotonic() + seconds
        for member in self.members:
            member.join(max(0.0, end - time.monotonic()))
        for member in self.members:
            member.kill()
            member.join()
        logs = [self.logs / str(i) for i in range(len(self.members))]
        said = [log.read_text() if log.exists() else "" for log in logs]
        shutil.rmtree(self.logs)
        return [Done(member.exitcode or 0, text) for member, text in zip(self.members, said, strict=True)]


def _member(work: Callable[..., int | None], arguments: list[Any], environment: dict[str, str], log: Path) -> None:
    """One of the processes; all it says goes into a file."""
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    for own in (1, 2):
        os.dup2(descriptor, own)
    torch.set_num_threads(1)
    sys.exit(work(*arguments))


def command(*arguments: str) -> int:
    """A command of rankfold."""
    return cli.main([*arguments])


def trained(num: int, folder: Path, out: Path, names: list[str], *, resume: bool = False, **settings: Any) -> None:
    """Train cases in so many processes; raises with what they said if one fails."""
    expect_done(Group(num, run_some, folder, out, tuple(names), resume, settings))


def expect_done(group: Group) -> None:
    """Raise, with what they said, unless all processes end well."""
    done = group.finish()
    assert all(status == 0 for status, _ in done), "\n".join(text for _, text in done)


def run_some(folder: Path, out: Path, names: tuple[str, ...], resume: bool, settings: dict[str, Any]) -> None:
    """`run_cases` in one of the processes."""
    run_cases(folder, out, [*names], resume=resume, **settings)


def at_update(number: int, fault: Callable[[], None]) -> None:
    """Meet a fault in the middle of an update, on rank 1 alone."""
    part = Gradients._part

    def faulty(self: Gradients, *arguments: Any) -> Any:
        if os.environ["RANK"] == "1" and updates_done(self.optimizer) == number:
            fault()
        return part(self, *arguments)

    Gradients._part = faulty  # type: ignore[method-assign]


def updates_done(optimizer: torch.optim.Optimizer) -> int:
    """The updates that an optimiser has made."""
    return int(next(iter(optimizer.state.values()))["step"]) if optimizer.state else 0


def raise_memory() -> None:
    """The error of a GPU that is full."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def kill_itself() -> None:
    """kill -9, from within."""
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    """No answer for longer than the others wait."""
    time.sleep(100)


def dies(update: int, arguments: list[str]) -> int:
    """A command of rankfold in which rank 1 is killed in the middle of an update, unless torchrun started it again."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        at_update(update, kill_itself)
    return cli.main(arguments)


if __name__ == "__main__":  # dies UPDATE ARGUMENTS
    sys.exit(dies(int(sys.argv[2]), sys.argv[3:]))
