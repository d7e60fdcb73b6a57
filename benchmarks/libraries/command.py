"""`python -m benchmarks libraries`: rankfold next to other libraries and to itself; checked, measured, reported.

No speed is reported unless every library computes the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import NUM_THREADS
from benchmarks.libraries.cases import DENSE, GradientStep, Size, measure_em, measure_own
from benchmarks.libraries.few_states import measure_few, record
from benchmarks.libraries.peers import (
    DYNAMAX,
    HMMLEARN,
    HMMLEARN_SCALING,
    POMEGRANATE,
    RANKFOLD_32,
    RANKFOLD_64,
    RANKFOLD_LOW_RANK,
    Hmm,
    Stepper,
    make,
    random_hmm,
)
from benchmarks.libraries.report import Results, machine, text, update_readme
from rankfold.cli.bench import Check
from rankfold.cli.output import say

BY_HAND = "## Gradient steps\n"  # from here on the page is not ours
EXACT = 1e-8  # float64
ROUGH = 1e-5  # float32


def main(given: Sequence[str]) -> int:
    """0 when everything was measured, 1 when a library computes something else."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks libraries", description="Measure rankfold against other libraries."
    )
    parser.add_argument("--quick", action="store_true", help="64 and 256 states, few repeats, no files unless --out")
    parser.add_argument("--out", type=Path, help="folder of benchmarks.md and images/ (default: docs)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number, too")
    arguments = parser.parse_args(given)
    torch.set_num_threads(NUM_THREADS)
    start = time.perf_counter()
    if os.getloadavg()[0] > 0.5:
        say(f"this machine is busy (load {os.getloadavg()[0]:.1f}): expect wrong times, and a long wait")
    say("checking that all libraries compute the same")
    checks = verify()
    failed = [check for check in checks if not check.passed]
    for check in failed:
        say(f"FAILED {check.text()}")
    if failed:
        say("No speed is reported for results that differ.")
        return 1
    own = measure_own(quick=arguments.quick)
    em = measure_em(quick=arguments.quick)
    few = measure_few(quick=arguments.quick)
    results = Results(machine(), checks, em, own, few, (time.perf_counter() - start) / 60)
    report = text(results)
    print(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_plain(results), indent=1) + "\n")
    folder = arguments.out or (None if arguments.quick else Path("docs"))
    if folder is not None:
        _write(folder, report, results)
    return 0


def _plain(value: Any) -> Any:
    """Records as dictionaries, for JSON."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _write(folder: Path, report: str, results: Results) -> None:
    from benchmarks.libraries.plot import draw

    draw(results.em, results.own, folder / "images" / "benchmarks.png")
    page = folder / "benchmarks.md"
    before = page.read_text() if page.exists() else ""
    by_hand = before[before.index(BY_HAND) :] if BY_HAND in before else ""
    page.write_text(f"{report.rstrip()}\n\n{by_hand}" if by_hand else report)
    say(f"wrote {folder / 'benchmarks.md'}")
    if folder == Path("docs"):
        record(results.few, folder / "results" / "timed-few.json")
        update_readme(Path("README.md"), results)
        say("wrote the table of README.md")


def verify() -> list[Check]:
    """All checks, on a model of 16 states."""
    return [*_libraries(random_hmm(16, num_tokens=20, num_symbols=30)), *_gradients()]


def _libraries(hmm: Hmm) -> Iterator[Check]:
    ours = _stepped(RANKFOLD_64, hmm)
    for name in (HMMLEARN, HMMLEARN_SCALING):
        theirs = _stepped(name, hmm)
        yield Check(f"log-likelihood: rankfold and {name}, float64", _apart(ours.log_z(), theirs.log_z()), EXACT)
        for part, a, b in zip(("initial", "transition", "emission"), _params(ours), _params(theirs), strict=True):
            yield Check(f"{part} after one EM step: rankfold and {name}, float64", _apart(a, b), EXACT)
    for name in (POMEGRANATE, DYNAMAX, RANKFOLD_32, RANKFOLD_LOW_RANK):
        text = f"log-likelihood: rankfold dense float64 and {name}"
        yield Check(text, _apart(ours.log_z(), _stepped(name, hmm).log_z()), ROUGH)


def _stepped(name: str, hmm: Hmm) -> Stepper:
    stepper = make(name, hmm)
    stepper.prepare()
    stepper.step()
    return stepper


def _params(stepper: Stepper) -> tuple[Any, Any, Any]:
    assert stepper.params is not None
    return stepper.params()


def _gradients() -> Iterator[Check]:
    size = Size(40, 5, num_sequences=3, num_tokens=12)
    for kind in (DENSE, "low rank", "banded", "sum"):
        pair = [GradientStep(kind, size, torch.float64, plain=plain) for plain in (False, True)]
        values = [step.run() for step in pair]
        errors = [_apart(*values)]
        errors += [_apart(a.grad, b.grad) for a, b in zip(pair[0].leaves(), pair[1].leaves(), strict=True)]
        yield Check(f"log Z and gradients, {kind}: rankfold and plain autograd, float64", float(np.max(errors)), EXACT)


def _apart(a: Any, b: Any) -> float:
    """The largest relative difference of two arrays, entry by entry."""
    x, y = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (a, b))
    return float(((x - y).abs() / torch.maximum(x.abs(), y.abs()).clamp(min=1e-300)).max())
