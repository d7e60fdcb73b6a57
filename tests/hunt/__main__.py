"""`python -m tests.hunt`: the hunt with a time budget, over processes, with counts at the end.

Exit 1 if anything deviated. Needs torch and numpy, with rankfold on the path.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.hunt.kinds import kinds
from tests.hunt.runner import REGRESSIONS, Counts, Found, keep, work


def main(arguments: list[str] | None = None) -> int:
    """Run the hunt; the number of deviations decides the exit code."""
    options = parser().parse_args(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    names = [kind.name for kind in kinds(options.device)]
    unknown = sorted(set(options.kinds or []) - set(names))
    if unknown:
        print(f"no kind named {', '.join(unknown)}; there are {', '.join(names)}.", file=sys.stderr)
        return 2
    print(f"seed {seed}, {options.seconds:g} s, {options.processes} processes, {options.device}", file=sys.stderr)
    counts, found, died = hunt(options, seed, options.kinds or names)
    for one in found:
        print(f"\n# {one.kind}: {one.what} (seed {one.seed}, case {one.index})", file=sys.stderr)
        print(f"{one.detail}\n{one.program}", file=sys.stderr)
        print(f"kept as {keep(one, options.keep)}", file=sys.stderr)
    for line in died:
        print(line, file=sys.stderr)
    units = {kind.name: kind.unit for kind in kinds(options.device)}
    print(as_json(seed, options, counts, units) if options.json else table(counts, units))
    return 1 if died or any(one.deviations for one in counts.values()) else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    out = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    out.add_argument("--seconds", type=float, default=600.0, help="time budget")
    out.add_argument("--seed", type=int, help="a new one each time if not given")
    out.add_argument("--kinds", nargs="+", help="only these")
    out.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    out.add_argument("--processes", type=int, default=2)
    out.add_argument("--keep", type=Path, default=REGRESSIONS, help="folder for what deviates")
    out.add_argument("--json", action="store_true", help="counts as JSON")
    return out


def hunt(options: argparse.Namespace, seed: int, names: list[str]) -> tuple[dict[str, Counts], list[Found], list[str]]:
    """All processes' counts and finds, and a line for each process that did not come back."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    current = [context.Array("c", 200) for _ in range(options.processes)]
    workers = [
        context.Process(
            target=work, args=(options.device, names, seed, i, options.processes, options.seconds, at, results)
        )
        for i, at in enumerate(current)
    ]
    for worker in workers:
        worker.start()
    counts = {name: Counts() for name in names}
    found: list[Found] = []
    died: list[str] = []
    waiting = set(range(options.processes))
    while waiting:
        try:
            i, theirs, finds = results.get(timeout=1.0)
        except queue.Empty:
            for i in sorted(i for i in waiting if workers[i].exitcode not in (None, 0)):
                waiting.discard(i)
                died.append(
                    f"process {i} died (exit {workers[i].exitcode}) in {current[i].value.decode()}, seed {seed}"
                )
            continue
        waiting.discard(i)
        found += finds
        for name, one in theirs.items():
            total = counts[name]
            for field, value in asdict(one).items():
                setattr(total, field, getattr(total, field) + value)
    for worker in workers:
        worker.join()
    return counts, found, died


def table(counts: dict[str, Counts], units: dict[str, str]) -> str:
    """Counts by kind, and the totals of problems and of files."""
    rows = [("kind", "cases", "large", "deviations", "seconds")]
    rows += [
        (name, f"{one.cases:,}", f"{one.large:,}", str(one.deviations), f"{one.seconds:.0f}")
        for name, one in counts.items()
    ]
    for unit in sorted({units[name] for name in counts}):
        of = [one for name, one in counts.items() if units[name] == unit]
        total = [sum(getattr(one, field) for one in of) for field in ("cases", "large", "deviations", "seconds")]
        rows.append((f"all {unit}s", *(f"{x:,.0f}" for x in total)))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("| " + " | ".join(cells) + " |")
        if len(lines) == 1:
            lines.append("|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|")
    return "\n".join(lines)


def as_json(seed: int, options: argparse.Namespace, counts: dict[str, Counts], units: dict[str, str]) -> str:
    """The counts as JSON."""
    by_kind = {name: {"unit": units[name], **asdict(one)} for name, one in counts.items()}
    return json.dumps({"seed": seed, "seconds": options.seconds, "device": options.device, "kinds": by_kind}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
