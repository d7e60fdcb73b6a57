"""The page of grammars: F1 and perplexity of every induction, next to what is published.

A line of a table is of runs that differ by their seed alone: means with their spread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import marks
from benchmarks.results.grammar_runs import (
    Induced,
    Row,
    Table,
    belongs,
    choose_by_validation,
    groups,
    mean,
    read_published,
    select_inductions,
)
from benchmarks.results.pictures import draw_curves, draw_symbols
from benchmarks.results.runs import FAITHFUL, Run, footnote
from rankfold.errors import DataError
from rankfold.models.config import FACTORED, AnyConfig, GrammarConfig
from rankfold.training.recipes import load_recipe
from rankfold.training.run_dir import RECIPE

PAGE, SYMBOLS, CURVES = "grammars.md", "grammars-symbols.png", "grammars-curves.png"
KIND = "grammars"
EXTRA = ("curves", "runs", "seeds")  # marks that are no tables
OTHERS = "ptb"  # the table that has runs of no row
NONE = "-"

Cell = Callable[[list[Induced]], str]


def write(folder: Path, runs: Sequence[Run], *, pictures: bool = True) -> int:
    """Replace what stands between the marks of the page, and draw the pictures; how many runs there are.

    A folder without the page is left alone, unless it holds runs of grammars.
    """
    found, path = select_inductions(runs), folder / PAGE
    if not path.exists():
        if found:
            raise DataError(f"{path}: no such file, but {found[0].run.name} is a run of a grammar, which goes there.")
        return 0
    tables, rows = read_published()
    pages = marks.pages_of(folder, PAGE)
    names = [name for page in pages for name in marks.find(folder / page, KIND)]
    if sorted(names) != sorted([*tables, *EXTRA]):
        raise DataError(
            f"{path}: has marks for {', '.join(names) or 'nothing'}, but those of the page are "
            f"{', '.join([*tables, *EXTRA])}.\n"
            "  A table goes between <!-- grammars NAME --> and <!-- end of grammars -->."
        )
    own = [row for row in rows if row.table == "symbols"]
    sized = [run for run in found if run.judged and any(belongs(run, row, tables["symbols"]) for row in own)]
    if len({run.model.num_nonterminals for run in sized}) < 2:
        sized = []  # one size is no comparison
    curved = [run for run in found if run.curve]
    if pictures:
        for draw, drawn, name in ((draw_symbols, sized, SYMBOLS), (draw_curves, curved, CURVES)):
            if drawn:
                draw(drawn, folder / name)

    def body(name: str) -> str:
        if name == "runs":
            return "\n".join(map(_describe, found)) or "None yet."
        if name == "seeds":
            return selected_seeds(found)
        if name == "curves":
            shown = f"![F1 of a sample of trees against updates, one line per run]({CURVES})"
            return shown if curved else "No run has a curve yet."
        table = section(name, tables, rows, found)
        picture = f"![F1 and perplexity against the number of preterminals]({SYMBOLS})"
        return marks.join(table, picture if name == "symbols" and sized else "")

    marks.replace(folder, pages, KIND, body)
    return len(found)


def section(name: str, tables: dict[str, Table], rows: Sequence[Row], runs: Sequence[Induced]) -> str:
    """A table, one line a group of seeds, and its notes."""
    table, columns, beside = tables[name], COLUMNS[name], BESIDE.get(name)
    own = [row for row in rows if row.table == name]
    found = {row: groups([run for run in runs if belongs(run, row, table)]) for row in own if not row.baseline}
    marked = (
        choose_by_validation([group for row in found.values() for group in row])
        if any(row.family for row in own)
        else []
    )
    notes: list[str] = []
    lines = []
    for row in own:
        label = row.model + footnote(row.source, row.note, notes)
        published_cell = [_figures(row)] if beside else []
        if row.baseline:
            lines.append([label, *published_cell, *_baseline(row.baseline, table, runs, columns)])
            continue
        for group in found[row]:
            sizes = not row.recipe or _sizes(load_recipe(row.recipe).model) != _sizes(group[0].model)
            title = label + _remarks(group, table, is_chosen=group in marked, with_sizes=sizes)
            lines.append([title, *published_cell, *(cell(group) for _, cell in columns)])
        if not found[row]:
            lines.append([label, *published_cell, "not run", *[""] * (len(columns) - 1)])
    if name == OTHERS:
        shown = [run for run in runs if any(belongs(run, row, tables[row.table]) for row in rows if not row.baseline)]
        others = [run for run in runs if run not in shown]
        for group in groups(others):
            title = ", ".join(run.run.name for run in group) + _remarks(group, table, with_sizes=True)
            lines.append([title, "-", *(cell(group) for _, cell in columns)])
    head = [FIRST.get(name, "model"), *([beside] if beside else []), *(title for title, _ in columns)]
    return marks.join(marks.table(head, lines, left=(0, len(head) - 1)), marks.number_notes(notes))


def selected_seeds(runs: Sequence[Induced]) -> str:
    """Seeds of one setting, the one with the lowest validation perplexity next to the others: is its F1 higher?"""
    lines, right = [], 0
    for group in groups(runs):
        scored = [
            (run.run.valid, f1) for run in group if (f1 := run.f1("sentence", "uf1")) is not None and run.run.valid
        ]
        if len(scored) < 2:
            continue
        chosen, f1s = min(scored)[1], [f1 for _, f1 in scored]
        right += chosen == max(f1s)
        perplexities = _spread([valid for valid, _ in scored])
        lines.append([_names(group), perplexities, f"{chosen:.1f}", f"{mean(f1s):.1f}", f"{max(f1s):.1f}"])
    if not lines:
        return "No setting has two seeds yet."
    head = ("seeds", "valid perplexity", "F1 of the lowest perplexity", "mean F1", "highest F1")
    said = f"The lowest validation perplexity has the highest F1 in {right} of {len(lines)} settings."
    return marks.join(marks.table(head, lines, left=(0,)), said)


def _f1(group: Sequence[Induced], of: str, convention: str) -> str:
    """F1 of the grammars, in percent."""
    return _spread([run.f1(of, convention) for run in group])


def _valid(group: Sequence[Induced]) -> str:
    """The best validation perplexity."""
    return _mark_bound(_spread([run.run.valid for run in group]), group)


def _perplexity(group: Sequence[Induced]) -> str:
    """The perplexity of the trees' words."""
    return _mark_bound(_spread([run.perplexity for run in group]), group)


