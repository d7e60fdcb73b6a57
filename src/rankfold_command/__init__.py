"""The command `rankfold`: how threads wait is set before torch is loaded, then `rankfold.cli` takes over.

A package of its own, so that nothing of `rankfold` can load torch earlier. OpenMP threads that spin while they wait
take the cores from any other process: next to one other training run on two cores a run took ten times as long
(2026-11-15). Threads that sleep take a quarter longer where the machine is idle; an OMP_WAIT_POLICY that is set stays.
"""

from __future__ import annotations

import os


def main() -> int:
    """Run the command."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rankfold.cli import main as run

    return run()
