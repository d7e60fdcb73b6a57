"""The memory that a process may take on a machine, which plans are compared with."""

from __future__ import annotations

import os
from pathlib import Path

import torch

GIB = 2**30
# Of a GPU's free memory: what its libraries take themselves, and what the allocator cannot use between two tensors.
MARGIN, MARGIN_SHARE = GIB, 0.05
# Linux.
TABLE, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


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
