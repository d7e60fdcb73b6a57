"""`python -m benchmarks packed_trees`: charts over ranks as they are, and packed with one launch for a width, on a GPU.

Of each published size whose rules share their factors, in each precision: checks, then times of a step both ways and of
the recursion alone. Which charts are packed by themselves is a table in `recursions/tree/packed.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.steps.cases import Case
from benchmarks.steps.step import Recursion
from benchmarks.steps.tables import grammar_cases
from benchmarks.two_ways import PACKED, compare, in_words, times
from rankfold.errors import UnsupportedError
from rankfold.models.config import FACTORED
from rankfold.numerics.precision import Precision

PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")
LAUNCHES = ((8, 256, 4), (4, 512, 4), (8, 512, 4), (8, 512, 8), (4, 1024, 8), (8, 1024, 8), (16, 256, 4), (8, 128, 2))


def cases(*, small: bool) -> list[Case]:
    """The published sizes; `small`: a hundredth of the symbols, to try the command."""
    found = [case for case in grammar_cases() if case.config.family in ("spcfg", *FACTORED)]
    if not small:
        return found
    sizes: Any = {"num_nonterminals": 24, "num_preterminals": 40, "rank": 20, "dim": 16}
    return [
        case._replace(config=dataclasses.replace(case.config, **sizes), batch=2, length=6, num_words=50)
        for case in found[1:]
    ]


def by_launch(case: Case, precision: Precision, device: torch.device, repeats: int) -> Iterator[str]:
    """Times of the recursion by what a program holds: splits, ranks, and warps."""
    from rankfold.kernels import rank_chart  # Triton may not be there

    work = Recursion.of(case.build(device), case.draw(device), precision).run
    usual = rank_chart.SIZES
    try:
        for splits, ranks, warps in LAUNCHES:
            rank_chart.SIZES = {"SOME": splits, "BLOCK": ranks, "num_warps": warps}
            (ms,) = times({"": (PACKED.taken(True), work)}, repeats).values()
            yield f"{splits} x {ranks}, {warps} warps {ms:.2f} ms"
    finally:
        rank_chart.SIZES = usual


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks packed_trees", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the command")
    parser.add_argument("--repeats", type=int, default=15, help="times of each step (default: 15)")
    parser.add_argument("--launches", action="store_true", help="also the recursion with other sizes of programs")
    chosen = parser.parse_args(given)
    if not torch.cuda.is_available():
        raise UnsupportedError("packed charts are for a GPU, and there is none here.")
    device, passed = torch.device("cuda"), True
    for case in cases(small=chosen.small):
        for record in compare(case, PACKED, PRECISIONS, device, chosen.repeats):
            print(in_words(record), flush=True)
            passed &= record["passed"]
            if chosen.launches and record["passed"]:
                print(
                    "  recursion by launch: " + "; ".join(by_launch(case, record["precision"], device, chosen.repeats))
                )
    return 0 if passed else 1
