"""Cells of the page of grammars: of a group of runs that differ by their seed, means with their spread.

Read next: `grammars.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.grammar_runs import Induced, Row, Table, mean
from benchmarks.runs import FAITHFUL
from rankfold.models.grammar_config import FACTORED, AnyConfig, GrammarConfig
from rankfold.training.run_dir import RECIPE

NONE = "-"


def f1(group: Sequence[Induced], of: str, convention: str) -> str:
    """F1 of the grammars, in percent."""
    return spread([run.f1(of, convention) for run in group])


def valid(group: Sequence[Induced]) -> str:
    """The best validation perplexity."""
    return _bounded(spread([run.run.valid for run in group]), group)


def perplexity(group: Sequence[Induced]) -> str:
    """The perplexity of the trees' words."""
    return _bounded(spread([run.perplexity for run in group]), group)


def seeds(group: Sequence[Induced]) -> str:
    """The seeds."""
    return ", ".join(str(run.seed) for run in group)


def updates(group: Sequence[Induced]) -> str:
    """Updates, and whether they are all that were planned."""
    planned = group[0].run.config.train.updates
    reached = sorted({run.updates for run in group})
    shown = " to ".join(f"{number:,}" for number in dict.fromkeys([reached[0], reached[-1]]))
    if not all(run.finished for run in group):
        return f"{shown} of {planned:,}, cut short"
    return shown if reached == [planned] else f"{shown} of {planned:,}, stopped early"


def minutes(group: Sequence[Induced]) -> str:
    """Of training, a run."""
    on_gpu = all(run.run.gpu for run in group)
    return f"{mean([run.minutes for run in group]):.1f}" + ("" if on_gpu else " (CPU)")


def names(group: Sequence[Induced]) -> str:
    """The runs' names."""
    return ", ".join(f"`{run.run.name}`" for run in group)


def spread(values: Sequence[float | None]) -> str:
    """The mean, with the lowest and the highest where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    shown = f"{mean(known):.1f}"
    return shown if len(known) == 1 else f"{shown} ({min(known):.1f} to {max(known):.1f})"


def published(row: Row) -> str:
    """What the paper has: F1 (mean / best, convention), or perplexity."""
    figures = [row.valid] if row.valid is not None else [row.f1, row.best]
    shown = " / ".join(f"{x:.2f}" if x == row.valid else f"{x:g}" for x in figures if x is not None)
    if not shown:
        return NONE
    named = [row.convention, "second hand" if row.second_hand else ""]
    remark = ", ".join(name for name in named if name)
    return f"{shown} ({remark})" if remark else shown


def sizes(model: AnyConfig) -> str:
    """The numbers of symbols, and the rank where there is one."""
    assert isinstance(model, GrammarConfig)
    rank = f", rank {model.rank:,}" if model.family in (*FACTORED, "lpcfg") else ""
    return f"{model.num_nonterminals:,} / {model.num_preterminals:,}{rank}"


def remarks(group: Sequence[Induced], table: Table, *, is_chosen: bool = False, with_sizes: bool = False) -> str:
    """What sets a line apart from others of its row."""
    run = group[0]
    found = []
    if with_sizes:
        found.append(sizes(run.model))
    if run.recipe is not None and run.recipe.endswith(FAITHFUL):
        found.append("the authors' training")
    if run.recipe is not None and run.changes:
        found.append(", ".join(f"`{change}`" for change in run.changes))
    if run.trees is not None and run.trees != table.trees:
        found.append(f"judged by {run.trees:,} trees")
    if not run.judged:
        found.append("not judged by trees")
    if is_chosen:
        found.append("**chosen by validation perplexity**")
    return "".join(f"; {remark}" for remark in found)


def baseline(
    name: str, table: Table, runs: Sequence[Induced], columns: Sequence[tuple[str, Callable[[list[Induced]], str]]]
) -> list[str]:
    """F1 of trees that need no grammar, as an evaluation on all trees of the table has it."""
    judged = [run for run in runs if run.data == table.data and run.trees == table.trees]
    if not judged:
        return ["not run", *[""] * (len(columns) - 1)]
    found = []
    for title, _ in columns:
        of, _, convention = title.partition(" F1, ")
        found.append(spread([judged[0].f1(of, convention, name)]) if convention else "")
    return found


def described(run: Induced) -> str:
    """A run by itself: its figures, and what repeats it."""
    command = run.evaluation.get("command") or f"rankfold train --recipe {run.run.name}/{RECIPE}"
    figures = [
        f"sentence F1 {spread([run.f1('sentence', 'uf1')])} (uf1), {spread([run.f1('sentence', 'kim')])} (kim)",
        f"valid perplexity {valid([run])}",
        f"updates {updates([run])}, on {run.run.gpu or 'a CPU'}",
    ]
    return f"- `{run.run.name}`: {'; '.join(figures)}; `{command}`"


def _bounded(shown: str, group: Sequence[Induced]) -> str:
    return f"{shown} (bound)" if shown != NONE and any(run.bound for run in group) else shown
