"""`python -m benchmarks questions`: what each question costs next to the sums it needs, of chains, segments and trees.

    python -m benchmarks questions [--quick] [--docs docs]

Ours alone, on a CPU, one thread. The forward sum is log Z; both sums are log Z and its gradient in all log-weights.
A question of paths needs the forward sum with maxima, or messages of one direction; posteriors need both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import rankfold
from benchmarks.results import marks
from rankfold.cli.bench import cpu_name
from rankfold.cli.output import say, three_digits
from rankfold.decoding import online
from rankfold.errors import DataError
from rankfold.planning.measure import Turn, host_time, in_turns

CPU, SEED, K, NUM_SAMPLES = torch.device("cpu"), 0, 5, 1
HEAD = ("structure", "question", "ms", "sums it needs", "ms", "question / sums")
FORWARD, BOTH = "forward", "both"
# What each question needs; of k best paths as many as k forward sums.
NEEDS = {
    "viterbi": FORWARD,
    "filter": FORWARD,
    "posterior": BOTH,
    "expected_counts": BOTH,
    "segment_table": BOTH,
    "sample": BOTH,
    f"k_best, k = {K}": FORWARD,
}


class Row(NamedTuple):
    """Milliseconds, the shortest of several calls."""

    structure: str
    question: str
    ms: float
    needs: str
    sum_ms: float


def main(given: Sequence[str]) -> int:
    """Print the table, and write it between the marks of the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks questions", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, two repeats; writes nothing unless --docs")
    parser.add_argument("--docs", type=Path, help="folder of benchmarks.md (default: docs)")
    arguments = parser.parse_args(given)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [row for case in cases(quick=arguments.quick).items() for row in measured(*case, quick=arguments.quick)]
    finally:
        torch.set_num_threads(before)
    body = report(rows)
    print(body)
    docs = arguments.docs or (None if arguments.quick else Path("docs"))
    if docs is not None and not marks.replace(docs, ["benchmarks.md"], "questions", lambda _: body):
        raise DataError(f"{docs / 'benchmarks.md'}: has no part between <!-- questions --> and its end.")
    return 0


def cases(*, quick: bool) -> dict[str, Any]:
    """Random potentials of every structure, float64."""
    draw = _Draw(torch.Generator().manual_seed(SEED))
    long, frames, words = (200, 60, 6) if quick else (1_000, 200, 12)
    return {
        f"chain, 8 states, 1 x {long:,}": draw.chain(1, long, 8),
        f"chain, 16 states, 50 x {long // 20:,}": draw.chain(50, long // 20, 16),
        f"segments, 12 states, durations to 60, 1 x {frames:,}": draw.segments(1, frames, 12, min(60, frames)),
        f"trees, 8 / 16 symbols, 4 x {words}": draw.trees(4, words, 8, 16),
    }


def measured(structure: str, p: Any, *, quick: bool) -> Iterator[Row]:
    """All questions about one structure, in turns with its sums."""
    say(structure)
    asked = {**sums(p), **questions(p)}
    taken = in_turns({name: Turn(_timer(call), 2 if quick else 3, warm=1) for name, call in asked.items()})
    for name in asked:
        if name in NEEDS:
            needs, times = NEEDS[name], K if name.startswith("k_best") else 1
            said = f"{times} x {needs}" if times > 1 else needs
            yield Row(structure, name, taken[name].low, said, times * taken[needs].low)


def _timer(call: Callable[[], object]) -> Callable[[], float]:
    return lambda: host_time(call, CPU)


def sums(p: Any) -> dict[str, Callable[[], object]]:
    """The two sums."""
    logs = [x for x in p if isinstance(x, Tensor) and x.is_floating_point()]

    def both() -> None:
        for x in logs:
            x.requires_grad_()
        found = torch.autograd.grad(rankfold.log_z(p).sum(), logs, allow_unused=True)
        assert found
        for x in logs:
            x.requires_grad_(False)

    return {FORWARD: lambda: rankfold.log_z(p), BOTH: both}


def questions(p: Any) -> dict[str, Callable[[], object]]:
    """Those that are defined for a structure."""
    found: dict[str, Callable[[], object]] = {
        "viterbi": lambda: rankfold.viterbi(p),
        "posterior": lambda: rankfold.posterior(p),
        "expected_counts": lambda: rankfold.expected_counts(p),
        "sample": lambda: rankfold.sample(p, num_samples=NUM_SAMPLES, generator=torch.Generator().manual_seed(SEED)),
        f"k_best, k = {K}": lambda: rankfold.k_best(p, K),
    }
    if not isinstance(p, rankfold.TreePotentials):
        found["filter"] = lambda: online.filter(p)
        found["segment_table"] = lambda: rankfold.segment_table(p)
    return found


class _Draw:
    """Random weights, in float64."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def logs(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).log_softmax(-1)

    def moves(self, num: int) -> rankfold.Dense:
        """Transitions that stay more often than not: paths of some stretches."""
        return rankfold.Dense.from_log((self.logs(num, num) + 3.0 * torch.eye(num)).log_softmax(-1))

    def chain(self, batch: int, length: int, num: int) -> rankfold.ChainPotentials:
        return rankfold.ChainPotentials(self.logs(num), self.moves(num), self.logs(batch, length, num))

    def segments(self, batch: int, length: int, num: int, longest: int) -> rankfold.SegmentPotentials:
        return rankfold.SegmentPotentials(
            self.logs(num), rankfold.Dense.from_log(self.logs(num, num)), self.logs(num, longest),
            self.logs(batch, length, num),
        )  # fmt: skip

    def trees(self, batch: int, length: int, spans: int, words: int) -> rankfold.TreePotentials:
        sizes = [(left, right) for left in (spans, words) for right in (spans, words)]
        rules = [
            rankfold.BinaryDense.from_log(self.logs(spans, left * right).reshape(spans, left, right) - 1.4)
            for left, right in sizes
        ]
        return rankfold.TreePotentials(self.logs(batch, length, words), rankfold.Branch(*rules), self.logs(spans))


def report(rows: Sequence[Row]) -> str:
    """The table, the machine above it; questions of more than twice their sums in bold."""
    lines = []
    for row in rows:
        ratio = f"{row.ms / row.sum_ms:.2f}"
        lines.append(
            [
                row.structure,
                f"`{row.question}`",
                three_digits(row.ms),
                row.needs,
                three_digits(row.sum_ms),
                f"**{ratio}**" if row.ms > 2 * row.sum_ms else ratio,
            ]
        )
    return f"{cpu_name()}, torch {torch.__version__}, one thread.\n\n{marks.table(HEAD, lines, left=(0, 1, 3))}"
