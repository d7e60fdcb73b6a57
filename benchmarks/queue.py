"""`python -m benchmarks.queue`: work off the runs of `queue.toml` on one GPU, several at a time.

    python -m benchmarks.queue                                           # what is done, cut off, still to do
    python -m benchmarks.queue --data DATA --work WORK --minutes 9 --parallel 3 --pack results.tar.gz

Runs begin in the order of the file, where their estimated minutes fit before the deadline. At the deadline each is
interrupted, writes its checkpoint and is resumed by the next call with the same --work. The small files of every run
(recipe, metrics, environment, evaluation) go into --pack; `python -m benchmarks.results docs/results --add FILE` puts
the finished ones on the pages, where they count as done.
Runs share a GPU better with NVIDIA's MPS (`nvidia-cuda-mps-control -d`). Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.results.archive import ENVIRONMENT, EVALUATION, KEPT, Record, read_archives, read_run
from rankfold.errors import DataError
from rankfold.settings import build, read_toml
from rankfold.training.recipes import recipe_names
from rankfold.training.run_dir import RECIPE

QUEUE = Path(__file__).with_name("queue.toml")
RESULTS = Path("docs/results")
SPLITS = ("train", "valid", "test")
GRACE = 45  # seconds between an interruption and the end of its checkpoint, or of a grammar's judgement
State = Literal["done", "cut off", "to do"]


@dataclass(frozen=True)
class Entry:
    """A run of the queue."""

    name: str
    data: str
    minutes: float
    group: str = ""
    settings: tuple[str, ...] = ()
    gold: str = ""  # of grammars: FOLDER/NAME of the gold trees
    seed: int = 1

    @property
    def folder(self) -> str:
        """Of its results: a grammar's has the seed in its name."""
        return f"{self.name}-s{self.seed}" if self.gold else self.name

    @property
    def recipe(self) -> str:
        """The shipped recipe with the longest name that the run's begins with."""
        begun = [name for name in recipe_names() if self.name == name or self.name.startswith(f"{name}-")]
        if not begun:
            raise DataError(f"{QUEUE}: {self.name} begins with the name of no shipped recipe.")
        return max(begun, key=len)

    def command(self, data: Path, work: Path, device: str) -> list[str]:
        """What trains it, or goes on with it."""
        settings = [word for setting in (*self.settings, f"train.device={device}") for word in ("--set", setting)]
        source = str(data / self.data)
        if self.gold:
            trees = [str(data / f"{self.gold}.{split}.trees.txt.gz") for split in SPLITS]
            words = ["benchmarks.induce", "--recipe", self.recipe, *settings, "--data", source, "--trees", *trees]
            words += ["--replace", "%=N", "--seeds", str(self.seed), "--name", self.name]
            words += ["--work", str(work / "models"), "--out", str(work)]
        elif (work / self.folder / RECIPE).is_file():
            words = ["rankfold", "train", "--resume", "--data", source, "--out", str(work / self.folder)]
        else:
            words = ["rankfold", "train", "--recipe", self.recipe, *settings, "--data", source]
            words += ["--out", str(work / self.folder)]
        return [sys.executable, "-m", *words]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every run that was begun went well, 1 when one failed, 2 if something given is wrong."""
    given = _parser().parse_args(arguments)
    try:
        entries = read_queue(given.queue)
        records = read_archives(given.results) if given.results.is_dir() else []
        kept = {record.name: record for record in records}
        if given.data is None:
            print(text(entries, kept))
            return 0
        work: Path = given.work
        work.mkdir(parents=True, exist_ok=True)
        known = (kept, in_work(entries, work))
        waiting = [entry for entry in entries if "done" not in [state(entry, runs) for runs in known]]
        commands = {entry: entry.command(given.data, work, given.device) for entry in waiting}
        failed = run(commands, work, minutes=given.minutes, parallel=given.parallel)
        if given.pack is not None:
            pack(entries, work, given.pack)
        print(text(entries, in_work(entries, work)))
        return int(failed)
    except (DataError, OSError) as error:
        print(f"benchmarks.queue: {error}", file=sys.stderr)
        return 2


def read_queue(path: Path = QUEUE) -> list[Entry]:
    """The runs in their order, the settings of their group before their own."""
    content = read_toml(path)
    entries = []
    for number, row in enumerate(content["runs"], 1):
        entry = build(Entry, row, source=f"{path}, run {number}")
        if entry.group and entry.group not in content["settings"]:
            raise DataError(f"{path}, run {number}: there are no settings of a group {entry.group!r}.")
        shared = tuple(content["settings"].get(entry.group, ()))
        entries.append(Entry(**{**vars(entry), "settings": shared + tuple(entry.settings)}))
    return entries


def in_work(entries: Sequence[Entry], work: Path) -> dict[str, Record]:
    """The runs of the queue that have begun, by name."""
    found = [read_run(work / entry.folder, entry.folder) for entry in entries]
    return {record.name: record for record in found if record is not None}


def state(entry: Entry, runs: Mapping[str, Record]) -> State:
    """How far a run is."""
    record = runs.get(entry.folder)
    if record is None:
        return "to do"
    return "done" if record.finished and (not entry.gold or record.evaluation is not None) else "cut off"


def run(commands: Mapping[Entry, Sequence[str]], work: Path, *, minutes: float, parallel: int) -> bool:
    """Work the queue off until the deadline; whether a run failed."""
    deadline = time.monotonic() + 60 * minutes
    waiting = list(commands)
    running: dict[subprocess.Popen[bytes], Entry] = {}
    failed = False
    while time.monotonic() < deadline - GRACE:
        left = (deadline - GRACE - time.monotonic()) / 60
        # Runs that share a GPU take longer: four of 4,096 and 8,192 states twice as long (H200 with MPS, 2026-11-17).
        slower = max(1.0, parallel / 2)
        while len(running) < parallel and (entry := next((e for e in waiting if e.minutes * slower <= left), None)):
            waiting.remove(entry)
            running[_begin(commands[entry], work / f"{entry.folder}.log")] = entry
        if not running:
            break
        time.sleep(1)
        failed |= _ended(running)
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            _say(f"{running[process].folder}: did not stop in time")
    return failed


def pack(entries: Sequence[Entry], work: Path, target: Path) -> None:
    """The small files of every run, command lines without this machine's paths, as an archive."""
    with tarfile.open(target, "w:gz") as archive:
        for entry in entries:
            for path in (work / entry.folder / name for name in (*KEPT, EVALUATION)):
                if path.is_file():
                    if path.name == ENVIRONMENT:
                        _without_paths(path, entry)
                    archive.add(path, f"{entry.folder}/{path.name}")


