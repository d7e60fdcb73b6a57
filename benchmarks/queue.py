"""`python -m benchmarks.queue`: work off the runs of `queue.toml` on one GPU, several at a time.

    python -m benchmarks.queue                                     # what is done, cut off, still to do

On a machine that is there for 28 minutes, in three commands of at most ten; then the pages:

    run="python -m benchmarks.queue --data DATA --work runs --pack results.tar.gz"
    nvidia-cuda-mps-control -d; $run --minutes 9.5 --remaining 28
    $run --minutes 9.5 --remaining 18.5
    $run --minutes 9 --carry BEFORE
    python -m benchmarks.results docs/results --add results.tar.gz

Runs begin in the order of the file, each where its estimated minutes fit into those --remaining: none is begun whose
work would be lost. At the deadline each is interrupted, writes its checkpoint, and goes on in the next command with the
same --work. Runs of more than 40% of what remains begin with --parallel 2, or 1. The small files of every run (recipe,
metrics, environment, evaluation) go into --pack; finished ones count as done once they are on the pages.

--carry FOLDER is for runs that were cut off when the machine goes: it gets what they need to go on elsewhere, in
files of 15 MB, the first of the queue first, as many as fit --carry-mb; there --restore FOLDER puts them back. A
checkpoint takes 12 bytes a parameter and the best model 4: 85 MB for N-PCFG, 106 for a low-rank HMM of 4,096 states
and rank 1,024, 488 for 32,768 of rank 4,096. `train.optimizer_state=bf16` saves 4; a run that goes on is then close to
an uninterrupted one, not equal.

Runs share a GPU better with NVIDIA's MPS. Needs torch, numpy and safetensors alone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
GRACE = 20  # seconds between an interruption and the end of its checkpoint
UNFINISHED = ".part"  # of the result of a command that has not ended
State = Literal["done", "cut off", "to do"]


@dataclass(frozen=True)
class Entry:
    """A run of the queue."""

    name: str
    minutes: float
    data: str = ""
    group: str = ""
    settings: tuple[str, ...] = ()
    gold: str = ""  # of grammars: FOLDER/NAME of the gold trees
    seed: int = 1
    module: str = ""  # no training by a recipe: python -m MODULE, with {data}, {work}, {device} and {out} filled in
    after: tuple[str, ...] = ()  # runs of the same --work that it needs
    share: float = 1.0  # of a GPU that it keeps busy, alone

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

    @property
    def result(self) -> str:
        """The file that a module's command writes to {out}, or to standard output."""
        return f"{self.name}.json"

    def command(self, data: Path, work: Path, device: str) -> list[str]:
        """What trains it, or goes on with it."""
        if self.module:
            places = {"data": data, "work": work, "device": device, "out": work / (self.result + UNFINISHED)}
            return [sys.executable, "-m", *(word.format(**places) for word in shlex.split(self.module))]
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
    started = time.monotonic()
    given = _parser().parse_args(arguments)
    try:
        entries = read_queue(given.queue)
        known = {record.name: record for record in read_archives(given.results)} if given.results.is_dir() else {}
        if given.data is None:
            print(text(entries, known, given.results))
            return 0
        work: Path = given.work
        work.mkdir(parents=True, exist_ok=True)
        if given.restore is not None:
            restore(given.restore, work)
        begun = in_work(entries, work)
        places = ((known, given.results), (begun, work))
        waiting = [entry for entry in entries if "done" not in [state(entry, *place) for place in places]]
        waiting.sort(key=lambda entry: state(entry, begun, work) != "cut off")  # those first, otherwise in order
        commands = {entry: entry.command(given.data, work, given.device) for entry in waiting}
        left = {entry: minutes_left(entry, begun) for entry in waiting}
        keep = partial(pack, entries, work, given.pack)
        remaining = max(given.remaining or 0.0, given.minutes)
        failed = run(
            commands,
            work,
            left,
            deadline=started + 60 * given.minutes,
            end=started + 60 * remaining,
            parallel=given.parallel,
            ended=keep,
        )
        keep()
        if given.carry is not None:
            carry(entries, work, given.carry, most=given.carry_mb)
        print(text(entries, in_work(entries, work), work))
        return int(failed)
    except (DataError, OSError) as error:
        print(f"benchmarks.queue: {error}", file=sys.stderr)
        return 2


def read_queue(path: Path = QUEUE) -> list[Entry]:
    """The runs in their order, one for each of their seeds; what their group has stands before their own."""
    content = read_toml(path)
    entries = []
    for number, row in enumerate(content["runs"], 1):
        source, group = f"{path}, run {number}", row.get("group", "")
        if group and group not in content["groups"]:
            raise DataError(f"{source}: there is no group {group!r}.")
        shared = content["groups"][group] if group else {}
        settings = [*shared.get("settings", []), *row.get("settings", [])]
        seeds = row.get("seeds", [row.get("seed", 1)])
        own = {key: value for key, value in {**shared, **row, "settings": settings}.items() if key != "seeds"}
        entries += [build(Entry, {**own, "seed": seed}, source=source) for seed in seeds]
    return entries


def in_work(entries: Sequence[Entry], work: Path) -> dict[str, Record]:
    """The runs of the queue that have begun, by name."""
    found = [read_run(work / entry.folder, entry.folder) for entry in entries]
    return {record.name: record for record in found if record is not None}


def state(entry: Entry, runs: Mapping[str, Record], folder: Path) -> State:
    """How far a run is; the results of commands lie in the folder."""
    if entry.module:
        unfinished = folder / (entry.result + UNFINISHED)
        return "done" if (folder / entry.result).is_file() else "cut off" if unfinished.exists() else "to do"
    record = runs.get(entry.folder)
    if record is None:
        return "to do"
    return "done" if record.finished and (not entry.gold or record.evaluation is not None) else "cut off"


