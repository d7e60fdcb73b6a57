"""The README's table of ratios, written from the same numbers as `docs/benchmarks.md`.

Read next: `report.py`.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.libraries.em import LARGE_STATES
from benchmarks.libraries.measure import NUM_THREADS
from benchmarks.libraries.own import DENSE
from benchmarks.libraries.peers import HMMLEARN, PEERS, RANKFOLD_32, RANKFOLD_64
from benchmarks.libraries.report import Results, table, times

BEGIN, END = "<!-- ratios: written by make bench -->", "<!-- end of ratios -->"


def ratios(results: Results) -> str:
    """The table and the line above it."""
    em, own = results.em, results.own
    rows = []
    for num_states in sorted(em.timings, reverse=True):
        timing = em.timings[num_states]
        fastest = min(PEERS, key=lambda peer: timing[peer].median)
        same = timing[HMMLEARN].median / timing[RANKFOLD_64].median
        rows.append((f"EM step, {num_states:,} states", f"{HMMLEARN}, both float64", f"{times(same)} as fast", "-"))
        best = timing[fastest].median / timing[RANKFOLD_32].median
        rows.append((f"EM step, {num_states:,} states", f"{fastest}, the fastest other", f"{times(best)} as fast", "-"))
    tried = {name: em.large[name].failure for name in PEERS if name in em.large}
    failed = [name for name, failure in tried.items() if failure is not None and not failure.startswith("not run")]
    if failed:
        rows.insert(0, (f"EM step, {LARGE_STATES:,} states", ", ".join(failed), "they fail, rankfold runs", "-"))
    for size, outcomes, timings in (
        (own.long_size, own.long, {name: outcome.timing for name, outcome in own.long.items()}),
        (own.sweep_size, own.memory, {"low rank": own.by_rank.get(own.sweep_size.rank), DENSE: own.structured[DENSE]}),
    ):
        if size is None:
            continue
        ours, other = outcomes
        a, b = timings[ours], timings[other]
        if a is None or b is None:
            continue
        peaks = outcomes[ours].peak_gib, outcomes[other].peak_gib
        memory = f"{peaks[0] / peaks[1]:.2f} of it" if peaks[0] and peaks[1] else "-"
        what = f"gradient step, {size.words()}, rank {size.rank:,}"
        rows.append((what, f"our own {other}", f"{times(b.median / a.median)} as fast", memory))
    return (
        f"Measured by `make bench` on {NUM_THREADS} CPU cores ({results.machine['date']},"
        " [all numbers](docs/benchmarks.md)):\n\n" + table(("one step", "against", "speed", "memory"), rows)
    )


def update(readme: Path, results: Results) -> None:
    """Replace what stands between the two marks."""
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{ratios(results)}\n{END}{after}")
