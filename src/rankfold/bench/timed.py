"""What a row times: its step, beside the reference and beside other orders of the same model, in turns.

On CUDA a step is captured as a graph, as training does, and its replays are timed; a graph's result is checked first.
Read next: `bench/timing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from rankfold.bench.cases import Case
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.checks import Check, replay_checks
from rankfold.bench.memory import out_of_memory, release
from rankfold.bench.plain import Plain
from rankfold.bench.step import SEED, AnyBatch, Recursion, Step, Update, reference_gradients
from rankfold.bench.timing import Spread, Turn, host_time, host_times, in_turns, peak_mib, replay_time, reserved_mib
from rankfold.numerics.capture import captured
from rankfold.numerics.precision import Precision


class Settings(NamedTuple):
    """How rows are measured."""

    device: torch.device
    ceilings: Ceilings
    repeats: int = 15
    reference: bool = True
    say: Callable[[str], None] = lambda _: None


class CheckError(Exception):
    """A check failed: the row ends here."""


class Checks(list[Check]):
    """The checks of a row; adding one that fails raises."""

    def add(self, *checks: Check) -> None:
        """Keep them; raise if one failed."""
        self.extend(checks)
        if not all(check.passed for check in checks):
            raise CheckError


class Timed:
    """All that is timed of one model in one order."""

    def __init__(
        self, case: Case, model: Any, batch: AnyBatch, precision: Precision, generator: torch.Generator | None
    ) -> None:
        self.case = case
        self.step = Step(model, batch, precision, generator)
        self.turns: dict[str, Turn] = {}

    def alone(self, settings: Settings, held: int) -> dict[str, Any]:
        """What is compared with nothing: peak memory, the forward pass, an update, on CUDA the step without a graph."""
        step, device, repeats = self.step, settings.device, settings.repeats
        step.run()
        found: dict[str, Any] = {"peak_mib": peak_mib(step.run, device, held)}
        if device.type == "cuda":
            found["eager_ms"] = host_times(step.run, device, repeats=repeats)._asdict()
        found["forward_ms"] = host_times(step.forward, device, repeats=repeats)._asdict()
        if self.case.update:
            update = Update.of(step)
            found["update_mib"] = reserved_mib(update.run, device)
            found["update_ms"] = host_times(update.run, device, repeats=repeats)._asdict()
        return found

    def prepare(self, checks: Checks, settings: Settings) -> None:
        """The turns: the step; the step without dropout where the reference is compared with that; the recursion."""
        step = self.step
        self.turns["step"] = turn(checks, step, settings)
        if self.case.dropout and settings.reference:
            self.turns["same"] = turn(checks, step._replace(generator=None), settings)
        if self.case.trees:
            self.turns["recursion"] = turn(checks, Recursion.of(step.model, step.batch, step.precision), settings)


def turn(checks: Checks, work: Step | Recursion, settings: Settings) -> Turn:
    """One call of the work: by the host's clock, or a replay of its graph, whose result is checked here."""
    device = settings.device
    if device.type != "cuda":
        return Turn(lambda: host_time(work.run, device), settings.repeats)
    _seed(work.generator)
    eager = work.run()
    graph, result = captured(work.run, generator=work.generator)
    _seed(work.generator)
    graph.replay()
    torch.cuda.synchronize()
    checks.add(*replay_checks(result, eager, work.precision))
    return Turn(partial(_replayed, graph, work), settings.repeats)


def _replayed(graph: torch.cuda.CUDAGraph, work: Step | Recursion) -> float:
    """Milliseconds of a replay. The work is held as long as its graph: a graph reads its inputs where they lie."""
    return replay_time(graph)


def _seed(generator: torch.Generator | None) -> None:
    """What is dropped next is what is always dropped first."""
    if generator is not None:
        generator.manual_seed(SEED)


def spreads(
    timed: Mapping[str, Timed], plain: Plain, model: Any, batch: AnyBatch, settings: Settings
) -> tuple[dict[str, dict[str, Spread]], str]:
    """The times of each order, by its name and what they are of, and of the reference by no name; why that has none."""
    turns = {(order, name): turn for order, way in timed.items() for name, turn in way.turns.items()}
    why = plain.why
    if plain.repeats and timed:
        precision = next(iter(timed.values())).step.precision

        def reference() -> float:
            return host_time(lambda: reference_gradients(model, batch, precision), settings.device)

        turns["", "reference"] = Turn(reference, plain.repeats, 1)
    try:
        taken = in_turns(turns)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error) or ("", "reference") not in turns:
            raise
        del turns["", "reference"]
        release(settings.device)
        taken, why = in_turns(turns), "does not fit into memory beside our step"
    found: dict[str, dict[str, Spread]] = {}
    for (order, name), spread in taken.items():
        found.setdefault(order, {})[name] = spread
    return found, why
