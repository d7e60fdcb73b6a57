"""`python -m benchmarks COMMAND`: `steps` (checked and timed next to plain torch), `libraries` (next to other ones)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

# Imported when asked for: `libraries` limits the number of threads before any library looks at it.
COMMANDS = {"steps": "benchmarks.steps.command", "libraries": "benchmarks.libraries.command"}


def main(given: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 1 if a check failed, 2 for a mistake of the caller."""
    name, *rest = (sys.argv[1:] if given is None else given) or ["--help"]
    if name not in COMMANDS:
        print(f"usage: python -m benchmarks {{{','.join(COMMANDS)}}} [--help] ...", file=sys.stderr)
        return 0 if name in ("-h", "--help") else 2
    try:
        status: int = importlib.import_module(COMMANDS[name]).main(rest)
    except (ValueError, OSError) as error:
        if type(error) is ValueError:  # ours, not the caller's
            raise
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
