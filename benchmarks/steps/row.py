"""Rows: steps of one model in one precision, checked first, then timed next to the plain reference.

The order: small checks, the full size against float64, the reference, our step captured as a CUDA graph and compared
with the eager one; then times, all that is compared in turns. The first failure ends a row without times. A model whose
variables can be summed out in several orders has a row for each, and these take turns, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.steps.baselines import Ceilings, Plain, try_plain
from benchmarks.steps.cases import Case
from benchmarks.steps.checks import (
    dropout_checks,
    full_check,
    order_check,
    reference_checks,
    reference_dropout_checks,
    small_checks,
    without_reference,
)
from benchmarks.steps.step import Recursion, Step, Update, log_z, reference_gradients
from rankfold.cli.bench import SEED, Check, Gradients, capture_turn
from rankfold.data.batch import Batch
from rankfold.models.config import FACTORED, LOW_RANK, FrameConfig, GrammarConfig, ModelConfig
from rankfold.numerics.precision import Precision
from rankfold.planning.cost import Plan
from rankfold.planning.measure import (
    Spread,
    Turn,
    held_bytes,
    host_time,
    host_times,
    in_turns,
    out_of_memory,
    peak_mib,
    release,
    reserved_mib,
    too_large,
)

FULL = "does not fit into memory"
# What a row has only if every check passed: none of it says anything about code that is wrong.
TIMES = (
    "step_ms",
    "eager_ms",
    "forward_ms",
    "recursion_ms",
    "update_ms",
    "update_mib",
    "peak_mib",
    "same_step_ms",
    "reference_ms",
    "reference_mib",
    "ratio",
    "against",
    "floor_ms",
    "share",
)
RANKED = ("lhmm", "banded", "rank", "lpcfg", *FACTORED)


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


class Entry:
    """A row while it is measured."""

    model: Any
    batch: Batch
    log_z: Tensor  # "b"

    def __init__(self, case: Case, precision: Precision, asked: Sequence[str], settings: Settings) -> None:
        """`case` has its order settled; `asked` are the plans that mean this one."""
        self.case, self.precision, self.settings = case, precision, settings
        self.record, self.checks = new_record(case, precision, asked), Checks()
        self.plan: Plan = case.plan(settings.device, precision)

    @property
    def title(self) -> str:
        order = f", {self.plan.order} space" if self.case.ordered else ""
        return f"{self.case.name}{order}, {self.precision}"

    def prepare(self) -> None:
        """What needs nothing of the full size."""
        plan, device = self.plan, self.settings.device
        self.record |= {
            "order": plan.order,
            "estimate_ms": 1e3 * plan.seconds,
            "estimate_mib": plan.peak_bytes / 2**20,
            "note": too_large(plan.peak_bytes, device),
        }
        self.settings.say(f"{self.title}: checks")
        self.checks.add(*small_checks(self.case, self.precision, device))
        self.checks.add(*dropout_checks(self.case, self.precision, device))

    def check(self) -> None:
        """The full size against float64."""
        full = full_check(self.model, self.batch, self.precision, self.plan.peak_bytes)
        self.record["error"] = full.error
        self.checks.add(full)
        with torch.no_grad():
            self.log_z = log_z(self.model, self.batch, self.precision)

    def fail(self, note: str = "") -> None:
        """Take back every time."""
        self.record |= dict.fromkeys(TIMES)
        if note:
            self.record["note"] = note

    def done(self) -> dict[str, Any]:
        """The record, with its checks."""
        checks = [check.record() for check in self.checks]
        return {**self.record, "checks": checks, "passed": all(check.passed for check in self.checks)}


def measure_row(case: Case, precision: Precision, settings: Settings) -> dict[str, Any]:
    """The record of a row, plain data; what `TIMES` names is None unless every check passed."""
    return measure_rows([case], precision, settings)[0]


def measure_rows(cases: Sequence[Case], precision: Precision, settings: Settings) -> list[dict[str, Any]]:
    """The records of cases that differ in their plan alone; plans that come to the same order have one row."""
    device = settings.device
    asked: dict[Case, list[str]] = {}
    for case in cases:
        asked.setdefault(case.with_order(device, precision), []).append(case.plan_name)
    entries = [Entry(case, precision, plans, settings) for case, plans in asked.items()]
    live = _each(entries, Entry.prepare)
    live = [entry for entry in live if not entry.record["note"]]
    if live:
        try:
            _measure(live, settings)
        except CheckError:  # of all: they differ from one another
            for entry in live:
                entry.fail()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            for entry in live:
                entry.fail(FULL)
    release(device)
    return [entry.done() for entry in entries]


def _each(entries: Sequence[Entry], work: Callable[[Entry], Any]) -> list[Entry]:
    """Do something with each; those for which it went well."""
    kept = []
    for entry in entries:
        try:
            work(entry)
        except CheckError:
            entry.fail()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            entry.fail(FULL)
        else:
            kept.append(entry)
    return kept


def _measure(entries: list[Entry], settings: Settings) -> None:
    device, case, precision = settings.device, entries[0].case, entries[0].precision
    release(device)
    held = held_bytes(device)
    model, batch = case.build(device), case.draw(device)
    for entry in entries:
        entry.model, entry.batch = copy.copy(model), batch  # the same parameters
        entry.model.config = entry.case.config
    entries = _each(entries, Entry.check)
    _same_log_z(entries)
    if not entries:
        return
    plain = Plain(why="was not asked for")
    if settings.reference:
        settings.say(f"{case.name}, {precision}: reference")
        rate = settings.ceilings.multiply_adds_per_second[precision]
        plain = try_plain(model, case, batch, precision, rate=rate, repeats=settings.repeats, held=held)
    if plain.found is not None:
        entries = _each(entries, partial(_check_reference, reference=plain.found))
        plain = plain._replace(found=None)  # gradients as large as the model
    else:
        for entry in entries:
            entry.checks.add(without_reference(precision, plain.why))
    timed: dict[str, Timed] = {}

    def alone(entry: Entry) -> None:
        settings.say(f"{entry.title}: times")
        generator = torch.Generator(device=device).manual_seed(SEED)
        way = timed[entry.plan.order] = Timed(entry.case, entry.model, batch, precision, generator)
        entry.record |= {**way.alone(settings, held), "held_mib": held / 2**20, "captured": device.type == "cuda"}

    # Peaks of all before the graphs of any, which hold memory.
    entries = _each(entries, alone)
    entries = _each(entries, lambda entry: timed[entry.plan.order].prepare(entry.checks, settings))
    timed = {entry.plan.order: timed[entry.plan.order] for entry in entries}
    found, why = spreads(timed, plain, model, batch, settings)
    for entry in entries:
        entry.record["reference_note"] = why
        _fill(entry, found, plain)
    for entry in entries[1:]:
        entry.record["against"] = _against(entries[0], entry)


def _check_reference(entry: Entry, reference: Gradients) -> None:
    """The full size against the plain code; with its dropout, too, where it has any."""
    entry.checks.add(*reference_checks(entry.model, entry.batch, entry.precision, reference))
    if entry.case.dropout and isinstance(entry.case.config, ModelConfig):
        entry.checks.add(*reference_dropout_checks(entry.model, entry.batch, entry.precision, entry.case.dropout))


def _same_log_z(entries: Sequence[Entry]) -> None:
    """Each order against the first; raises for all of them where one differs: nobody knows which is wrong."""
    for entry in entries[1:]:
        orders = f"{entry.plan.order} against {entries[0].plan.order} space"
        check = order_check(entry.log_z, entries[0].log_z, orders, entry.precision)
        entry.record["order_error"] = check.error
        if not check.passed:
            entries[0].checks.append(check)
        entry.checks.add(check)


def _fill(entry: Entry, found: dict[str, dict[str, Spread]], plain: Plain) -> None:
    own, record = found[entry.plan.order], entry.record
    step = own["step"]
    floor = entry.settings.ceilings.floor_ms(entry.plan, entry.precision)
    record |= {"step_ms": step._asdict(), "floor_ms": floor, "share": floor / step.median}
    if "recursion" in own:
        record["recursion_ms"] = own["recursion"]._asdict()
    if record["eager_ms"] is None:  # a CPU has no other
        record["eager_ms"] = record["step_ms"]
    reference = found.get("", {}).get("reference")
    if reference is not None:
        same = own.get("same", step)
        record |= {
            "same_step_ms": same._asdict(),
            "reference_ms": reference._asdict(),
            "reference_mib": plain.peak_mib,
            "ratio": reference.median / same.median,
        }


def _against(first: Entry, entry: Entry) -> dict[str, Any]:
    """How many times as long this order takes as the first one."""
    one, other = first.record, entry.record
    return {
        "order": first.plan.order,
        "step_ratio": other["step_ms"]["median"] / one["step_ms"]["median"],
        "recursion_ratio": other["recursion_ms"]["median"] / one["recursion_ms"]["median"]
        if one["recursion_ms"]
        else None,
        "error": entry.record["order_error"],
    }


def new_record(case: Case, precision: Precision, plans: Sequence[str]) -> dict[str, Any]:
    """The sizes, None where a family has no such; `plans` are those that were asked for, where there is a choice."""
    config, family = case.config, case.config.family
    states = config if isinstance(config, ModelConfig) else None
    frames = config if isinstance(config, FrameConfig) else None
    symbols = config if isinstance(config, GrammarConfig) else None
    return {
        "name": case.name,
        "family": family,
        "given_tables": case.given,
        "num_states": None if isinstance(config, GrammarConfig) else config.num_states,
        "num_nonterminals": symbols and symbols.num_nonterminals,
        "num_preterminals": symbols and symbols.num_preterminals,
        "rank": config.rank if family in (*RANKED, *LOW_RANK) else None,
        "band": states.band if states and family == "banded" else None,
        "num_clusters": states.num_clusters if states and family == "block" else None,
        "dim": config.dim if config.neural else None,
        "state_dropout": 0.0 if isinstance(config, GrammarConfig) else config.state_dropout,
        "logit_dropout": states.logit_dropout if states else 0.0,
        "num_words": None if frames else case.num_words,
        "observations": frames and frames.observations,
        "num_features": frames and frames.num_features,
        "max_duration": frames.max_duration if frames and frames.has_segments else None,
        "self_transitions": frames and frames.may_repeat,
        "batch": case.batch,
        "length": case.length,
        "precision": precision,
        "plans": list(plans) if case.ordered else [],
        "order": None,
        "error": None,
        "order_error": None,
        "captured": False,
        **dict.fromkeys(TIMES),
        "held_mib": None,
        "note": "",
        "reference_note": "",
        "estimate_ms": None,
        "estimate_mib": None,
        "published_ms": case.published_ms,
        "published_mib": case.published_mib,
    }


class Timed:
    """All that is timed of one model in one order."""

    def __init__(
        self, case: Case, model: Any, batch: Batch, precision: Precision, generator: torch.Generator | None
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
    replayed, found = capture_turn(work.run, work.generator, work.precision, settings.repeats)
    checks.add(*found)
    return replayed


def spreads(
    timed: Mapping[str, Timed], plain: Plain, model: Any, batch: Batch, settings: Settings
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
        taken, why = in_turns(turns), "does not fit into memory together with our step"
    found: dict[str, dict[str, Spread]] = {}
    for (order, name), spread in taken.items():
        found.setdefault(order, {})[name] = spread
    return found, why
