"""The page of grammars: F1 and perplexity of every induction in a folder of results, beside what is published.

Every table stands between two marks of `grammars.md`; what is outside them is left alone. Read next:
`grammar_runs.py`, which reads the runs, `grammar_cells.py`, which writes a cell, `published-grammars.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import grammar_cells as cells
from benchmarks.grammar_runs import Induced, Row, Table, belongs, chosen, groups, induced, published
from benchmarks.runs import Run, footnote
from rankfold.errors import DataError
from rankfold.training.recipes import load_recipe

PAGE, SYMBOLS, CURVES = "grammars.md", "grammars-symbols.png", "grammars-curves.png"
MARK = re.compile(r"<!-- grammars (?P<name>[\w-]+) -->.*?<!-- end of grammars -->", re.DOTALL)
EXTRA = ("curves", "runs")  # marks that are no tables
OTHERS = "ptb"  # the table that has runs of no row

Cell = Callable[[list[Induced]], str]
UF1: tuple[str, Cell] = ("sentence F1, uf1", lambda g: cells.f1(g, "sentence", "uf1"))
KIM: tuple[str, Cell] = ("sentence F1, kim", lambda g: cells.f1(g, "sentence", "kim"))
CORPUS: tuple[str, Cell] = ("corpus F1, uf1", lambda g: cells.f1(g, "corpus", "uf1"))
DISTINCT: tuple[str, Cell] = ("corpus F1, uf1_distinct", lambda g: cells.f1(g, "corpus", "uf1_distinct"))
VALID: tuple[str, Cell] = ("valid perplexity", cells.valid)
TEST: tuple[str, Cell] = ("perplexity of the trees' words", cells.perplexity)
TAIL: list[tuple[str, Cell]] = [
    ("seeds", cells.seeds),
    ("updates", cells.updates),
    ("GPU minutes", cells.minutes),
    ("runs", cells.names),
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


def write(folder: Path, runs: Sequence[Run], *, pictures: bool = True) -> int:
    """Replace what stands between the marks of the page, and draw the pictures; how many runs there are.

    A folder without the page is left alone, unless it holds runs of grammars.
    """
    found, path = induced(runs), folder / PAGE
    if not path.exists():
        if found:
            raise DataError(f"{path}: no such file, but {found[0].run.name} is a run of a grammar, which goes there.")
        return 0
    text = path.read_text(encoding="utf-8")
    tables, rows = published()
    names = [mark["name"] for mark in MARK.finditer(text)]
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
    if pictures and (sized or curved):
        from benchmarks.grammar_pictures import draw_curves, draw_symbols

        for draw, drawn, name in ((draw_symbols, sized, SYMBOLS), (draw_curves, curved, CURVES)):
            if drawn:
                draw(drawn, folder / name)

    def body(name: str) -> str:
        if name == "runs":
            return "\n".join(map(cells.described, found)) or "None yet."
        if name == "curves":
            shown = f"![F1 of a sample of trees against updates, one line per run]({CURVES})"
            return shown if curved else "No run has a curve yet."
        table = section(name, tables, rows, found)
        picture = f"![F1 and perplexity against the number of preterminals]({SYMBOLS})"
        return f"{table}\n\n{picture}" if name == "symbols" and sized else table

    made = MARK.sub(lambda m: f"<!-- grammars {m['name']} -->\n\n{body(m['name'])}\n\n<!-- end of grammars -->", text)
    path.write_text(made, encoding="utf-8")
    return len(found)


def section(name: str, tables: dict[str, Table], rows: Sequence[Row], runs: Sequence[Induced]) -> str:
    """A table, one line a group of seeds, and its notes."""
    table, columns, beside = tables[name], COLUMNS[name], BESIDE.get(name)
    own = [row for row in rows if row.table == name]
    found = {row: groups([run for run in runs if belongs(run, row, table)]) for row in own if not row.baseline}
    marked = chosen([group for row in found.values() for group in row]) if any(row.family for row in own) else []
    notes: list[str] = []
    lines = []
    for row in own:
        label = row.model + footnote(row.source, row.note, notes)
        published_cell = [cells.published(row)] if beside else []
        if row.baseline:
            lines.append([label, *published_cell, *cells.baseline(row.baseline, table, runs, columns)])
            continue
        for group in found[row]:
            sizes = not row.recipe or cells.sizes(load_recipe(row.recipe).words) != cells.sizes(group[0].model)
            title = label + cells.remarks(group, table, is_chosen=group in marked, with_sizes=sizes)
            lines.append([title, *published_cell, *(cell(group) for _, cell in columns)])
        if not found[row]:
            lines.append([label, *published_cell, "not run", *[""] * (len(columns) - 1)])
    if name == OTHERS:
        shown = [run for run in runs if any(belongs(run, row, tables[row.table]) for row in rows if not row.baseline)]
        others = [run for run in runs if run not in shown]
        for group in groups(others):
            title = ", ".join(run.run.name for run in group) + cells.remarks(group, table, with_sizes=True)
            lines.append([title, "-", *(cell(group) for _, cell in columns)])
    head = [FIRST.get(name, "model"), *([beside] if beside else []), *(title for title, _ in columns)]
    aligned = "|---|" + "---:|" * (len(head) - 2) + "---|"
    drawn = "\n".join(["| " + " | ".join(head) + " |", aligned, *("| " + " | ".join(line) + " |" for line in lines)])
    numbered = "\n".join(f"{i}. {note}" for i, note in enumerate(notes, 1))
    return f"{drawn}\n\n{numbered}" if numbered else drawn
