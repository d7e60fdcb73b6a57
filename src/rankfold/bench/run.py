"""All rows of a table, with what they depend on: the machine, the library, the day. Read next: `bench/row.py`."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from rankfold.bench.cases import Case
from rankfold.bench.ceilings import measure_ceilings
from rankfold.bench.memory import release, too_large
from rankfold.bench.row import measure_rows
from rankfold.bench.timed import Settings
from rankfold.errors import DomainError
from rankfold.numerics.precision import Precision
from rankfold.version import __version__


def run_cases(
    cases: Sequence[Case],
    precisions: Sequence[Precision],
    device: torch.device,
    *,
    repeats: int = 15,
    reference: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report as plain data; `passed` is false if a check of any row failed."""
    if repeats < 1:
        raise DomainError(f"repeats is {repeats}, but must be at least 1.")
    for case in cases:
        case.checked()
    least = _least_seconds(cases, precisions, device, repeats)
    if least > 120:
        say(f"{len(cases) * len(precisions)} rows of {repeats} repeats, at least {least / 60:,.0f} minutes")
    say("the ceiling of this machine")
    ceilings = measure_ceilings(device, precisions)
    release(device)
    settings = Settings(device, ceilings, repeats, reference, say)
    wanted = [(group, precision) for group in _by_model(cases) for precision in precisions]
    rows = []
    for i, (group, precision) in enumerate(wanted, 1):
        rows += measure_rows(group, precision, settings._replace(say=_counted(say, i, len(wanted))))
    return {
        "rankfold": __version__,
        "device": device_name(device),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "ceilings": ceilings._asdict(),
        "rows": rows,
        "passed": all(row["passed"] for row in rows),
    }


def _by_model(cases: Sequence[Case]) -> list[list[Case]]:
    """Neighbours that differ in their plan alone go together."""
    groups = groupby(cases, lambda case: case.in_order("auto") if case.ordered else case)
    return [list(group) for _, group in groups]


def _least_seconds(cases: Sequence[Case], precisions: Sequence[Precision], device: torch.device, repeats: int) -> float:
    """The timed steps of what fits, by the plan's estimate; checks and the reference come on top."""
    plans = [case.plan(device, precision) for case in cases for precision in precisions]
    return repeats * sum(plan.seconds for plan in plans if not too_large(plan.peak_bytes, device))


def _counted(say: Callable[[str], None], i: int, num: int) -> Callable[[str], None]:
    return say if num == 1 else lambda line: say(f"{i}/{num} {line}")


def device_name(device: torch.device) -> str:
    """The device as its maker calls it; of a CPU also how many threads are used."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"
