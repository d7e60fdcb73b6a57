"""`python -m benchmarks steps`: gradient steps of any family and size, checked, then timed next to plain torch.

Without arguments every family at small sizes on a CPU and the published chains on CUDA; `--table NAME --json` prints
what `docs/results/steps-NAME.json` holds.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.steps import scaling
from benchmarks.steps.baselines import measure_ceilings
from benchmarks.steps.cases import NUM_WORDS, ORDERED, Case
from benchmarks.steps.report import text
from benchmarks.steps.row import RANKED, Settings, measure_rows
from benchmarks.steps.tables import frame_cases, grammar_cases, million_cases, modest_cases, published_cases
from rankfold.cli.bench import device_name
from rankfold.cli.load import add_options, find_device
from rankfold.cli.output import say, to_json
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models.config import Family, GrammarConfig, GrammarFamily, ModelConfig, PlanName
from rankfold.numerics.precision import Precision
from rankfold.planning.measure import release, too_large
from rankfold.plots.picture import expect_picture, require_matplotlib
from rankfold.version import __version__

EXAMPLE = """\
example:
  python -m benchmarks steps
  python -m benchmarks steps --family lhmm --states 512 --rank 64 --dim 32 --words 1000 --repeats 5
  python -m benchmarks steps --family block --states 512 --clusters 8 --state-dropout 0.5 --dim 32 --words 1000 --json
  python -m benchmarks steps --sweep states --family hmm --values 128,256,512 --dim 32 --words 500 --plot states.png
  python -m benchmarks steps --family rankpcfg --nonterminals 450 --rank 64 --dim 32 --batch 4 --plan rank state
  python -m benchmarks steps --table published --device cuda"""
# Option, the field it sets, its families.
CHAINS: tuple[str, ...] = get_args(Family)
TREES: tuple[str, ...] = get_args(GrammarFamily)
ALL = CHAINS + TREES
SIZES: dict[str, tuple[str, type, tuple[str, ...], str]] = {
    "states": ("num_states", int, CHAINS, "of chains: hidden states (default: 1024)"),
    "nonterminals": ("num_nonterminals", int, TREES, "of grammars: symbols of spans (default: 30)"),
    "preterminals": ("num_preterminals", int, TREES, "of grammars: symbols of words (default: twice as many)"),
    "rank": ("rank", int, RANKED, f"{', '.join(RANKED)}: the rank (default: 256; of grammars 64)"),
    "band": ("band", int, ("banded",), "banded: diagonals on each side of the main one (default: 8)"),
    "clusters": ("num_clusters", int, ("block",), "block: clusters of words (default: 32)"),
    "dim": ("dim", int, ALL, "of embeddings and networks (default: 256)"),
    "state-dropout": ("state_dropout", float, ("hmm", "lhmm", "banded", "block"), "chains, all but rank (default: 0)"),
    "logit-dropout": ("logit_dropout", float, ("rank",), "rank (default: 0)"),
}
SHAPES = {
    "words": ("num_words", f"size of the vocabulary (default: {NUM_WORDS:,})"),
    "batch": ("batch", "sequences (default: 8)"),
    "length": ("length", "words of each (default: 32)"),
}


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks steps",
        description=(
            "Check a gradient step (parameters to potentials to log Z and back) against plain torch code and against "
            "float64, then time it next to that code on this machine: ratios, spread, memory, share of the measured "
            "ceiling. A step that fails a check gets no time, and the exit status is 1. Without arguments: every "
            "family, at small sizes on a CPU, at the published ones on CUDA."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--table",
        choices=("published", "million", "grammars", "frames"),
        help="the papers' sizes; million: also 2^19 states with an update, and 2^20; grammars, frames: their own",
    )
    parser.add_argument("--family", choices=ALL, help="one model, of these sizes:")
    for name, (_, kind, _, said) in SIZES.items():
        parser.add_argument(f"--{name}", type=kind, help=said)
    for name, (_, said) in SHAPES.items():
        parser.add_argument(f"--{name}", type=int, help=said)
    parser.add_argument(
        "--plan",
        nargs="+",
        choices=get_args(PlanName),
        help=f"{', '.join(ORDERED)}: what is summed out first, a row each, compared (default: auto)",
    )
    parser.add_argument("--update", action="store_true", help="also a whole update of training, AdamW included")
    parser.add_argument("--sweep", choices=get_args(scaling.Axis), help="time against this size, for one family")
    parser.add_argument("--values", help="sizes of the sweep, as 1024,2048,4096")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="picture of the sweep")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=get_args(Precision),
        help="one or more (default: float32 on a CPU; tf32 on CUDA, for the published sizes all three)",
    )
    parser.add_argument("--repeats", type=int, default=15, help="times of each step (default: 15)")
    parser.add_argument(
        "--no-reference",
        action="store_true",
        help="leave the plain code out of the times, and of what is checked at the full size",
    )
    add_options(parser)
    return parser


def main(given: Sequence[str]) -> int:
    """Print the report; 1 if a check failed, 2 if nothing fits."""
    arguments = build_parser().parse_args(given)
    device = torch.device(find_device(arguments.device))
    case = read_case(arguments)
    values = _values(arguments)
    cases = _table(arguments.table, device) if case is None else [case]
    report = bench(
        [case._replace(update=True) for case in cases] if arguments.update else cases,
        device=device,
        precisions=arguments.precision,
        repeats=arguments.repeats,
        reference=not arguments.no_reference,
        sweep=arguments.sweep,
        values=values,
        plans=arguments.plan,
        plot=arguments.plot,
        progress=lambda line: say(f"  {line} ..."),
    )
    print(to_json(report, indent=2) if arguments.json else text(report))
    if "plot_error" in report:
        raise DataError(report["plot_error"])
    if not report["passed"]:
        return 1
    return 0 if any(row["step_ms"] for row in report["rows"]) else 2


def bench(
    cases: Sequence[Case],
    *,
    device: torch.device | str = "cpu",
    precisions: Sequence[Precision] | None = None,
    repeats: int = 15,
    reference: bool = True,
    sweep: scaling.Axis | None = None,
    values: Sequence[int] | None = None,
    plans: Sequence[PlanName] | None = None,
    plot: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report as plain data. With `sweep` the one case is measured at each of `values` of that size.

    With `plans` each case has a row for each of these elimination orders, checked and timed against one another.
    """
    device = torch.device(device)
    if plot is not None:
        _expect_picture(plot)
    if device.type == "cpu" and "tf32" in (precisions or ()):
        raise UnsupportedError("precision is tf32, which a CPU computes as float32.\n  Take float32, or bf16.")
    if sweep is not None:
        if len(cases) != 1:
            raise DomainError(f"a sweep is of one case, but {len(cases)} were given.")
        sizes = values or scaling.default_sizes(cases[0], sweep, device.type)
        cases = scaling.sweep_cases(cases[0], sweep, sizes)
    if plans:
        _expect_orders(cases)
        cases = [case.in_order(plan) for case in cases for plan in dict.fromkeys(plans)]
    report = run_cases(
        cases, precisions or _precisions(cases, device), device, repeats=repeats, reference=reference, say=progress
    )
    if sweep is not None:
        report["sweep"] = scaling.summary(sweep, report["rows"])
        if plot is not None and report["sweep"]["curves"]:
            title = f"{cases[0].config.family}, {report['device']}"
            try:
                report["plot"] = str(scaling.plot_scaling(sweep, report["sweep"]["curves"], plot, title=title))
            except OSError as error:  # what was measured is not lost for it
                report["plot_error"] = f"{plot}: the picture cannot be written: {error.strerror}."
    return report


