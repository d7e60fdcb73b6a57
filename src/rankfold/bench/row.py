"""One row: a step of one model in one precision, checked first, then timed beside the plain reference.

The order: small checks, the full size against float64, the reference, our step eager, our step captured as a CUDA
graph and compared with the eager one. The first failure ends the row without times. Read next: `bench/checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rankfold.bench.cases import Case
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.checks import Check, full_check, reference_check, replay_checks, small_checks
from rankfold.bench.memory import out_of_memory, release, too_large
from rankfold.bench.plain import Plain, measure_plain
from rankfold.bench.step import Gradients, gradients, log_z
from rankfold.bench.timing import Spread, held_bytes, host_times, peak_mib, replay_times
from rankfold.data.batch import Batch
from rankfold.numerics.capture import captured
from rankfold.numerics.precision import Precision

SEED = 1
# What a row has only if every check passed: none of it says anything about code that is wrong.
TIMES = (
    "step_ms",
    "eager_ms",
    "forward_ms",
    "peak_mib",
    "same_step_ms",
    "reference_ms",
    "reference_mib",
    "ratio",
    "floor_ms",
    "share",
)


class Settings(NamedTuple):
    """How rows are measured."""

    device: torch.device
    ceilings: Ceilings
    repeats: int = 15
    reference: bool = True
    say: Callable[[str], None] = lambda _: None


class CheckError(Exception):
    """A check failed: the row ends here."""


class _Checks(list[Check]):
    """The checks of a row; adding one that fails raises."""

    def add(self, *checks: Check) -> None:
        self.extend(checks)
        if not all(check.passed for check in checks):
            raise CheckError


def measure_row(case: Case, precision: Precision, settings: Settings) -> dict[str, Any]:
    """The record of a row, plain data; what `TIMES` names is None unless every check passed."""
    row, checks = _sizes(case, precision), _Checks()
    try:
        _measure(row, checks, case.settled(settings.device, precision), precision, settings)
    except CheckError:
        row |= dict.fromkeys(TIMES)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        row |= {**dict.fromkeys(TIMES), "note": "does not fit into memory"}
    release(settings.device)
    row["checks"] = [{**check._asdict(), "passed": check.passed, "text": check.text()} for check in checks]
    row["passed"] = all(check.passed for check in checks)
    return row


def _sizes(case: Case, precision: Precision) -> dict[str, Any]:
    config, family = case.config, case.config.family
    return {
        "name": case.name,
        "family": family,
        "given_tables": case.given,
        "num_states": config.num_states,
        "rank": config.rank if family in ("lhmm", "banded", "rank") else None,
        "band": config.band if family == "banded" else None,
        "num_clusters": config.num_clusters if family == "block" else None,
        "dim": None if case.given else config.dim,
        "state_dropout": config.state_dropout,
        "logit_dropout": config.logit_dropout,
        "num_words": case.num_words,
        "batch": case.batch,
        "length": case.length,
        "precision": precision,
        "order": None,
        "error": None,
        "captured": False,
        **dict.fromkeys(TIMES),
        "note": "",
        "reference_note": "",
        "estimate_ms": None,
        "estimate_mib": None,
        "published_ms": case.published_ms,
        "published_mib": case.published_mib,
    }


def _measure(row: dict[str, Any], checks: _Checks, case: Case, precision: Precision, settings: Settings) -> None:
    device, ceilings, say = settings.device, settings.ceilings, settings.say
    title = f"{case.name}, {precision}"
    plan = case.plan(device, precision)
    row |= {"order": plan.order, "estimate_ms": 1e3 * plan.seconds, "estimate_mib": plan.peak_bytes / 2**20}
    row["note"] = too_large(plan.peak_bytes, device)
    say(f"{title}: checks")
    checks.add(*small_checks(case, precision, device))
    if row["note"]:
        return
    release(device)
    held = held_bytes(device)
    model, batch = case.build(device), case.draw(device)
    full = full_check(model, batch, precision, plan.peak_bytes)
    row["error"] = full.error
    checks.add(full)
    plain = Plain(why="not asked for")
    if settings.reference:
        say(f"{title}: reference")
        rate = ceilings.multiply_adds_per_second[precision]
        plain = measure_plain(model, case, batch, precision, rate=rate, repeats=settings.repeats)
    if plain.log_z is not None:
        with torch.no_grad():
            checks.add(reference_check(log_z(model, batch, precision), plain.log_z, precision))
    say(f"{title}: times")
    floor = ceilings.floor_ms(plan, precision)
    generator = torch.Generator(device=device).manual_seed(SEED)
    best = _own_times(row, checks, Step(model, batch, precision, generator), settings, held)
    row |= {"step_ms": best._asdict(), "floor_ms": floor, "share": floor / best.median, "reference_note": plain.why}
    if plain.time is None:
        return
    # The reference drops nothing, so it is compared with a step that does not either.
    same = _fastest(checks, Step(model, batch, precision, None), settings) if case.dropout else best
    row |= {
        "same_step_ms": same._asdict(),
        "reference_ms": plain.time._asdict(),
        "reference_mib": plain.peak_mib,
        "ratio": plain.time.median / same.median,
    }


class Step(NamedTuple):
    """A step with its inputs."""

    model: Any
    batch: Batch
    precision: Precision
    generator: torch.Generator | None

    def run(self) -> Gradients:
        """log Z and its gradients."""
        return gradients(*self)

    def forward(self) -> Any:
        """log Z alone, nothing kept for a gradient."""
        with torch.no_grad():
            return log_z(*self)

    def seeded(self) -> None:
        """What is dropped next is what is always dropped first."""
        if self.generator is not None:
            self.generator.manual_seed(SEED)


def _own_times(row: dict[str, Any], checks: _Checks, step: Step, settings: Settings, held: int) -> Spread:
    """Peak memory and eager times into the row; the times of the fastest way come back."""
    device, repeats = settings.device, settings.repeats
    step.run()
    row["peak_mib"] = peak_mib(step.run, device, held)
    eager = host_times(step.run, device, repeats=repeats)
    row |= {"eager_ms": eager._asdict(), "forward_ms": host_times(step.forward, device, repeats=repeats)._asdict()}
    row["captured"] = device.type == "cuda"
    return _replayed(checks, step, settings) if row["captured"] else eager


def _fastest(checks: _Checks, step: Step, settings: Settings) -> Spread:
    if settings.device.type == "cuda":
        return _replayed(checks, step, settings)
    return host_times(step.run, settings.device, repeats=settings.repeats)


def _replayed(checks: _Checks, step: Step, settings: Settings) -> Spread:
    """The times of replays of the captured step, whose result is checked against an eager one of the same seed."""
    step.seeded()
    eager = step.run()
    graph, result = captured(step.run, generator=step.generator)
    step.seeded()
    graph.replay()
    torch.cuda.synchronize()
    checks.add(*replay_checks(result, eager, step.precision))
    del eager
    times = replay_times(graph, repeats=settings.repeats)
    del graph, result
    release(settings.device)
    return times
