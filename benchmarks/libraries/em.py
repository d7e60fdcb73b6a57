"""One EM step of a dense categorical HMM in every library, up to the size at which they fail.

Read next: `peers.py`, the steps; `worker.py`, the process of the largest size.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.libraries.hmm import random_hmm
from benchmarks.libraries.measure import Outcome, Timing, in_process, progress, time_together, total_memory_gib
from benchmarks.libraries.peers import (
    DYNAMAX,
    HMMLEARN,
    HMMLEARN_SCALING,
    MAKERS,
    POMEGRANATE,
    RANKFOLD_32,
    RANKFOLD_LOW_RANK,
    make,
)

NUM_STATES = (64, 256, 1024)
LARGE_STATES = 16384
LIMIT_S = 120
# The rest is for the system: a library that asks for more is told no, instead of the machine coming to a stop.
MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class Em:
    """Every number of the tables against other libraries."""

    timings: dict[int, dict[str, Timing]]
    large: dict[str, Outcome]
    memory_limit_gib: float


def measure_em(*, quick: bool) -> Em:
    """All sizes in this process, interleaved; the largest in one process for each library."""
    timings = {}
    for num_states in NUM_STATES[:2] if quick else NUM_STATES:
        progress(f"EM step, {num_states:,} states")
        hmm = random_hmm(num_states)
        timings[num_states] = time_together({name: make(name, hmm).case() for name in MAKERS}, 5 if quick else 21)
    limit = MEMORY_SHARE * total_memory_gib()
    return Em(timings, {} if quick else _large(timings[NUM_STATES[-1]], limit), limit)


def _large(below: dict[str, Timing], memory_gib: float) -> dict[str, Outcome]:
    outcomes = {}
    for name in (RANKFOLD_32, RANKFOLD_LOW_RANK, HMMLEARN_SCALING, POMEGRANATE, DYNAMAX):
        progress(f"EM step, {LARGE_STATES:,} states: {name}")
        repeats = 2 if name in (RANKFOLD_32, RANKFOLD_LOW_RANK) else 1
        task = {"what": "em", "library": name, "num_states": LARGE_STATES, "repeats": repeats}
        outcomes[name] = in_process(task, LIMIT_S, memory_gib)
        progress(f"  {outcomes[name].failure or outcomes[name].seconds}")
    slower = below[HMMLEARN].median / below[HMMLEARN_SCALING].median
    outcomes[HMMLEARN] = Outcome(failure=f"not run: {slower:.1f}x its scaling mode at {NUM_STATES[-1]:,} states")
    return outcomes