def text(entries: Sequence[Entry], runs: Mapping[str, Record]) -> str:
    """A line per run: how far it is."""
    width = max(len(entry.folder) for entry in entries)
    return "\n".join(f"{entry.folder:<{width}}  {state(entry, runs):<8}{_reached(entry, runs)}" for entry in entries)


def _reached(entry: Entry, runs: Mapping[str, Record]) -> str:
    if entry.folder not in runs:
        return f"  about {entry.minutes:g} minutes"
    records = runs[entry.folder].metrics
    valid = [record["valid_perplexity"] for record in records if record.get("valid_perplexity") is not None]
    tested = [record["test_perplexity"] for record in records if record.get("test_perplexity") is not None]
    words = [f"{records[-1]['update']:,} updates", f"{records[-1]['seconds'] / 60:.1f} minutes"]
    words += [f"valid {min(valid):.1f}"] if valid else []
    return "  " + ", ".join(words + ([f"test {tested[-1]:.1f}"] if tested else []))


def _begin(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    _say(shlex.join(command[1:]))
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env={"OMP_NUM_THREADS": "2", **os.environ})


def _ended(running: dict[subprocess.Popen[bytes], Entry]) -> bool:
    failed = False
    for process in [process for process in running if process.poll() is not None]:
        entry = running.pop(process)
        _say(f"{entry.folder}: " + ("finished" if process.returncode == 0 else f"exit status {process.returncode}"))
        failed |= process.returncode != 0
    return failed


def _without_paths(path: Path, entry: Entry) -> None:
    content = json.loads(path.read_bytes())
    if not entry.gold:  # benchmarks.induce has done so itself
        words = ["rankfold", "train", "--recipe", entry.recipe]
        words += [word for setting in entry.settings for word in ("--set", setting)]
        content["argv"] = [*words, "--data", Path(entry.data).name, "--out", "run"]
    path.write_text(json.dumps(content, indent=2) + "\n")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.queue",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--queue", type=Path, default=QUEUE, metavar="FILE", help="the runs (default: queue.toml here)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="runs that are done already")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the texts are; without it nothing runs")
    parser.add_argument("--work", type=Path, default=Path("runs"), metavar="FOLDER", help="of the runs (default: runs)")
    parser.add_argument("--minutes", type=float, default=9, help="until the deadline (default: 9)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what the runs use (default: cuda)")
    parser.add_argument("--parallel", type=int, default=3, help="runs at a time (default: 3)")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="archive of the small files")
    return parser


if __name__ == "__main__":
    sys.exit(main())
