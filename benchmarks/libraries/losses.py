"""What the numbers say against us.

Read next: `report.py`, which prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchmarks.libraries.em import Em
from benchmarks.libraries.own import DENSE, Own
from benchmarks.libraries.peers import OURS, PEERS, RANKFOLD_32, RANKFOLD_LOW_RANK


def losses(em: Em, own: Own) -> list[str]:
    """Every comparison that another library, or our own dense form, wins."""
    found = [*_to_peers(em), *_to_dense(em, own)]
    return found or ["Nowhere in this run."]


def _to_peers(em: Em) -> Iterator[str]:
    for size, timings in em.timings.items():
        for ours in OURS:
            for peer in PEERS:
                ratio = timings[ours].median / timings[peer].median
                if ratio > 1:
                    yield f"EM step, {size:,} states: {ours} takes {ratio:.2f}x the time of {peer}."


def _to_dense(em: Em, own: Own) -> Iterator[str]:
    for size, timings in em.timings.items():
        ratio = timings[RANKFOLD_LOW_RANK].median / timings[RANKFOLD_32].median
        if ratio > 1:
            yield f"EM step, {size:,} states: rank {size // 8:,} takes {ratio:.2f}x the time of dense float32."
    for size, timings in own.by_states.items():
        ratio = timings["low rank"].median / timings[DENSE].median
        if ratio > 1:
            yield f"Gradient step, {size:,} states: rank {size // 16:,} takes {ratio:.2f}x the time of dense."
    dense = own.structured[DENSE].median
    for rank, timing in own.by_rank.items():
        if timing.median > dense:
            yield (
                f"Gradient step, {own.sweep_size.num_states:,} states: rank {rank:,} takes"
                f" {timing.median / dense:.2f}x the time of dense."
            )
    for name, timing in own.structured.items():
        if timing.median > dense:
            yield f"Gradient step, {own.sweep_size.num_states:,} states: {name} takes {timing.median / dense:.2f}x."


def crossover(points: Sequence[tuple[int, float]]) -> float | None:
    """Where a ratio first exceeds 1, between the measured points on log scales; None if it never does."""
    previous: tuple[int, float] | None = None
    for x, ratio in points:
        if ratio > 1:
            if previous is None:
                return float(x)
            share = -math.log(previous[1]) / (math.log(ratio) - math.log(previous[1]))
            return math.exp(math.log(previous[0]) + share * (math.log(x) - math.log(previous[0])))
        previous = (x, ratio)
    return None
