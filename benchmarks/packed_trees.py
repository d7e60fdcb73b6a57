"""`python -m benchmarks packed_trees`: charts over ranks as they are, and packed with one launch for a width, on a GPU.

Of each published size whose rules share their factors: log Z against float64 and every gradient against that of the
usual way in float32, in each precision; then times of a step both ways and of the recursion alone, captured, in turns.
The packed way is off until it has been measured to be faster (`recursions/tree/packed.py`).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from benchmarks.steps.cases import Case
from benchmarks.steps.checks import LEAST, PARAMETER, parameter_distance
from benchmarks.steps.step import Recursion, log_z
from benchmarks.steps.tables import grammar_cases
from rankfold.cli.bench import LOG_Z, WIDE_GRADIENT, Check, Gradients, gradient_distance, gradients, relative_error
from rankfold.errors import UnsupportedError
from rankfold.models.config import FACTORED
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision
from rankfold.planning.measure import Turn, in_turns, release, replay_time
from rankfold.recursions.tree import packed

PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")
LAUNCHES = ((8, 256, 4), (4, 256, 4), (4, 512, 4), (8, 128, 4), (8, 512, 8), (16, 128, 4), (8, 128, 2), (4, 128, 2))


@contextmanager
def packing(chosen: bool) -> Iterator[None]:
    """Charts packed inside the block, or not."""
    before = packed.CHOSEN
    packed.CHOSEN = chosen
    try:
        yield
    finally:
        packed.CHOSEN = before


def cases(*, small: bool) -> list[Case]:
    """The published sizes; `small`: a hundredth of the symbols, to try the command."""
    found = [case for case in grammar_cases() if case.config.family in ("spcfg", *FACTORED)]
    if not small:
        return found
    sizes: Any = {"num_nonterminals": 24, "num_preterminals": 40, "rank": 20, "dim": 16}
    return [
        case._replace(config=dataclasses.replace(case.config, **sizes), batch=2, length=6, num_words=50)
        for case in found[:2]
    ]


def checks(model: Any, batch: Any, precision: Precision, truth: torch.Tensor, usual: Gradients) -> list[Check]:
    """The packed way against float64, and against the gradients of the usual one."""
    with packing(True):
        found = gradients(model, batch, precision)
    return [
        Check(f"log Z in {precision}, against float64", relative_error(found.log_z, truth), LOG_Z[precision]),
        Check(f"gradients in {precision}", gradient_distance(found, usual), WIDE_GRADIENT[precision]),
        Check(
            f"the worst parameter's gradient in {precision}",
            parameter_distance(found, usual, LEAST[precision]),
            PARAMETER[precision],
        ),
    ]


def times(work: dict[str, tuple[bool, Callable[[], Gradients]]], repeats: int) -> dict[str, float]:
    """Medians in ms of captured work, which take turns."""
    graphs = {}
    for name, (chosen, step) in work.items():
        with packing(chosen):
            graphs[name] = capture_graph(step)[0]
    turns = {name: Turn(partial(replay_time, graph), repeats) for name, graph in graphs.items()}
    return {name: spread.median for name, spread in in_turns(turns).items()}


def measure(case: Case, device: torch.device, repeats: int, *, sizes: bool = False) -> bool:
    """Print the checks of a case and then its times; whether all checks passed."""
    print(f"\n{case.name}, {case.batch} x {case.length}")
    passed = True
    model, batch = case.build(device), case.draw(device)
    with torch.no_grad():
        truth = log_z(copy.deepcopy(model).double(), batch, "float32")
    usual = gradients(model, batch)
    for precision in PRECISIONS:
        for check in checks(model, batch, precision, truth, usual):
            print(f"  {'ok' if check.passed else 'FAILED':6} {check.text()}")
            passed &= check.passed
    del usual
    release(device)
    if device.type != "cuda" or not passed:
        return passed
    for precision in PRECISIONS:
        recursion = Recursion.of(model, batch, precision)
        found = times(
            {
                "usual": (False, partial(gradients, model, batch, precision)),
                "packed": (True, partial(gradients, model, batch, precision)),
                "usual recursion": (False, recursion.run),
                "packed recursion": (True, recursion.run),
            },
            repeats,
        )
        print(f"  {precision:8}" + "; ".join(f"{name} {ms:.2f} ms" for name, ms in found.items()))
        if sizes:
            print("           packed recursion by launch: " + "; ".join(by_launch(recursion.run, repeats)))
        release(device)
    return passed


def by_launch(work: Callable[[], Gradients], repeats: int) -> Iterator[str]:
    """Times by what a program holds: splits, ranks, and warps."""
    from rankfold.kernels import rank_chart  # Triton may not be there

    usual = rank_chart.SIZES
    try:
        for splits, ranks, warps in LAUNCHES:
            rank_chart.SIZES = {"SOME": splits, "BLOCK": ranks, "num_warps": warps}
            (ms,) = times({"": (True, work)}, repeats).values()
            yield f"{splits} x {ranks}, {warps} warps {ms:.2f} ms"
    finally:
        rank_chart.SIZES = usual


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks packed_trees", description=__doc__)
    parser.add_argument("--small", action="store_true", help="two tiny sizes, to try the command")
    parser.add_argument("--repeats", type=int, default=15, help="times of each step (default: 15)")
    parser.add_argument("--launches", action="store_true", help="also the recursion with other sizes of programs")
    chosen = parser.parse_args(given)
    if not torch.cuda.is_available():
        raise UnsupportedError("packed charts are for a GPU, and there is none here.")
    device = torch.device("cuda")
    passed = [measure(case, device, chosen.repeats, sizes=chosen.launches) for case in cases(small=chosen.small)]
    return 0 if all(passed) else 1
