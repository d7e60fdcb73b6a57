"""`python -m benchmarks.queue`: work off the runs of `queue.toml` on one GPU, several at a time.

    python -m benchmarks.queue                                           # what is done, cut off, still to do
    python -m benchmarks.queue --data DATA --work WORK --minutes 9 --parallel 3 --pack results.tar.gz
    python -m benchmarks.queue --data DATA --work WORK --minutes 9 --restore BEFORE --carry AFTER

Runs begin in the order of the file: first those that were cut off, then those whose estimated minutes fit before the
deadline, then those that may be cut. At the deadline each is interrupted, writes its checkpoint and is resumed by the
next call with the same --work. The small files of every run (recipe, metrics, environment, evaluation) go into --pack;
`python -m benchmarks.results docs/results --add FILE` puts the finished ones on the pages, where they count as done.

--carry FOLDER gets what runs that were cut off need to go on elsewhere, in files of 15 MB, the first of the queue
first, as many runs as fit --carry-mb; there --restore FOLDER puts them back. A checkpoint takes 12 bytes a parameter
and the best model 4: 79 + 26 MB for 4,096 states of rank 1,024, 366 + 122 MB for 32,768 of rank 4,096.
`train.optimizer_state=bf16` saves 4; a run that goes on is then close to an uninterrupted one, not equal.

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
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
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
PART = 15_000_000  # bytes of a file of --carry
SHORTEST = 2.0  # minutes in which a run that may be cut gets anywhere
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
    cut: bool = False  # longer than a piece of GPU time: begun where it does not fit

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
            words += ["--replace", "%=N", "--seeds", str(self.seed), "--name", self.name, "--resume"]
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
        if given.restore is not None:
            restore(given.restore, work)
        known = (kept, in_work(entries, work))
        waiting = [entry for entry in entries if "done" not in [state(entry, runs) for runs in known]]
        begun = [entry for entry in waiting if state(entry, known[1]) == "cut off"]
        ordered = [*begun, *(entry for entry in waiting if entry not in begun)]
        commands = {entry: entry.command(given.data, work, given.device) for entry in ordered}
        failed = run(commands, work, minutes=given.minutes, parallel=given.parallel, begun=begun)
        if given.pack is not None:
            pack(entries, work, given.pack)
        if given.carry is not None:
            carry(entries, work, given.carry, most=given.carry_mb)
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


def choose(waiting: Sequence[Entry], left: float, begun: Sequence[Entry]) -> Entry | None:
    """The run to begin with so many minutes left: one that was begun or fits, else one that may be cut."""
    fitting = [entry for entry in waiting if entry in begun or entry.minutes <= left]
    cut = [entry for entry in waiting if entry.cut and left >= SHORTEST]
    return next(iter([*fitting, *cut]), None)


def run(
    commands: Mapping[Entry, Sequence[str]], work: Path, *, minutes: float, parallel: int, begun: Sequence[Entry] = ()
) -> bool:
    """Work the queue off until the deadline; whether a run failed."""
    deadline = time.monotonic() + 60 * minutes
    waiting = list(commands)
    running: dict[subprocess.Popen[bytes], Entry] = {}
    failed = False
    while time.monotonic() < deadline - GRACE:
        left = (deadline - GRACE - time.monotonic()) / 60
        # Runs that share a GPU take longer: four of 4,096 and 8,192 states twice as long (H200 with MPS, 2026-11-17).
        slower = max(1.0, parallel / 2)
        while len(running) < parallel and (entry := choose(waiting, left / slower, begun)):
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


def carry(entries: Sequence[Entry], work: Path, target: Path, *, most: float) -> None:
    """What runs that were cut off need to go on, in files of at most 15 MB; those that do not fit are named."""
    runs, left = in_work(entries, work), most * 1e6
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for entry in (entry for entry in entries if state(entry, runs) == "cut off"):
                needed = list(_needed(entry, work))
                size = sum(path.stat().st_size for path in needed)
                if size > left:
                    _say(f"{entry.folder}: {size / 1e6:.0f} MB to go on do not fit, and stay here")
                    continue
                left -= size
                for path in needed:
                    archive.add(path, path.relative_to(work).as_posix())
        num = -(-stream.tell() // PART)
        stream.seek(0)
        for number in range(num):
            (target / f"cut-off.{number:03}-of-{num:03}").write_bytes(stream.read(PART))


def restore(source: Path, work: Path) -> None:
    """Put what `carry` wrote into the folder of the runs."""
    parts = sorted(source.glob("cut-off.*"))
    if not parts or len(parts) != int(parts[0].name.rpartition("-")[2]):
        raise DataError(f"{source}: holds {len(parts)} files cut-off.*, not all of those that --carry wrote.")
    with tempfile.TemporaryFile() as stream:
        for part in parts:
            stream.write(part.read_bytes())
        stream.seek(0)
        with tarfile.open(fileobj=stream) as archive:
            archive.extractall(work, filter="data")


def _needed(entry: Entry, work: Path) -> Iterator[Path]:
    """All files of a run but the checkpoint before the last one; a grammar's are in two folders."""
    folders = [work / entry.folder, *([work / "models" / entry.folder] if entry.gold else [])]
    for path in (path for folder in folders for path in sorted(folder.rglob("*"))):
        if path.is_file() and not path.name.startswith("checkpoint-before"):
            yield path


def text(entries: Sequence[Entry], runs: Mapping[str, Record]) -> str:
    """A line per run: how far it is."""
    width = max(len(entry.folder) for entry in entries)
    lines = [f"{entry.folder:<{width}}  {state(entry, runs):<8}{_reached(entry, runs)}" for entry in entries]
    left = [entry for entry in entries if state(entry, runs) != "done"]
    minutes = sum(entry.minutes for entry in left)
    done = f"{len(entries) - len(left)} of {len(entries)} runs are done"
    return "\n".join(
        [*lines, f"{done}; about {minutes:,.0f} minutes left" + (f"; next: {left[0].folder}" if left else "")]
    )


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
    parser.add_argument("--carry", type=Path, metavar="FOLDER", help="gets what runs that were cut off need to go on")
    parser.add_argument("--carry-mb", type=float, default=60, help="at most so many million bytes (default: 60)")
    parser.add_argument("--restore", type=Path, metavar="FOLDER", help="what --carry wrote, to go on with")
    return parser


if __name__ == "__main__":
    sys.exit(main())
