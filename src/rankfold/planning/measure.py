"""Measured on this machine: the memory that a process may take, how long work takes, how much memory it holds.

Times are medians and quartiles after warm-ups. Work that is compared takes turns, call by call: a machine that is busy
for a while is busy for all of it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

GIB = 2**30
# Of a GPU's free memory: what its libraries take themselves, and what the allocator cannot use between two tensors.
MARGIN, MARGIN_SHARE = GIB, 0.05
# Linux.
TABLE, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # Linux
Name = TypeVar("Name")


def available(device: str, asked: float = 0.0) -> int | None:
    """The bytes a run may take: `asked` GiB, or if that is 0 all that is free; None where it is unknown."""
    if asked:
        return int(asked * GIB)
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(max(0, free + own - max(MARGIN, MARGIN_SHARE * total)))
    return available_bytes()


def available_bytes(table: Path = TABLE, group: Path = GROUP) -> int | None:
    """The bytes a process may still take: free on the machine, or in its container if less; None where unknown."""
    return min((x for x in (_machine(table), _container(group)) if x is not None), default=None)


def _machine(table: Path) -> int | None:
    """The bytes available without swapping; all memory where the machine does not say."""
    try:
        lines = table.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _container(group: Path) -> int | None:
    """The bytes a container may still take; cached files count as used, but can be dropped."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such folder, or the limit is "max"
        return None
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        idle = int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        idle = 0
    return max(0, limit - used + idle)


class Spread(NamedTuple):
    """Milliseconds: the median, the quartiles, and of how many."""

    median: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """The summary of at least one time."""
        if len(times) == 1:
            return cls(times[0], times[0], times[0], 1)
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        return cls(median, low, high, len(times))


def host_time(work: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds of one call by the host's clock, waiting for the device before and after."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return 1e3 * (time.perf_counter() - start)


def host_times(work: Callable[[], Any], device: torch.device, *, repeats: int, warm: int = 2) -> Spread:
    """The spread of calls after some to warm up."""
    for _ in range(warm):
        work()
    return Spread.of([host_time(work, device) for _ in range(repeats)])


def replay_time(graph: torch.cuda.CUDAGraph) -> float:
    """Milliseconds of one replay of a captured graph, between two events of the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


class Turn(NamedTuple):
    """Something that takes turns: `take` works once and says how many milliseconds it took."""

    take: Callable[[], float]
    repeats: int
    warm: int = 2


def in_turns(turns: Mapping[Name, Turn]) -> dict[Name, Spread]:
    """The spread of each after its warm-ups, one call of each in turn; those of fewer repeats sit out, evenly."""
    for turn in turns.values():
        for _ in range(turn.warm):
            turn.take()
    rounds = max((turn.repeats for turn in turns.values()), default=0)
    times: dict[Name, list[float]] = {name: [] for name in turns}
    for i in range(rounds):
        for name, turn in turns.items():
            if (i + 1) * turn.repeats // rounds > i * turn.repeats // rounds:
                times[name].append(turn.take())
    return {name: Spread.of(taken) for name, taken in times.items() if taken}


def held_bytes(device: torch.device) -> int:
    """The device memory that the process holds: before a model is made, the workspaces of libraries."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else process_bytes() or 0


def peak_mib(work: Callable[[], Any], device: torch.device, held: int = 0) -> float | None:
    """The peak of device memory during a call, above the bytes `held` before, in MiB; None where it is unknown."""
    if device.type != "cuda":
        release(device)
        if not forget_peak():
            return None
        work()
        most = process_bytes(peak=True)
        return None if most is None else max(0, most - held) / 2**20
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / 2**20


def reserved_mib(work: Callable[[], Any], device: torch.device) -> float | None:
    """The peak of device memory reserved by the process during a call, idle parts included, in MiB."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) / 2**20


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def too_large(num_bytes: float, device: torch.device) -> str:
    """Why a computation of this peak is not begun; empty if it may fit.

    Checked on a CPU alone, where Linux grants more than it has and ends the process later; a GPU raises an error.
    """
    free = available_bytes() if device.type == "cpu" else None
    if free is None or num_bytes <= free:
        return ""
    return f"needs about {num_bytes / 2**30:,.1f} GiB, {free / 2**30:,.1f} GiB are free"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: torch raises plain RuntimeErrors on a CPU."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    )


def release(device: torch.device) -> None:
    """Free unused memory, so that the next peak is its own."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        with suppress(AttributeError, OSError):  # a C library of another kind
            ctypes.CDLL(None).malloc_trim(0)


def process_bytes(*, peak: bool = False) -> int | None:
    """The machine's memory that this process holds, or held at most since `forget_peak`; None where it is unknown."""
    if not _STATUS.is_file():
        return None
    name = "VmHWM:" if peak else "VmRSS:"
    found = [line.split()[1] for line in _STATUS.read_text().splitlines() if line.startswith(name)]
    return 1024 * int(found[0]) if found else None


def forget_peak() -> bool:
    """Begin a new peak of this process; whether that can be done here."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True
