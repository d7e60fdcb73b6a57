"""`python -m benchmarks long`: chains of few states on a GPU, long sequences in chunks next to the loop over positions.

Times are medians by the host's clock, with the device waited for, also of the captured graph; the loop runs once.
Every row is checked against the same question in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import rankfold
from benchmarks.steps.timed import Timed, chain_step, write
from rankfold.errors import UnsupportedError
from rankfold.numerics.capture import capture_graph
from rankfold.planning.measure import host_times, peak_mib
from rankfold.recursions.chain import in_chunks, scaled

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOOPED = 20_000  # positions of which the loop is timed, too
DIAGONALS, RANK = 5, 4
ROWS = [  # question, sequences, positions, states, transition, whether the loop is timed
    ("gradient", 64, 500, 15, "dense", True),
    ("gradient", 1, LOOPED, 15, "dense", True),
    ("gradient", 1, 100_000, 15, "dense", False),
    ("gradient", 1, 500_000, 15, "dense", False),
    ("gradient", 1, 2_000_000, 15, "dense", False),
    ("gradient", 1, 100_000, 64, "dense", False),
    ("gradient", 64, 500, 100, "dense", True),
    ("best path", 1, LOOPED, 15, "dense", True),
    ("best path", 1, LOOPED, 15, "banded", True),
    ("best path", 1, 100_000, 15, "dense", False),
    ("sample", 1, LOOPED, 15, "dense", True),
    ("sample", 1, 100_000, 15, "dense", False),
    ("filter", 1, LOOPED, 15, "dense", True),
    ("filter", 1, 100_000, 15, "dense", False),
    ("gradient", 1, LOOPED, 15, "banded", True),
    ("gradient", 1, LOOPED, 15, "low rank", True),
]


def main(given: Sequence[str]) -> int:
    """Print the table; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks long", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each time (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows, for `structures`")
    args = parser.parse_args(given)
    if not torch.cuda.is_available():
        raise UnsupportedError("chains are cut into chunks on a GPU alone, and there is none here.")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, rankfold {rankfold.__version__}")
    print(
        "| question | sequences x positions | states | transition | ms | captured ms | MiB | loop ms | ratio | off by |"
    )
    print("|---|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    failed, rows = False, []
    for row in ROWS:
        found = record(*row, args.repeats)
        failed |= not found["passed"]
        loop = ("-", "-") if found["loop_ms"] is None else (f"{found['loop_ms']:,.1f}", f"{found['ratio']:,.1f}x")
        captured = "-" if found["captured_ms"] is None else f"{found['captured_ms']:,.1f}"
        cells = (*row[:1], found["size"], row[3], row[4], f"{found['eager_ms']:,.1f}", captured, f"{found['mib']:,.0f}")
        print("| " + " | ".join(str(x) for x in (*cells, *loop, f"{found['error']:.0e}")) + " |", flush=True)
        rows.append(timed_row(row, found))
    if args.json is not None:
        write(args.json, "python -m benchmarks long", rows)
    return int(failed)


def record(
    question: str, num: int, length: int, states: int, kind: str, is_looped: bool, repeats: int
) -> dict[str, Any]:
    """Times and memory of a row, and its relative difference from float64; of the loop where it is asked for."""
    p = chain(num, length, states, kind, torch.float32)
    ms = timed(partial(ask, question, p), repeats)
    memory = peak_mib(partial(ask, question, p), DEVICE)
    captured = loop = None
    if question == "gradient" and DEVICE.type == "cuda":
        captured = timed(capture_graph(partial(ask, question, p))[0].replay, repeats)
    if is_looped:
        with position_by_position():
            loop = timed(partial(ask, question, p), 1)
    value, expected = ask(question, p), ask(question, chain(num, length, states, kind, torch.float64))
    off = float(((value - expected) / expected).abs().max()) if question != "sample" else 0.0
    return {
        "row": f"{'' if question == 'gradient' else f'{question} of a '}{kind} chain, {states} states",
        "size": f"{num} x {length:,}",
        "precision": "float32",
        "passed": off < 1e-6,
        "error": off,
        "ms": ms if captured is None else captured,
        "eager_ms": ms,
        "captured_ms": captured,
        "mib": memory,
        "loop_ms": loop,
        "ratio": None if loop is None else loop / ms,
    }


def timed_row(row: tuple[str, int, int, int, str, bool], found: dict[str, Any]) -> Timed:
    """The row of `structures`, next to the loop over positions where that was timed."""
    question, num, length, states, kind, _ = row
    adds, numbers = chain_step(num, length, states)
    adds *= 1.0 if question == "gradient" else 1 / 3  # one pass of three
    adds *= {"dense": 1.0, "banded": DIAGONALS / states, "low rank": 2 * RANK / states}[kind]
    peer = "-" if found["loop_ms"] is None else "position by position"
    return Timed("Chains", found["row"], found["size"], "float32", found["ms"], adds, numbers, peer, found["loop_ms"])


def chain(num: int, length: int, states: int, kind: str, dtype: torch.dtype) -> rankfold.ChainPotentials:
    """Random potentials that need gradients; the same numbers in every dtype."""
    g = torch.Generator(DEVICE).manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, device=DEVICE).to(dtype)

    log_initial, log_obs = rand(states).log_softmax(-1), 2 * rand(num, length, states)
    make: dict[str, Callable[[], rankfold.Operator]] = {
        "dense": lambda: rankfold.Dense.from_log(rand(states, states).log_softmax(-1).requires_grad_()),
        "banded": lambda: rankfold.Banded(rand(states, DIAGONALS).softmax(-1).requires_grad_(), -2),
        "low rank": lambda: rankfold.LowRank(
            rand(states, RANK).softmax(-1).requires_grad_(), rand(states, RANK).softmax(0).requires_grad_()
        ),
    }
    return rankfold.ChainPotentials(log_initial, make[kind](), log_obs.requires_grad_())


def ask(question: str, p: rankfold.ChainPotentials) -> Tensor:
    """The answer as numbers that can be compared."""
    if question == "best path":
        return rankfold.viterbi(p).log_prob
    if question == "sample":
        return rankfold.sample(p, generator=torch.Generator(DEVICE).manual_seed(1)).path.double()
    if question == "filter":
        return rankfold.online.filter(p).log_z[:, -1]
    # Leaves of this call: a graph that is captured must not meet those of another stream.
    leaves = [x.detach().requires_grad_() for x in (p.log_obs, *p.transition.factors())]
    log_z = rankfold.log_z(p._replace(log_obs=leaves[0], transition=p.transition.with_factors(*leaves[1:])))
    torch.autograd.grad(log_z.sum(), leaves)
    return log_z.detach()


def timed(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds; the median."""
    return host_times(run, DEVICE, repeats=repeats, warm=1).median


@contextmanager
def position_by_position() -> Iterator[None]:
    """Neither kernels for few states nor chunks."""
    with (
        mock.patch.object(scaled, "scans_serve", return_value=False),
        mock.patch.object(in_chunks, "chunks_serve", return_value=False),
    ):
        yield