def minutes_left(entry: Entry, runs: Mapping[str, Record]) -> float:
    """Of a GPU of its own: its share of the updates that are still to be done."""
    record = runs.get(entry.folder)
    done = 0.0 if record is None else record.metrics[-1]["update"] / record.recipe["train"]["updates"]
    return entry.minutes * (1 - done)


def choose(waiting: Mapping[Entry, float], left: float, missing: Container[str] = ()) -> Entry | None:
    """The first run whose minutes are not more than those left, and which needs none that is not done."""
    fitting = (entry for entry, minutes in waiting.items() if minutes <= left)
    return next((entry for entry in fitting if not any(name in missing for name in entry.after)), None)


def run(
    commands: Mapping[Entry, Sequence[str]],
    work: Path,
    left: Mapping[Entry, float],
    *,
    deadline: float,
    end: float,
    parallel: int,
    ended: Callable[[], None] = lambda: None,
) -> bool:
    """Work the queue off until the deadline, with runs that are through before the end; whether one failed.

    `ended` is called after each run, so that its results are safe if the machine goes before the deadline.
    """
    waiting = dict(left)
    running: dict[subprocess.Popen[bytes], Entry] = {}
    missing = {entry.folder for entry in commands}
    # Runs that share a GPU take longer, by the sum of their shares, which is kept below this.
    slower = max(1.0, parallel / 2)
    failed = False
    while time.monotonic() < deadline - GRACE:
        minutes = (end - GRACE - time.monotonic()) / 60
        while len(running) < parallel and (entry := choose(waiting, minutes / slower, missing)):
            if sum(other.share for other in running.values()) + entry.share > slower:
                break  # it is its turn: those that need less do not pass it by
            del waiting[entry]
            running[_begin(commands[entry], work, entry)] = entry
        if not running:
            break
        time.sleep(1)
        for process in [process for process in running if process.poll() is not None]:
            entry = running.pop(process)
            _say(f"{entry.folder}: " + ("finished" if process.returncode == 0 else f"exit status {process.returncode}"))
            failed |= process.returncode != 0
            if process.returncode == 0:
                missing.discard(entry.folder)
                if entry.module:
                    (work / (entry.result + UNFINISHED)).replace(work / entry.result)
                ended()
    for process in running:
        process.send_signal(signal.SIGTERM)
    for process in running:
        try:
            process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            _say(f"{running[process].folder}: did not stop in time")
    return failed


def pack(entries: Sequence[Entry], work: Path, target: Path | None) -> None:
    """The small files of every run, command lines without this machine's paths, as an archive; None: nowhere."""
    if target is None:
        return
    unfinished = target.with_name(target.name + UNFINISHED)
    with tarfile.open(unfinished, "w:gz") as archive:
        for entry in entries:
            names = [f"{entry.folder}/{name}" for name in (*KEPT, EVALUATION)]
            for name in [entry.result] if entry.module else names:
                if (work / name).is_file():
                    content = (work / name).read_bytes()  # first: a run may write to it
                    if Path(name).name == ENVIRONMENT:
                        content = _without_paths(content, entry)
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    unfinished.replace(target)


def carry(entries: Sequence[Entry], work: Path, target: Path, *, most: float) -> None:
    """What runs that were cut off need to go on, in files of at most 15 MB; those that do not fit are named."""
    runs, left = in_work(entries, work), most * 1e6
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for entry in (entry for entry in entries if entry.folder in runs and state(entry, runs, work) == "cut off"):
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


def text(entries: Sequence[Entry], runs: Mapping[str, Record], folder: Path) -> str:
    """A line per run: how far it is."""
    width = max(len(entry.folder) for entry in entries)
    states = {entry: state(entry, runs, folder) for entry in entries}
    lines = [f"{entry.folder:<{width}}  {state:<8}{_reached(entry, runs)}" for entry, state in states.items()]
    left = [entry for entry in entries if states[entry] != "done"]
    minutes = sum(minutes_left(entry, runs) for entry in left)
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


def _begin(command: Sequence[str], work: Path, entry: Entry) -> subprocess.Popen[bytes]:
    _say(shlex.join(command[1:]))
    environment = {"OMP_NUM_THREADS": "2", **os.environ}
    with (work / f"{entry.folder}.log").open("ab") as log:
        if not entry.module or "{out}" in entry.module:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        with (work / (entry.result + UNFINISHED)).open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=log, env=environment)


def _without_paths(content: bytes, entry: Entry) -> bytes:
    if entry.gold:  # benchmarks.induce has done so itself
        return content
    words = ["rankfold", "train", "--recipe", entry.recipe]
    words += [word for setting in entry.settings for word in ("--set", setting)]
    argv = [*words, "--data", Path(entry.data).name, "--out", "run"]
    return (json.dumps(json.loads(content) | {"argv": argv}, indent=2) + "\n").encode()


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
    parser.add_argument("--minutes", type=float, default=9.5, help="until the deadline (default: 9.5)")
    parser.add_argument(
        "--remaining", type=float, metavar="MINUTES", help="until --work is gone (default: as --minutes)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what the runs use (default: cuda)")
    parser.add_argument("--parallel", type=int, default=5, help="runs at a time (default: 5)")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="archive of the small files")
    parser.add_argument("--carry", type=Path, metavar="FOLDER", help="gets what runs that were cut off need to go on")
    parser.add_argument("--carry-mb", type=float, default=60, help="at most so many million bytes (default: 60)")
    parser.add_argument("--restore", type=Path, metavar="FOLDER", help="what --carry wrote, to go on with")
    return parser


if __name__ == "__main__":
    sys.exit(main())
