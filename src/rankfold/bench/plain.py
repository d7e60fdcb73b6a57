"""The plain reference at the full size: timed where it fits into memory and a minute, else left out with the reason.

Read next: `bench/reference.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from rankfold.bench.cases import Case
from rankfold.bench.memory import out_of_memory, release, too_large
from rankfold.bench.step import reference_gradients
from rankfold.bench.timing import Spread, host_time, host_times, peak_mib
from rankfold.data.batch import Batch
from rankfold.numerics.precision import Precision

LONGEST = 60.0  # seconds of a step
TOTAL = 20.0  # seconds of all repeats, beyond three


class Plain(NamedTuple):
    """What the reference took; `why` it was left out, else empty."""

    log_z: Tensor | None = None  # "b"
    time: Spread | None = None
    peak_mib: float | None = None
    why: str = ""


class Cost(NamedTuple):
    """At least so much."""

    multiply_adds: int
    bytes: int


def cost(case: Case) -> Cost:
    """What the plain step needs: each table with its logits and both gradients; three products for each."""
    config, tokens = case.config, case.batch * case.length
    z, r = config.num_states, config.rank
    dim = config.dim if config.neural else 0
    made = {"hmm": z * z, "block": z * z, "lhmm": 2 * z * r, "banded": 2 * z * r, "rank": 2 * z * r}[config.family]
    step = {"hmm": z * z, "block": z, "lhmm": 2 * z * r, "banded": 2 * z * r + z * z, "rank": r * r}[config.family]
    extra = {"banded": 2 * z * z, "rank": r * r}.get(config.family, 0)
    width = r if config.family == "rank" else z
    squared = z * r * r if config.family == "rank" else 0
    emissions = width * case.num_words
    messages = 6 * tokens * (z // config.num_clusters if config.family == "block" else width)
    return Cost(
        3 * ((made + emissions) * dim + squared + tokens * step), 4 * (4 * (made + extra + emissions) + messages)
    )


def measure_plain(model: Any, case: Case, batch: Batch, precision: Precision, *, rate: float, repeats: int) -> Plain:
    """Time the reference, unless it cannot fit or cannot finish (`rate`: multiply-adds in a second)."""
    device = batch.words.device
    needed = cost(case)
    why = too_large(needed.bytes, device)
    if not why and needed.multiply_adds / rate > LONGEST:
        why = f"would take over {LONGEST:.0f} s"
    if why:
        return Plain(why=why)

    values: list[Tensor] = []

    def work() -> None:
        values[:] = [reference_gradients(model, batch, precision).log_z]

    try:
        first = host_time(work, device) / 1e3
        if first > LONGEST:
            return Plain(values[0], why=f"takes {first:.0f} s")
        count = min(repeats, max(3, int(TOTAL / first)))
        peak = peak_mib(work, device)
        result = Plain(values[0], host_times(work, device, repeats=count, warm=1), peak)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        result = Plain(why="does not fit into memory")
    release(device)
    return result
