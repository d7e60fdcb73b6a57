"""`python -m benchmarks segments`: semi-Markov chains on a GPU, one program a sequence next to several.

A gradient step of given potentials. First every row's log Z and gradients against float64 without kernels, then medians
by the host's clock, with the device waited for, also of the captured graph, and the peak of memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import rankfold
from benchmarks.long_chains import timed
from benchmarks.steps.timed import Timed, segment_step, write
from rankfold.errors import UnsupportedError
from rankfold.kernels import segment_scan
from rankfold.numerics.capture import capture_graph
from rankfold.recursions.segments import passes, sweep

# States, rank (None: dense; below 0: without the diagonal), durations, frames, frames of the check.
ROWS = [
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
    right = True
    for row in ROWS:
        value, *grads = errors(*row)
        right &= value <= LIMIT / 100 and max(grads) <= LIMIT
        print(name(*row), f"log Z {value:.1e}, gradients", " ".join(f"{x:.1e}" for x in grads), flush=True)
    print("states / rank, durations, frames: one program a sequence | several, ms (captured), MiB")
    rows = []
    for row in ROWS:
        found = []
        for shared in (False, True):
            with mock.patch.object(segment_scan, "SHARED", shared):
                found.append(measured(potentials(*row[:4]), args.repeats))
        print(name(*row), " | ".join(found), flush=True)
        if row[1] is None:
            states, _, durations, frames, _ = row
            what, work = (
                f"hsmm, {states} states, durations to {durations:,}",
                segment_step(1, frames, states, durations),
            )
            taken = float(found[segment_scan.SHARED].partition(" ")[0])
            rows.append(Timed("Segments", what, f"1 x {frames:,}", "float32", taken, *work))
    if args.json is not None:
        write(args.json, "python -m benchmarks segments", rows)
    return 0 if right else 1


def name(states: int, rank: int | None, durations: int, frames: int, _: int) -> str:
    return f"{states} / {rank or '-'}, {durations}, {frames}:"


def potentials(
    states: int, rank: int | None, durations: int, frames: int, dtype: torch.dtype = torch.float32
) -> rankfold.SegmentPotentials:
    """The same random numbers in every dtype."""
    g = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float32).to("cuda", dtype)

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
    with mock.patch.object(segment_scan, "SHARED", True):
        found = step(potentials(states, rank, durations, frames))
    with (
        mock.patch.object(sweep, "triton_serves", return_value=False),
        mock.patch.object(passes, "triton_serves", return_value=False),
    ):
        exact = step(potentials(states, rank, durations, frames, torch.float64))
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, exact, strict=True)]


def measured(p: rankfold.SegmentPotentials, repeats: int) -> str:
    """Milliseconds, of the captured graph in brackets, and the peak of memory above what was there."""
    run = partial(step, p)
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    eager = timed(run, repeats)
    if p.log_obs.shape[1] > 1000:  # a graph of so many calls takes long to capture
        return f"{eager:.2f} (-), {peak:.0f}"
    return f"{eager:.2f} ({timed(capture_graph(run)[0].replay, repeats):.2f}), {peak:.0f}"
