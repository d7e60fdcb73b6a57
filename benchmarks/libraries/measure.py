"""Time and memory: medians of interleaved repeats, peak memory of a process of its own.

Read next: `worker.py`, the process.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_THREADS = 2
GIB = 2**30


def limit_threads() -> None:
    """Two CPUs for this process and its children; call before any library starts its threads."""
    os.environ["OMP_NUM_THREADS"] = str(NUM_THREADS)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_THREADS])


def progress(text: str) -> None:
    """A line for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Case:
    """Something to be timed; `prepare` runs before every repeat and is not."""

    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Timing:
    """Repeats of one call, in seconds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.percentile(self.seconds, [25, 75])
        return float(low), float(high)


def once(case: Case) -> float:
    """Seconds of one call."""
    case.prepare()
    start = time.perf_counter()
    case.run()
    return time.perf_counter() - start


def num_repeats(first: float, wanted: int) -> int:
    """As many as wanted for a call of at most a second, then fewer."""
    for limit, most in ((1.0, wanted), (4.0, 7), (12.0, 3)):
        if first <= limit:
            return min(wanted, most)
    return min(wanted, 2)


def time_together(cases: dict[str, Case], wanted: int = 21) -> dict[str, Timing]:
    """All cases in turn, round by round, so that whatever else the machine does hits them alike.

    The first call of each is a warm-up and decides the number of repeats; if it took over four seconds, it
    counts. Calls below a tenth of a second are made twice in a row and the second is timed, with caches and
    threads its own.
    """
    first, samples = {}, {}
    for name, case in cases.items():
        first[name] = once(case)
        samples[name] = [first[name]] if first[name] > 4.0 else []
        if first[name] < 1.0:
            first[name] = once(case)
        progress(f"  {name}: {first[name]:.3g} s, {num_repeats(first[name], wanted)} repeats")
    for _ in range(wanted):
        for name, case in cases.items():
            if len(samples[name]) < num_repeats(first[name], wanted):
                if first[name] < 0.1:
                    once(case)
                samples[name].append(once(case))
    return {name: Timing(tuple(seconds)) for name, seconds in samples.items()}


@dataclass(frozen=True)
class Outcome:
    """What became of a call in a process of its own."""

    seconds: tuple[float, ...] = ()
    peak_gib: float | None = None  # resident memory above that of the process with its libraries loaded
    failure: str | None = None

    @property
    def timing(self) -> Timing | None:
        return Timing(self.seconds) if self.seconds else None


def in_process(task: dict[str, Any], limit_s: int, memory_gib: float | None = None) -> Outcome:
    """Run a task of `worker.py`; a call over `limit_s` or `memory_gib` becomes a failure with its reason."""
    task = {**task, "limit_s": limit_s, "memory_gib": memory_gib}
    command = [sys.executable, "-m", "benchmarks.libraries.worker", json.dumps(task)]
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
    return Outcome(tuple(answer["seconds"]), answer["peak_gib"], answer["failure"])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:160] if lines else ""


def memory_gib(which: str) -> float:
    """Resident memory of this process in GiB: `VmRSS` now, `VmHWM` at its peak."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(which + ":"):
                    return int(line.split()[1]) * 1024 / GIB
    except OSError:
        pass
    # Without /proc: the peak only, in bytes on macOS. A child inherits its parent's peak on Linux, so not there.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB


def total_memory_gib() -> float:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
