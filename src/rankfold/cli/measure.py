"""Times as medians, peak memory from a fresh process.

Read next: `cli/compare.py`.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def median_seconds(work: Callable[[], object], *, repeats: int) -> float:
    """The median time of a call, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_bytes(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> int | None:
    """How far a call raises the resident memory of a fresh process, inputs included; None if not measurable.

    `prepare(*arguments)` builds the inputs and returns the call; it must be importable by name.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, prepare, arguments))
    process.start()
    sender.close()
    try:
        result: int | None = receiver.recv()
    except EOFError:
        result = None
    process.join()
    return result


def _measure(sender: Connection, prepare: Callable[..., Callable[[], object]], arguments: tuple[Any, ...]) -> None:
    before = _high_water()
    prepare(*arguments)()
    after = _high_water()
    sender.send(None if before is None or after is None else after - before)


def _high_water() -> int | None:
    """The peak resident memory of this process so far; known on Linux.

    Not `ru_maxrss`: a child process starts with that of its parent.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
