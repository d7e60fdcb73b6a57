"""The command `rankfold`: how threads wait is settled before torch is loaded, then `rankfold.cli` takes over.

A package of its own, because importing anything of `rankfold` loads torch. OpenMP threads that spin while they wait
take the cores from any other process: beside one other training run on two cores a run took ten times as long
(2026-11-15). Threads that sleep take a quarter longer where the machine is idle; an OMP_WAIT_POLICY that is set stays.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from rankfold.cli import main as run
    except KeyboardInterrupt:  # while torch was being loaded
        print("rankfold: interrupted", file=sys.stderr)
        return 130
    return run()
