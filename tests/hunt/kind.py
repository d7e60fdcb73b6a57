"""What a kind of problem is: how to draw a case, hold it to its oracle, make it smaller and print it as a program.

A case is plain data (dicts, lists, numbers, strings), so that it can be kept as a JSON file and replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Case = dict[str, Any]


@dataclass(frozen=True)
class Deviation:
    """A number, a file or an error that is not what was promised."""

    what: str  # which promise: short, the same for deviations of the same sort
    detail: str = ""  # what came and what was expected


class Kind:
    """One kind of problem. `check` may raise: an exception that reaches the runner is a deviation, too."""

    name = ""
    unit = "problem"  # what the counts count: "problem", "file", "kernel" or "graph"
    devices: tuple[str, ...] = ("cpu", "cuda")  # where it can run
    weight = 1.0  # its share of the time
    limit = 30.0  # seconds a case may take before it counts as hanging

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        if device == "cuda":  # the first call of a kernel compiles it
            self.limit *= 4

    def draw(self, rng: np.random.Generator) -> Case:
        """A random case."""
        raise NotImplementedError

    def check(self, case: Case) -> Deviation | None:
        """What is wrong, or None."""
        raise NotImplementedError

    def large(self, case: Case) -> bool:
        """Whether the case is larger than three states and four positions."""
        return False

    def smaller(self, case: Case) -> Iterator[Case]:
        """Simpler cases to try, the boldest first."""
        return iter(())

    def program(self, case: Case) -> str:
        """A Python program that shows the deviation by itself."""
        return replay_program(self.name, case)


def replay_program(name: str, case: Case) -> str:
    """The program that replays a case through its kind: for kinds that write none of their own."""
    return (
        f"# {name}: run in the repository's root, with PYTHONPATH=src:.\n"
        "from tests.hunt.kinds import kind_named\n\n"
        'inf, nan = float("inf"), float("nan")\n'
        f"case = {case!r}\n"
        f'print(kind_named("{name}").check(case))\n'
    )
