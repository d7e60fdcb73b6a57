"""Whether a step fits, what an error says of memory, and what this process has. Read next: `bench/row.py`."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch

from rankfold.planning.machine import available_bytes

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # Linux


def too_large(num_bytes: float, device: torch.device) -> str:
    """Why a computation of this peak is not begun; empty if it may fit.

    Asked beforehand on a CPU alone, where Linux grants what it does not have and ends the process later. A GPU says so.
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
    """Give back what nobody holds any more, so that the next peak is its own."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        with suppress(AttributeError, OSError):  # a C library of another kind
            ctypes.CDLL(None).malloc_trim(0)


def process_bytes(*, peak: bool = False) -> int | None:
    """What this process has of the machine's memory, or had at most since `forget_peak`; None where nobody says."""
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
