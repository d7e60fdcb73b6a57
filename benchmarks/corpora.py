"""`python -m benchmarks corpora`: many sentences scored by one process, by several, and by actors of Ray Data.

Every run is the command `rankfold score --json`; its output has to equal that of one process to the last byte, also
where a worker is killed on the way. Memory (resident, not shared) and CPU time, of all processes together, are read
from Linux twice a second; the ratio is that of CPU times, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import rankfold
from rankfold.errors import DataError, UnsupportedError
from rankfold.models import ModelConfig, build_model

DRAWN = 5000  # different sentences
KILLED_AT = 0.3  # of the output
WORKERS = ("multiprocessing.spawn", "ray::MapWorker")  # by their command line
TRACKER = "resource_tracker"


class Run(NamedTuple):
    """What one run took, and what came out."""

    seconds: float
    cpu: float  # seconds of all its processes
    before: float  # the first answer
    total: float  # of the log-probabilities
    digest: str
    driver: list[int]  # MiB in each quarter of the output, at most
    worker: list[int]  # the largest of them
    killed: int


def main(given: Sequence[str]) -> int:
    """Print the table; 1 if an output differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks corpora", description=__doc__)
    parser.add_argument("--sentences", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=["processes", "ray"], choices=("processes", "ray"))
    parser.add_argument("--kill", action="store_true", help="run each engine once more, and kill one of its workers")
    args = parser.parse_args(given)
    if not Path("/proc/self/status").exists():
        raise UnsupportedError("memory is read from /proc, which this system has not.")
    if args.sentences < DRAWN:
        raise DataError(f"--sentences is {args.sentences}, but at least {DRAWN} were expected.")
    with tempfile.TemporaryDirectory() as folder:
        model, text = write_model(Path(folder) / "model"), Path(folder) / "text.txt"
        write_sentences(text, args.sentences)
        print(f"{args.sentences:,} sentences, {text.stat().st_size / 2**20:,.0f} MiB; rankfold {rankfold.__version__}")
        print(
            "| engine | workers | seconds | CPU seconds | ratio | before the first answer | sum of log-probabilities "
            "| output | MiB of the first process, by quarters | MiB of a worker | killed |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---|---|---|---:|")
        first = measure(model, text, ["--engine", "here"], Path(folder) / "out")
        show("here", 1, first, first)
        failed = False
        for engine in args.engines:
            for kill in (False, True) if args.kill else (False,):
                options = ["--engine", engine, "--workers", str(args.workers)]
                found = measure(model, text, options, Path(folder) / "out", kill=kill)
                show(engine, args.workers, found, first)
                failed |= found.digest != first.digest or (kill and not found.killed)
    return int(failed)


def show(engine: str, workers: int, run: Run, first: Run) -> None:
    """Print one row."""
    same = "equal" if run.digest == first.digest else "DIFFERENT"
    quarters = [", ".join(map(str, found)) or "-" for found in (run.driver, run.worker)]
    cells = (engine, workers, f"{run.seconds:.1f}", f"{run.cpu:.1f}", f"{run.cpu / first.cpu:.2f}x")
    print(
        "| "
        + " | ".join(map(str, (*cells, f"{run.before:.1f}", f"{run.total:.6f}", same, *quarters, run.killed)))
        + " |",
        flush=True,
    )


def write_model(folder: Path) -> Path:
    """A small low-rank HMM of the words of the starter, not trained."""
    starter = rankfold.load("starter", device="cpu")
    assert starter.vocabulary is not None
    model = build_model(ModelConfig(family="lhmm", num_states=64, rank=16, dim=16), len(starter.vocabulary), seed=1)
    model.vocabulary = starter.vocabulary
    model.save_pretrained(folder)
    return folder


def write_sentences(path: Path, num: int) -> None:
    """So many lines, each one of those that the starter said."""
    said = [line for line in rankfold.load("starter", device="cpu").generate(DRAWN, max_length=40, seed=1) if line]
    chosen = random.Random(1)
    with path.open("w") as stream:
        for _ in range(num):
            stream.write(chosen.choice(said) + "\n")


def measure(model: Path, text: Path, options: Sequence[str], out: Path, *, kill: bool = False) -> Run:
    """One run of the command, watched until it ends."""
    command = [sys.executable, "-m", "rankfold", "score", str(model), str(text), "--json", "--threads", "1", *options]
    expected = 2.2 * text.stat().st_size  # bytes of output, roughly: for quarters and the time to kill
    driver, worker = [0] * 4, [0] * 4
    before, killed = 0.0, 0
    used: dict[int, float] = {}
    start = time.perf_counter()
    with out.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            time.sleep(0.5)
            done = out.stat().st_size
            if not before and done:
                before = time.perf_counter() - start
            quarter = min(3, int(4 * done / expected))
            family = dict(find_family(process.pid))
            used |= {number: cpu_seconds(number, used) for number in family}
            workers = [
                number
                for number, command_line in family.items()
                if any(name in command_line for name in WORKERS) and TRACKER not in command_line
            ]
            driver[quarter] = max(driver[quarter], resident(process.pid))
            worker[quarter] = max([worker[quarter], *map(resident, workers)])
            if kill and not killed and workers and done > KILLED_AT * expected:
                killed = workers[0]
                os.kill(killed, signal.SIGKILL)
        assert process.stderr is not None
        told = process.stderr.read().decode()
    if process.returncode:
        raise DataError(f"{' '.join(command)} ended with {process.returncode}:\n{told[-2000:]}")
    seconds, total, digest = time.perf_counter() - start, 0.0, hashlib.sha256()
    with out.open("rb") as lines:
        for line in lines:
            digest.update(line)
            total += json.loads(line)["log_prob"]
    return Run(
        seconds,
        sum(used.values()),
        before,
        total,
        digest.hexdigest(),
        driver,
        worker if any(worker) else [],
        int(killed > 0),
    )


def find_family(root: int) -> Iterator[tuple[int, str]]:
    """A process and those that it has started, directly or not, with their command lines."""
    family = {root}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        number = int(folder.name)
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command_line = (folder / "cmdline").read_text()
        except (OSError, IndexError):  # it has ended
            continue
        if parent in family or number == root:
            family.add(number)
            yield number, command_line


def cpu_seconds(number: int, before: dict[int, float]) -> float:
    """Of a process so far; what was known of one that has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return before.get(number, 0.0)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(number: int) -> int:
    """MiB of memory of a process, without what it shares with others, as Ray's store of objects; 0 if it has ended."""
    try:
        status = Path(f"/proc/{number}/status").read_text()
    except OSError:
        return 0
    found = {name: int(rest.split()[0]) for name, rest in re.findall(r"^(VmRSS|RssShmem):(.*)$", status, re.MULTILINE)}
    return (found.get("VmRSS", 0) - found.get("RssShmem", 0)) // 1024