def _seeds(group: Sequence[Induced]) -> str:
    """The seeds."""
    return ", ".join(str(run.seed) for run in group)


def _updates(group: Sequence[Induced]) -> str:
    """Updates, and whether they are all that were planned."""
    planned = group[0].run.config.train.updates
    reached = sorted({run.updates for run in group})
    shown = " to ".join(f"{number:,}" for number in dict.fromkeys([reached[0], reached[-1]]))
    if not all(run.finished for run in group):
        return f"{shown} of {planned:,}, cut short"
    return shown if reached == [planned] else f"{shown} of {planned:,}, stopped early"


def _minutes(group: Sequence[Induced]) -> str:
    """Of training, per run."""
    on_gpu = all(run.run.gpu for run in group)
    return f"{mean([run.minutes for run in group]):.1f}" + ("" if on_gpu else " (CPU)")


def _names(group: Sequence[Induced]) -> str:
    """The runs' names."""
    return ", ".join(f"`{run.run.name}`" for run in group)


def _spread(values: Sequence[float | None]) -> str:
    """The mean, with the lowest and the highest where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    shown = f"{mean(known):.1f}"
    return shown if len(known) == 1 else f"{shown} ({min(known):.1f} to {max(known):.1f})"


def _figures(row: Row) -> str:
    """What the paper has: F1 (mean / best, convention), or perplexity."""
    figures = [row.valid] if row.valid is not None else [row.f1, row.best]
    shown = " / ".join(f"{x:.2f}" if x == row.valid else f"{x:g}" for x in figures if x is not None)
    if not shown:
        return NONE
    named = [row.convention, "second hand" if row.second_hand else ""]
    remark = ", ".join(name for name in named if name)
    return f"{shown} ({remark})" if remark else shown


def _sizes(model: AnyConfig) -> str:
    """The numbers of symbols, and the rank where there is one."""
    assert isinstance(model, GrammarConfig)
    rank = f", rank {model.rank:,}" if model.family in (*FACTORED, "lpcfg") else ""
    return f"{model.num_nonterminals:,} / {model.num_preterminals:,}{rank}"


def _remarks(group: Sequence[Induced], table: Table, *, is_chosen: bool = False, with_sizes: bool = False) -> str:
    """What sets a line apart from others of its row."""
    run = group[0]
    found = []
    if with_sizes:
        found.append(_sizes(run.model))
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


def _baseline(name: str, table: Table, runs: Sequence[Induced], columns: Sequence[tuple[str, Cell]]) -> list[str]:
    """F1 of trees that need no grammar, as an evaluation on all trees of the table has it."""
    judged = [run for run in runs if run.data == table.data and run.trees == table.trees]
    if not judged:
        return ["not run", *[""] * (len(columns) - 1)]
    found = []
    for title, _ in columns:
        of, _, convention = title.partition(" F1, ")
        found.append(_spread([judged[0].f1(of, convention, name)]) if convention else "")
    return found


def _describe(run: Induced) -> str:
    """A run by itself: its figures, and what repeats it."""
    command = run.evaluation.get("command") or f"rankfold train --recipe {run.run.name}/{RECIPE}"
    figures = [
        f"sentence F1 {_spread([run.f1('sentence', 'uf1')])} (uf1), {_spread([run.f1('sentence', 'kim')])} (kim)",
        f"valid perplexity {_valid([run])}",
        f"updates {_updates([run])}, on {run.run.gpu or 'a CPU'}",
    ]
    return f"- `{run.run.name}`: {'; '.join(figures)}; `{command}`"


def _mark_bound(shown: str, group: Sequence[Induced]) -> str:
    return f"{shown} (bound)" if shown != NONE and any(run.bound for run in group) else shown


UF1: tuple[str, Cell] = ("sentence F1, uf1", lambda g: _f1(g, "sentence", "uf1"))
KIM: tuple[str, Cell] = ("sentence F1, kim", lambda g: _f1(g, "sentence", "kim"))
CORPUS: tuple[str, Cell] = ("corpus F1, uf1", lambda g: _f1(g, "corpus", "uf1"))
DISTINCT: tuple[str, Cell] = ("corpus F1, uf1_distinct", lambda g: _f1(g, "corpus", "uf1_distinct"))
VALID: tuple[str, Cell] = ("valid perplexity", _valid)
TEST: tuple[str, Cell] = ("perplexity of the trees' words", _perplexity)
TAIL: list[tuple[str, Cell]] = [
    ("seeds", _seeds),
    ("updates", _updates),
    ("GPU minutes", _minutes),
    ("runs", _names),
]
FIRST = {"symbols": "nonterminals / preterminals", "children": "pairs of children of low rank"}
BESIDE = {
    "ptb": "published sentence F1",
    "lpcfg": "published valid perplexity",
    "children": "published valid perplexity",
}
COLUMNS: dict[str, list[tuple[str, Cell]]] = {
    "ptb": [UF1, KIM, CORPUS, VALID, TEST, *TAIL],
    "symbols": [UF1, KIM, VALID, TEST, *TAIL],
    "lpcfg": [VALID, TEST, UF1, KIM, *TAIL],
    "children": [VALID, TEST, UF1, KIM, *TAIL],
    "gum": [DISTINCT, UF1, KIM, VALID, TEST, *TAIL],
    "cess-esp": [DISTINCT, UF1, KIM, VALID, TEST, *TAIL],
}
