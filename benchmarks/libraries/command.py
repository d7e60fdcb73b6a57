"""`python -m benchmarks libraries`: rankfold next to other libraries and to itself; checked, measured, reported."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.libraries.measure import NUM_THREADS, limit_threads, progress

BY_HAND = "## Gradient steps\n"  # from here on the page is not ours


def main(given: Sequence[str]) -> int:
    """0 when everything was measured, 1 when a library computes something else."""
    arguments = _parser().parse_args(given)
    limit_threads()
    # Only now the libraries, which look at the number of CPUs as they are loaded.
    import torch

    from benchmarks.libraries.em import measure_em
    from benchmarks.libraries.own import measure_own
    from benchmarks.libraries.report import Results, machine, text
    from benchmarks.libraries.verify import verify

    torch.set_num_threads(NUM_THREADS)
    start = time.perf_counter()
    if os.getloadavg()[0] > 0.5:
        progress(f"this machine is busy (load {os.getloadavg()[0]:.1f}): expect wrong times, and a long wait")
    progress("checking that all libraries compute the same")
    checks = verify()
    for check in checks:
        if not check.passed:
            progress(f"FAILED {check.what}: difference {check.error:.3g}, allowed {check.allowed:.3g}")
    if not all(check.passed for check in checks):
        progress("No speed is reported for results that differ.")
        return 1
    own = measure_own(quick=arguments.quick)
    em = measure_em(quick=arguments.quick)
    results = Results(machine(), checks, em, own, (time.perf_counter() - start) / 60)
    report = text(results)
    print(report)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(results), indent=1) + "\n")
    folder = arguments.out or (None if arguments.quick else Path("docs"))
    if folder is not None:
        _write(folder, report, results)
    return 0


def _write(folder: Path, report: str, results: object) -> None:
    from benchmarks.libraries.plot import draw
    from benchmarks.libraries.readme import update
    from benchmarks.libraries.report import Results

    assert isinstance(results, Results)
    draw(results.em, results.own, folder / "images" / "benchmarks.png")
    page = folder / "benchmarks.md"
    before = page.read_text() if page.exists() else ""
    by_hand = before[before.index(BY_HAND) :] if BY_HAND in before else ""
    page.write_text(f"{report.rstrip()}\n\n{by_hand}" if by_hand else report)
    progress(f"wrote {folder / 'benchmarks.md'}")
    if folder == Path("docs"):
        update(Path("README.md"), results)
        progress("wrote the table of README.md")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks libraries", description="Measure rankfold against other libraries."
    )
    parser.add_argument("--quick", action="store_true", help="64 and 256 states, few repeats, no files unless --out")
    parser.add_argument("--out", type=Path, help="folder of benchmarks.md and images/ (default: docs)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number, too")
    return parser
