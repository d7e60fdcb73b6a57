"""Calls in turns in this process, or one in a process of its own, limited in time and memory.

`python -m benchmarks.libraries.process TASK` is that process: the task is JSON, and so is its answer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.__main__ import NUM_THREADS
from rankfold.cli.output import say
from rankfold.planning.measure import Spread, Turn, host_time, in_turns, process_bytes

GIB = 2**30
CPU = torch.device("cpu")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Case:
    """Something to be timed; `prepare` runs before every repeat and is not."""

    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing

    def take(self, times: int = 1) -> float:
        """Milliseconds of one call, the last of so many in a row."""
        for _ in range(times):
            self.prepare()
            taken = host_time(self.run, CPU)
        return taken


def num_repeats(first: float, wanted: int) -> int:
    """As many as wanted for a call of at most a second, then fewer; `first` in milliseconds."""
    for limit, most in ((1e3, wanted), (4e3, 7), (12e3, 3)):
        if first <= limit:
            return min(wanted, most)
    return min(wanted, 2)


def time_together(cases: dict[str, Case], wanted: int = 21) -> dict[str, Spread]:
    """All cases in turn, round by round, so that whatever else the machine does hits them alike.

    The first call of each is a warm-up and decides the number of repeats. Calls below a tenth of a second are made
    twice in a row and the second is timed, with caches and threads its own.
    """
    turns = {}
    for name, case in cases.items():
        first = case.take()
        if first < 1e3:
            first = case.take()
        repeats = num_repeats(first, wanted)
        say(f"  {name}: {first:.3g} ms, {repeats} repeats")
        turns[name] = Turn(partial(case.take, 2 if first < 100 else 1), repeats, warm=0)
    return in_turns(turns)


@dataclass(frozen=True)
class Outcome:
    """What became of a call in a process of its own."""

    spread: Spread | None = None
    peak_gib: float | None = None  # resident memory above that of the process with its libraries loaded
    failure: str | None = None


def in_process(task: dict[str, Any], limit_s: int, memory_gib: float | None = None) -> Outcome:
    """Run a task of `main`; a call over `limit_s` or `memory_gib` becomes a failure with its reason."""
    task = {**task, "limit_s": limit_s, "memory_gib": memory_gib}
    command = [sys.executable, "-m", "benchmarks.libraries.process", json.dumps(task)]
    try:
        # The worker limits the call itself; this limits its preparation.
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * limit_s + 300, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"not ready after {4 * limit_s + 300} s")
    if done.returncode == -signal.SIGALRM:
        return Outcome(failure=f"over {limit_s} s")
    if done.returncode == -signal.SIGKILL:
        return Outcome(failure="killed for memory")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return Outcome(failure=_last_line(done.stderr) or f"exit {done.returncode}")
    answer = json.loads(lines[-1])
    return Outcome(Spread.of(answer["ms"]) if answer["ms"] else None, answer["peak_gib"], answer["failure"])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:160] if lines else ""


def total_memory_gib() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Prepare, then time the call; whatever goes wrong is the answer."""
    torch.set_num_threads(NUM_THREADS)
    before = process_bytes() or 0
    if task["memory_gib"] is not None:
        limit = int(task["memory_gib"] * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken: list[float] = []
    failure = None
    try:
        case = _case(task)
        for _ in range(task["repeats"]):
            case.prepare()
            # The default action of the alarm ends the process even inside a library's own loop.
            signal.alarm(task["limit_s"])
            taken.append(host_time(case.run, CPU))
            signal.alarm(0)
    except Exception as error:
        signal.alarm(0)
        failure = shortened(error)
    peak = process_bytes(peak=True)
    return {"ms": taken, "failure": failure, "peak_gib": None if peak is None else (peak - before) / GIB}


def _case(task: dict[str, Any]) -> Case:
    from benchmarks.libraries.cases import GradientStep, Size
    from benchmarks.libraries.peers import make, random_hmm

    if task["what"] == "em":
        return make(task["library"], random_hmm(task["num_states"])).case()
    return GradientStep(task["kind"], Size(**task["size"]), plain=task["plain"]).case()


def shortened(error: Exception) -> str:
    """The reason in a few words; an allocation that failed, in GiB."""
    text = " ".join(str(error).split())
    asked = re.search(r"(\d{9,}) bytes", text)
    if asked:
        return f"asked for {int(asked[1]) / GIB:,.0f} GiB"
    asked = re.search(r"allocate ([\d.]+) ([KMGT]iB)", text)
    if asked:
        return f"no memory for {asked[1]} {asked[2]} more"
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {text}"[:120]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
