"""torchrun itself: what it says of a process that dies, restarts, logs by rank, signals, and the script for SLURM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.runs import expect_equal, metrics, state, write_corpus

ROOT = Path(__file__).parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SIZES = ["model.num_states=8", "model.rank=4", "model.dim=4", "model.band=0", "data.tokens=40", "train.device=cpu"]
UPDATES = ["train.updates=20", "train.checkpoint_every=5", "train.log_every=1", "train.evaluate_every=5"]
SRUN = """#!/bin/bash
# As srun does: the command once on each machine, with its number.
for node in $(seq 0 $((SLURM_NNODES - 1))); do
    SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || failed=$?; done
exit "${failed:-0}"
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", **more}


def arguments(data: Path, out: Path, *more: str) -> list[str]:
    own = ["train", "--recipe", "small-lhmm", "--data", str(data), "--out", str(out)]
    return [*own, *more, "--set", *SIZES, *UPDATES]


def torchrun(*given: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = [sys.executable, *TORCHRUN, *given]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, check=False, timeout=280)


def test_a_process_that_dies(data: Path, tmp_path: Path) -> None:
    """torchrun names it, the other does, too; started again, the run goes on to the bits of one that was not killed."""
    whole = torchrun("-m", "rankfold", *arguments(data, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    logs = tmp_path / "logs"
    dies = ["-m", "tests.training.processes", "dies", "8", *arguments(data, tmp_path / "run")]
    redirected = ["--redirects", "3", "--max-restarts"]
    once = torchrun("--log-dir", str(logs), *redirected, "0", *dies)
    assert once.returncode == 1
    assert "rank      : 1" in once.stderr, once.stderr
    assert "Signal 9 (SIGKILL)" in once.stderr
    assert state(tmp_path / "run")[1]["progress"]["update"] == 5
    (survivor,) = logs.glob("*/attempt_0/0/stderr.log")
    assert "rankfold: rank 0 of 2: rank 1 is gone: no answer" in survivor.read_text()

    logs = tmp_path / "more"
    again = torchrun("--log-dir", str(logs), *redirected, "2", *dies[:4], *arguments(data, tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    assert sorted(path.parent.parent.name for path in logs.glob("*/*/1/stderr.log")) == ["attempt_0", "attempt_1"]
    resumed = torchrun("-m", "rankfold", "train", "--resume", "--data", str(data), "--out", str(tmp_path / "run"))
    assert resumed.returncode == 0, resumed.stderr
    for name in ("run", "again"):
        expect_equal(state(tmp_path / name)[0], state(tmp_path / "whole")[0])
        assert metrics(tmp_path / name) == metrics(tmp_path / "whole")


def test_restarts_do_not_take_another_run(data: Path, tmp_path: Path) -> None:
    """A folder that holds a run is refused at the first start and at all others."""
    first = torchrun("-m", "rankfold", *arguments(data, tmp_path / "run"))
    assert first.returncode == 0, first.stderr
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    second = torchrun("--max-restarts", "1", "-m", "rankfold", *arguments(data, tmp_path / "run"))
    assert second.returncode == 1
    assert second.stderr.count("already holds a run") >= 4  # on two ranks, twice
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun(number: signal.Signals, data: Path, tmp_path: Path) -> None:
    """Ctrl-C goes to torchrun and its processes at once: the update is finished, and a checkpoint written."""
    long = [*arguments(data, tmp_path / "run"), "train.updates=100000", "train.checkpoint_every=100000"]
    command = [sys.executable, *TORCHRUN, "-m", "rankfold", *long]
    process = subprocess.Popen(
        command, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    file = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (file.is_file() and file.read_bytes().count(b"\n") > 5):
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "finishing this update" in said, said
    assert state(tmp_path / "run")[1]["progress"]["update"] == metrics(tmp_path / "run")[-1]["update"]


def test_the_script_for_slurm(data: Path, tmp_path: Path) -> None:
    """Two machines with a process each, by the variables that SLURM sets; submitted again, the run goes on."""
    commands = tmp_path / "commands"
    commands.mkdir()
    torchrun = f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    # The second name comes when a reader of the first alone has gone.
    hosts = '#!/bin/bash\n[ "$*" = "show hostnames node[1-2]" ] && echo localhost && sleep 0.3 && echo localhost\n'
    for name, text in (("srun", SRUN), ("scontrol", hosts), ("torchrun", torchrun)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    slurm = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_ON_NODE": "1"}
    own = environment(PATH=f"{commands}:{os.environ['PATH']}", RANKFOLD_PORT=str(port), **slurm)
    script = ["bash", str(ROOT / "examples" / "slurm.sh"), str(data), str(tmp_path / "run")]
    for updates in (10, 20):
        given = [*script, "--set", *SIZES, *UPDATES[1:], f"train.updates={updates}"]
        done = subprocess.run(given, env=own, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr
        assert metrics(tmp_path / "run")[-1]["update"] == updates
    assert len(list((tmp_path / "run.logs").glob("17*/attempt_0/*/stderr.log"))) == 4  # two ranks, twice
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["job"] == "17"
