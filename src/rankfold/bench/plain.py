"""The plain reference at the full size: run where it fits into memory and a minute, else left out with the reason.

Read next: `bench/reference.py`, `bench/reference_trees.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rankfold.bench.cases import Case
from rankfold.bench.cost import cost
from rankfold.bench.memory import out_of_memory, release, too_large
from rankfold.bench.step import AnyBatch, Gradients, reference_gradients
from rankfold.bench.timing import host_time, peak_mib
from rankfold.numerics.precision import Precision

LONGEST = 60.0  # seconds of a step
TOTAL = 20.0  # seconds of all repeats, beyond three


class Plain(NamedTuple):
    """What the reference gives, and how often it is worth timing; `why` it was left out, else empty."""

    found: Gradients | None = None  # in float32, whatever it is timed in
    repeats: int = 0
    peak_mib: float | None = None
    why: str = ""


def try_plain(
    model: Any, case: Case, batch: AnyBatch, precision: Precision, *, rate: float, repeats: int, held: int = 0
) -> Plain:
    """Run the reference, unless it cannot fit or cannot finish (`rate`: multiply-adds in a second).

    `held` is what the process held before there was a model.
    """
    device = batch.lengths.device
    if not case.has_reference:
        return Plain(why=f"is not written for {case.config.family}")
    needed = cost(case)
    why = too_large(needed.bytes, device)
    if not why and needed.multiply_adds / rate > LONGEST:
        why = f"would take over {LONGEST:.0f} s"
    if why:
        return Plain(why=why)

    def work() -> None:
        reference_gradients(model, batch, precision)

    try:
        first = host_time(work, device) / 1e3
        peak = None if first > LONGEST else peak_mib(work, device, held)
        found = reference_gradients(model, batch)
        if first > LONGEST:
            return Plain(found, why=f"takes {first:.0f} s")
        result = Plain(found, min(repeats, max(3, int(TOTAL / first))), peak)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        result = Plain(why="does not fit into memory")
    release(device)
    return result
