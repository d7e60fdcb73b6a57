"""A prepared way next to the usual one: a constant of the library, set for the comparison; checks before times.

At the size that is timed: log Z against float64, every gradient against that of the usual way in float32, and times of
a captured step both ways, in turns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch

from benchmarks.steps.cases import Case
from benchmarks.steps.checks import LEAST, PARAMETER, parameter_distance
from benchmarks.steps.step import Recursion, log_z
from rankfold.cli.bench import LOG_Z, WIDE_GRADIENT, Check, Gradients, gradient_distance, gradients, relative_error
from rankfold.kernels import segment_scan
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision
from rankfold.planning.measure import Turn, in_turns, release, replay_time
from rankfold.recursions.tree import packed, pairs


class Way(NamedTuple):
    """A constant of a module: its value that takes the prepared way everywhere, and that which never does."""

    name: str
    module: Any
    constant: str
    everywhere: Any
    never: Any

    def taken(self, prepared: bool) -> AbstractContextManager[Any]:
        """This way, or the usual one, inside the block."""
        return mock.patch.object(self.module, self.constant, self.everywhere if prepared else self.never)


PACKED = Way("packed charts", packed, "CHOSEN", packed.EVERY, frozenset())
PAIRS = Way("charts over pairs", pairs, "CHOSEN", pairs.EVERY, frozenset())
SHARED = Way("shared segments", segment_scan, "SHARED_FROM", 0, None)


def compare(
    case: Case, way: Way, precisions: Sequence[Precision], device: torch.device, repeats: int
) -> Iterator[dict[str, Any]]:
    """A record of each precision, as plain data; on a GPU with times, which are nothing unless it `passed`."""
    model, batch = case.build(device), case.draw(device)
    with way.taken(False):
        with torch.no_grad():
            truth = log_z(copy.deepcopy(model).double(), batch, "float32")
            errors = {x: relative_error(log_z(model, batch, x), truth) for x in precisions}
        usual = gradients(model, batch)
    release(device)
    for precision in precisions:
        found = checks(way, model, batch, precision, truth, usual)
        passed = all(check.passed for check in found)
        record = {
            "way": way.name,
            "row": case.name,
            "size": f"{case.batch} x {case.length}",
            "precision": precision,
            "passed": passed,
            "checks": [check.text() for check in found],
            "error": found[0].error,
            "usual_error": errors[precision],
        }
        if device.type == "cuda":
            record |= times(steps(way, case, model, batch, precision), repeats)
        yield record
        release(device)


def checks(
    way: Way, model: Any, batch: Any, precision: Precision, truth: torch.Tensor, usual: Gradients
) -> list[Check]:
    """The prepared way against float64, and against the gradients of the usual one."""
    with way.taken(True):
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


def steps(
    way: Way, case: Case, model: Any, batch: Any, precision: Precision
) -> dict[str, tuple[AbstractContextManager[Any], Callable[[], Any]]]:
    """A step both ways; of a grammar the recursion alone, too."""
    work: dict[str, Callable[[], Gradients]] = {"ms": partial(gradients, model, batch, precision)}
    if case.trees:
        work["recursion_ms"] = Recursion.of(model, batch, precision).run
    return {
        f"{'' if prepared else 'usual_'}{name}": (way.taken(prepared), run)
        for name, run in work.items()
        for prepared in (False, True)
    }


def times(work: dict[str, tuple[AbstractContextManager[Any], Callable[[], Any]]], repeats: int) -> dict[str, float]:
    """Medians in ms of captured work, which take turns."""
    graphs = {}
    for name, (way, step) in work.items():
        with way:
            graphs[name] = capture_graph(step)[0]
    turns = {name: Turn(partial(replay_time, graph), repeats) for name, graph in graphs.items()}
    return {name: spread.median for name, spread in in_turns(turns).items()}


def in_words(record: dict[str, Any]) -> str:
    """A record in some lines."""
    lines = [f"{record['row']}, {record['size']}, {record['precision']}, {record['way']}"]
    lines += [f"  {line}" for line in record["checks"]]
    lines += [] if record["passed"] else ["  FAILED: no times"]
    for name in ("ms", "recursion_ms"):
        if record["passed"] and name in record:
            what = "step" if name == "ms" else "recursion"
            lines.append(f"  {what} {record[name]:.2f} ms, the usual way {record[f'usual_{name}']:.2f} ms")
    return "\n".join(lines)
