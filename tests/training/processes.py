"""Processes that train together, as torchrun starts them: `python -m tests.training.processes` is one of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.training.config import Config
from rankfold.training.distributed import joined
from rankfold.training.loop import train
from rankfold.training.task import FrameTask, TextTask
from tests.training import recordings, test_grammars
from tests.training.runs import DROPOUT, tiny

ROOT = Path(__file__).parents[2]
UPDATES: dict[str, Any] = {"updates": 20, "checkpoint_every": 7, "schedule": "constant"}
EM: dict[str, Any] = {"neural": False, "optimizer": "em"}
WORDS: dict[str, dict[str, Any]] = {
    "hmm": {"family": "hmm", **DROPOUT},
    "lhmm": {"family": "lhmm", **DROPOUT},
    "banded": {"family": "banded", **DROPOUT},
    "rank": {"family": "rank", **DROPOUT},
    "block": {"family": "block", **DROPOUT},
    "streams": {"family": "banded", "batching": "streams", "feature_dropout": 0.3},
    "block streams": {"family": "block", "batching": "streams", "state_dropout": 0.5, "reset_eos": True},
    "em": {"family": "hmm", **EM, "smoothing": 0.1},
    "batch em": {"family": "lhmm", **EM, "momentum": 0.8},
    "block em": {"family": "block", **EM, "momentum": 0.8, "accumulate": 2},
    "rank em": {"family": "rank", **EM},
}
FRAMES: dict[str, dict[str, Any]] = {
    "frames": {},
    "frame streams": {"batching": "streams"},
    "frame em": {"optimizer": "em"},
    "frame batch em": {"optimizer": "em", "momentum": 0.7},
}
GRAMMARS = ("npcfg", "cpcfg", "rankpcfg")
CASES = (*WORDS, *FRAMES, *GRAMMARS)


def case(name: str, folder: Path, **settings: Any) -> tuple[Config, Path]:
    """A recipe, and its data in a folder that has all of them."""
    if name in WORDS:
        return tiny(**{**WORDS[name], **UPDATES, **settings}), folder / "words"
    if name in FRAMES:
        return recordings.tiny(**{**FRAMES[name], **UPDATES, **settings}), folder / "recordings.npz"
    return test_grammars.tiny(name, **{**UPDATES, **settings}), folder / "grammar"


def _wide(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda task: make(task).double()


def run_cases(folder: Path, out: Path, names: list[str], *, resume: bool = False, **settings: Any) -> None:
    """Train some cases, in float64, each into a folder of its own."""
    with joined(), pytest.MonkeyPatch.context() as patch:
        for task in (TextTask, FrameTask):
            patch.setattr(task, "model", _wide(task.model))
        for name in names:
            config, data = case(name, folder, **settings)
            train(config, data, out / name, resume=resume, quiet=True)


def start(num: int, arguments: list[str], **environment: str) -> list[subprocess.Popen[str]]:
    """Start `num` processes of one group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num)}
    own |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "RANKFOLD_TIMEOUT": "60", **environment}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **own, "RANK": str(i), "LOCAL_RANK": str(i)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(num)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit status and output of each; none is left over."""
    try:
        return [(p.wait(), out) for p in processes for out in [p.communicate(timeout=240)[0]]]
    finally:
        for p in processes:
            p.kill()
            p.wait()


def trained(num: int, folder: Path, out: Path, names: list[str], *more: str) -> None:
    """Train cases in so many processes; raises with what they said if one fails."""
    done = finish(start(num, ["-m", "tests.training.processes", str(folder), str(out), ",".join(names), *more]))
    assert all(status == 0 for status, _ in done), "\n".join(text for _, text in done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = dict(x.split("=") for x in sys.argv[4:] if "=" in x)
    run_cases(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        sys.argv[3].split(","),
        resume="resume" in sys.argv[4:],
        **{name: int(x) for name, x in given.items()},
    )