def _expect_picture(path: Path) -> None:
    """Raise before anything is measured if no picture of this kind can be drawn."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in kinds:
        raise UnsupportedError(f"--plot is {path}, but matplotlib draws no such kind.\n  Take .png, .svg or .pdf.")
    expect_picture(path)


def _expect_orders(cases: Sequence[Case]) -> None:
    """Raise unless every model has a choice of what is summed out first."""
    for case in cases:
        if not case.ordered:
            raise UnsupportedError(
                f"--plan is for {', '.join(ORDERED)}: {case.config.family} has none.\n  Leave it out."
            )


def _precisions(cases: Sequence[Case], device: torch.device) -> tuple[Precision, ...]:
    if device.type != "cuda":
        return ("float32",)
    # Of a grammar or of segments only the distributions would differ: their recursions are in float32 either way.
    chains = (case for case in cases if isinstance(case.config, ModelConfig))
    return ("tf32", "bf16", "float32") if any(case.published_ms for case in chains) else ("tf32",)


def _table(name: str | None, device: torch.device) -> list[Case]:
    if name == "million":
        return million_cases()
    if name == "grammars":
        return grammar_cases()
    if name == "frames":
        return frame_cases()
    return published_cases() if name == "published" or device.type == "cuda" else modest_cases()


def read_case(arguments: argparse.Namespace) -> Case | None:
    """The one case the options describe; None for a table. Raises on options that do not go together."""
    given = {name for name in (*SIZES, *SHAPES) if getattr(arguments, name.replace("-", "_")) is not None}
    family = arguments.family
    if family is None:
        if given or arguments.sweep or arguments.plan:
            option = f"--{min(given)}" if given else "--sweep" if arguments.sweep else "--plan"
            raise DataError(f"{option} is of one model.\n  Say which: --family {', '.join(ALL)}.")
        return None
    if arguments.table:
        raise DataError(f"--table {arguments.table} has its own models.\n  Leave out --family, or --table.")
    swept = {"states": ("states", "nonterminals", "preterminals")}.get(arguments.sweep, (arguments.sweep,))
    for name in swept:
        if name in given:
            raise DataError(f"--sweep {arguments.sweep} takes its sizes from --values.\n  Leave out --{name}.")
    sizes: dict[str, Any] = {"dim": 256}
    for name in sorted(given & set(SIZES)):
        field, _, families, _ = SIZES[name]
        if family not in families:
            raise UnsupportedError(f"--{name} is for {', '.join(families)}: {family} has none.\n  Leave it out.")
        sizes[field] = getattr(arguments, name.replace("-", "_"))
    shape = {SHAPES[name][0]: getattr(arguments, name) for name in given & set(SHAPES)}
    if family in CHAINS:
        return Case(ModelConfig(family=family, **sizes), **shape).validate()
    if "num_nonterminals" in sizes:
        sizes.setdefault("num_preterminals", 2 * sizes["num_nonterminals"])
    return Case(GrammarConfig(family=family, **sizes), **shape).validate()


def _values(arguments: argparse.Namespace) -> list[int] | None:
    for name in ("values", "plot"):
        if getattr(arguments, name) is not None and arguments.sweep is None:
            raise DataError(
                f"--{name} is of a sweep.\n  Say of which size: --sweep {', '.join(get_args(scaling.Axis))}."
            )
    if arguments.values is None:
        return None
    try:
        return [int(value) for value in arguments.values.split(",")]
    except ValueError:
        raise DataError(f"--values is {arguments.values!r}, but sizes as 1024,2048,4096 were expected.") from None


def run_cases(
    cases: Sequence[Case],
    precisions: Sequence[Precision],
    device: torch.device,
    *,
    repeats: int = 15,
    reference: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report as plain data; `passed` is false if a check of any row failed."""
    if repeats < 1:
        raise DomainError(f"repeats is {repeats}, but must be at least 1.")
    for case in cases:
        case.validate()
    least = _least_seconds(cases, precisions, device, repeats)
    if least > 120:
        say(f"{len(cases) * len(precisions)} rows of {repeats} repeats, at least {least / 60:,.0f} minutes")
    say("the ceiling of this machine")
    ceilings = measure_ceilings(device, precisions)
    release(device)
    settings = Settings(device, ceilings, repeats, reference, say)
    wanted = [(group, precision) for group in _by_model(cases) for precision in precisions]
    rows = []
    for i, (group, precision) in enumerate(wanted, 1):
        rows += measure_rows(group, precision, settings._replace(say=_counted(say, i, len(wanted))))
    return {
        "rankfold": __version__,
        "device": device_name(device),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "ceilings": ceilings._asdict(),
        "rows": rows,
        "passed": all(row["passed"] for row in rows),
    }


def _by_model(cases: Sequence[Case]) -> list[list[Case]]:
    """Neighbours that differ in their plan alone go together."""
    groups = groupby(cases, lambda case: case.in_order("auto") if case.ordered else case)
    return [list(group) for _, group in groups]


def _least_seconds(cases: Sequence[Case], precisions: Sequence[Precision], device: torch.device, repeats: int) -> float:
    """The timed steps of what fits, at least, by their plans; checks and the reference come on top."""
    plans = [case.plan(device, precision) for case in cases for precision in precisions]
    return repeats * sum(plan.seconds for plan in plans if not too_large(plan.peak_bytes, device))


def _counted(say: Callable[[str], None], i: int, num: int) -> Callable[[str], None]:
    return say if num == 1 else lambda line: say(f"{i}/{num} {line}")
