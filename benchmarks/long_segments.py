"""`python -m benchmarks segments`: semi-Markov chains on a GPU, one program a sequence next to several.

A gradient step of given potentials. First every row's log Z and gradients against float64 without kernels, then medians
by the host's clock, with the device waited for, also of the captured graph, and the peak of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import rankfold
from benchmarks.long_chains import DEVICE, timed
from benchmarks.steps.timed import Timed, segment_step, write
from benchmarks.two_ways import SHARED
from rankfold.errors import UnsupportedError
from rankfold.kernels import segment_scan
from rankfold.numerics.capture import capture_graph
from rankfold.planning.measure import held_bytes, peak_mib
from rankfold.recursions.segments import passes, sweep

# States, rank (None: dense; below 0: without the diagonal), durations, frames, frames of the check.
Row = tuple[int, int | None, int, int, int]
ROWS: list[Row] = [
    (64, None, 19, 200, 200),
    (128, 128, 19, 200, 200),
    (1024, 16, 19, 200, 200),
    (1024, -16, 19, 200, 200),
    (8192, 64, 19, 200, 200),
    (5, None, 60, 1000, 200),
    (24, None, 1000, 10_000, 300),
]
LIMIT = 1e-4  # of a gradient's norm; log Z has a hundredth of it


def main(given: Sequence[str]) -> int:
    """Print the checks and the table; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks segments", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each time (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows of the way in use, for `structures`")
    args = parser.parse_args(given)
    if not torch.cuda.is_available():
        raise UnsupportedError("these kernels are for GPUs, and there is no CUDA device here.")
    print("states / rank, durations, frames: errors; one program a sequence | several, ms (captured), MiB")
    rows, right = [], True
    for row in ROWS:
        found = record(row, args.repeats)
        print(in_words(found), flush=True)
        right &= found["passed"]
        if row[1] is None:
            way = "" if segment_scan.shared(row[2], row[0]) else "usual_"
            rows.append(timed_row(row, found[f"{way}captured_ms"] or found[f"{way}ms"]))
    if args.json is not None:
        write(args.json, "python -m benchmarks segments", rows)
    return 0 if right else 1


def record(row: Row, repeats: int) -> dict[str, Any]:
    """Errors of several programs a sequence, against float64 and at the timed size against one; times both ways."""
    states, _, durations, frames, _ = row
    value, *grads = errors(*row)
    p = potentials(*row[:4])
    both = []
    for prepared in (True, False):
        with SHARED.taken(prepared):
            both.append(step(p))
    apart = [float((x - y).norm() / y.norm()) for x, y in zip(*both, strict=True)]
    passed = max(value, apart[0]) <= LIMIT / 100 and max(*grads, *apart[1:]) <= LIMIT
    found: dict[str, Any] = {
        "way": SHARED.name,
        "row": name(row),
        "size": f"1 x {frames:,}",
        "precision": "float32",
        "window": states * durations,
        "passed": passed,
        "error": value,
        "gradient_errors": grads,
        "apart": apart,
    }
    del both
    for prefix, prepared in (("", True), ("usual_", False)):
        with SHARED.taken(prepared):
            ms, captured, peak = measured(p, repeats)
        found |= {f"{prefix}ms": ms, f"{prefix}captured_ms": captured, f"{prefix}mib": peak}
    return found


def name(row: Row) -> str:
    """The sizes in words."""
    states, rank, durations, _, _ = row
    kind = "hsmm" if rank is None else "lhsmm"
    more = "" if rank is None else f", rank {abs(rank)}{'' if rank > 0 else ', no state after itself'}"
    return f"{kind}, {states:,} states{more}, durations to {durations:,}"


def in_words(found: dict[str, Any]) -> str:
    """A record in a line."""
    times = []
    for way in ("usual_", ""):
        captured = found[f"{way}captured_ms"]
        graph = "-" if captured is None else f"{captured:.2f}"
        times.append(f"{found[f'{way}ms']:.2f} ({graph}), {found[f'{way}mib']:.0f}")
    off = f"log Z {found['error']:.1e}, gradients {max(found['gradient_errors']):.1e}"
    off += f", ways apart {max(found['apart']):.1e}; "
    return f"{found['row']}, {found['size']}: {off}{' | '.join(times) if found['passed'] else 'FAILED'}"


def timed_row(row: Row, ms: float) -> Timed:
    """The row of `structures`."""
    states, _, durations, frames, _ = row
    return Timed("Segments", name(row), f"1 x {frames:,}", "float32", ms, *segment_step(1, frames, states, durations))


def potentials(
    states: int, rank: int | None, durations: int, frames: int, dtype: torch.dtype = torch.float32
) -> rankfold.SegmentPotentials:
    """The same random numbers in every dtype."""
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float32).to(DEVICE, dtype)

    op: rankfold.Operator
    if rank is None:
        op = rankfold.Dense(draw(states, states).softmax(1))
    else:
        op = rankfold.LowRank(draw(states, abs(rank)).softmax(1), draw(states, abs(rank)).softmax(0))
        op = rankfold.WithoutDiagonal(op) if rank < 0 else op
    return rankfold.SegmentPotentials(draw(states), op, draw(states, durations), draw(1, frames, states))


def step(p: rankfold.SegmentPotentials) -> list[Tensor]:
    """log Z and all its gradients; of leaves of this call, as a captured graph needs."""
    given = p.log_initial, p.log_duration, p.log_obs, *p.transition.factors()
    leaves = [x.detach().requires_grad_() for x in given]
    moved = p._replace(
        log_initial=leaves[0],
        log_duration=leaves[1],
        log_obs=leaves[2],
        transition=p.transition.with_factors(*leaves[3:]),
    )
    log_z = rankfold.log_z(moved)
    return [log_z.detach(), *torch.autograd.grad(log_z.sum(), leaves)]


def errors(states: int, rank: int | None, durations: int, _: int, frames: int) -> list[float]:
    """Relative errors, of norms, of several programs a sequence."""
    with SHARED.taken(True):
        found = step(potentials(states, rank, durations, frames))
    with (
        mock.patch.object(sweep, "triton_serves", return_value=False),
        mock.patch.object(passes, "triton_serves", return_value=False),
    ):
        exact = step(potentials(states, rank, durations, frames, torch.float64))
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)]


def measured(p: rankfold.SegmentPotentials, repeats: int) -> tuple[float, float | None, float | None]:
    """Milliseconds, of the captured graph, and the peak of memory above what was there, in MiB."""
    run = partial(step, p)
    run()
    peak = peak_mib(run, DEVICE, held_bytes(DEVICE))
    eager = timed(run, repeats)
    if DEVICE.type == "cpu" or p.log_obs.shape[1] > 1000:  # a graph of so many calls takes long to capture
        return eager, None, peak
    return eager, timed(capture_graph(run)[0].replay, repeats), peak
