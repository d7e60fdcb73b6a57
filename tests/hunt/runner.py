"""One process of the hunt: draws cases by turns, holds them to their oracles, shrinks what deviates.

Case i of a kind depends on the seed, the kind's name and i alone, whatever the budget and the number of processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.hunt.kind import Case, Deviation, Kind
from tests.hunt.kinds import kinds

REGRESSIONS = Path(__file__).parent / "regressions"
SHRINK_SECONDS = 10.0
SHOWN = 3  # deviations of the same sort that are shrunk and kept; the others are counted


@dataclass
class Counts:
    """What a kind has done so far."""

    cases: int = 0
    large: int = 0
    deviations: int = 0
    seconds: float = 0.0


@dataclass
class Found:
    """A deviation, shrunk."""

    kind: str
    seed: int
    index: int
    what: str
    detail: str
    program: str
    case: Case


@dataclass
class Hunt:
    """The state of one process."""

    kinds: list[Kind]
    seed: int
    first: int = 0  # this process takes the cases first, first + step, ...
    step: int = 1
    counts: dict[str, Counts] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    shown: dict[tuple[str, str], int] = field(default_factory=dict)

    def run(self, seconds: float, started: Callable[[str, int], None] = lambda name, index: None) -> None:
        """Draw and check until the time is up; `started` hears of every case before it runs."""
        begin = time.monotonic()
        while self.kinds and time.monotonic() - begin < seconds:
            self.take(min(self.kinds, key=lambda kind: self.count(kind).seconds / kind.weight), started)

    def count(self, kind: Kind) -> Counts:
        """What a kind has done so far."""
        return self.counts.setdefault(kind.name, Counts())

    def take(self, kind: Kind, started: Callable[[str, int], None] = lambda name, index: None) -> None:
        """Draw and check the next case of a kind."""
        counts = self.count(kind)
        index = self.first + self.step * counts.cases
        started(kind.name, index)
        at = time.monotonic()
        case = kind.draw(case_rng(self.seed, kind, index))
        wrong = deviation(kind, case)
        counts.cases += 1
        counts.large += kind.large(case)
        counts.seconds += time.monotonic() - at
        if wrong is None:
            return
        counts.deviations += 1
        key = (kind.name, wrong.what)
        self.shown[key] = self.shown.get(key, 0) + 1
        if self.shown[key] <= SHOWN:
            case, wrong = shrunk(kind, case, wrong)
            program = kind.program(case)
            self.found.append(Found(kind.name, self.seed, index, wrong.what, wrong.detail, program, case))


def case_rng(seed: int, kind: Kind, index: int) -> np.random.Generator:
    """The generator of a case."""
    return np.random.default_rng([seed, zlib.crc32(kind.name.encode()), index])


def deviation(kind: Kind, case: Case) -> Deviation | None:
    """What `check` finds; an exception or a hang is a deviation. A hang is tried again: machines may stand still."""
    try:
        try:
            return _checked(kind, case)
        except HangingError:
            return _checked(kind, case)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Deviation(
            f"{type(error).__name__} in {Path(frame.filename).name}",
            f"{error}\n{''.join(traceback.format_exception(error))}",
        )


def _checked(kind: Kind, case: Case) -> Deviation | None:
    with warnings.catch_warnings(), time_limit(kind.limit):
        warnings.simplefilter("ignore")
        return kind.check(case)


class HangingError(Exception):
    """A case took longer than its kind allows."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `HangingError` when the block takes longer."""

    def stop(*_: Any) -> None:
        raise HangingError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def shrunk(kind: Kind, case: Case, wrong: Deviation) -> tuple[Case, Deviation]:
    """The smallest case found that deviates in the same way."""
    end = time.monotonic() + SHRINK_SECONDS
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in kind.smaller(case):
            if time.monotonic() > end:
                break
            again = deviation(kind, smaller)
            if again is not None and again.what == wrong.what:
                case, wrong, progress = smaller, again, True
                break
    return case, wrong


def work(
    device: str, names: list[str], seed: int, first: int, step: int, seconds: float, at: Any, results: Any
) -> None:
    """One process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    one = Hunt([kind for kind in kinds(device) if kind.name in names], seed, first, step)

    def started(name: str, index: int) -> None:
        at.value = f"{name} case {index}".encode()

    one.run(seconds, started)
    results.put((first, one.counts, one.found))


def keep(found: Found, folder: Path = REGRESSIONS) -> Path:
    """Write a deviation as a regression file; the test of this folder replays it from then on."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {name: value for name, value in asdict(found).items() if name != "program"}
    record["detail"] = found.detail.partition("\nTraceback")[0]  # paths of a machine belong to no file
    text = json.dumps(record, indent=1)
    path = folder / f"{found.kind}-{zlib.crc32(json.dumps(found.case).encode()):08x}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path
