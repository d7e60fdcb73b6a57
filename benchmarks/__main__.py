"""`python -m benchmarks COMMAND`: what a step takes next to plain torch, to other libraries, in other precisions."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "steps": "benchmarks.steps.command",
    "libraries": "benchmarks.libraries.command",
    "estimators": "benchmarks.libraries.estimators",
    "few": "benchmarks.libraries.few_states",
    "structures": "benchmarks.steps.structures",
    "precision": "benchmarks.precision",
    "starter": "benchmarks.starter",
    "long": "benchmarks.long_chains",
    "segments": "benchmarks.long_segments",
    "em": "benchmarks.em_updates",
    "starts": "benchmarks.starts",
    "people": "benchmarks.people",
    "baselines": "benchmarks.baselines.command",
    "mixture": "benchmarks.mixture",
    "crosstask": "benchmarks.crosstask",
    "fgg": "benchmarks.fgg",
    "questions": "benchmarks.questions",
    "packed_trees": "benchmarks.packed_trees",
    "corpora": "benchmarks.corpora",
    "gpu": "benchmarks.gpu",
    "processes": "benchmarks.processes",
    "scaling": "benchmarks.several_devices",
}
NUM_THREADS = 2  # for each of several libraries


def main(given: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 1 if a check failed, 2 for a mistake of the caller."""
    name, *rest = (sys.argv[1:] if given is None else given) or ["--help"]
    if name not in COMMANDS:
        print(f"usage: python -m benchmarks {{{','.join(COMMANDS)}}} [--help] ...", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    if "libraries" in COMMANDS[name]:
        limit_threads()  # before the command's module: libraries count the CPUs as they are loaded
    command = importlib.import_module(COMMANDS[name])

    from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError

    try:
        status: int = command.main(rest)
    except (DataError, DomainError, ShapeError, UnsupportedError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return status


def limit_threads() -> None:
    """Two CPUs for this process and its children."""
    os.environ["OMP_NUM_THREADS"] = str(NUM_THREADS)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_THREADS])


if __name__ == "__main__":
    sys.exit(main())
