"""The page of HMM language models: perplexities of every run, next to what is published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.baselines import command as baselines
from benchmarks.results import marks
from benchmarks.results.pictures import draw_perplexities
from benchmarks.results.runs import Row, Run, belongs, ending, footnote, read_published
from rankfold.errors import DataError
from rankfold.files import read_json
from rankfold.models.config import ModelConfig

PAGE, PICTURE = "hmm-language-models.md", "curves.png"
KIND = "results"
HEAD = (
    "model",
    "published valid / test",
    "valid",
    "test",
    "train",
    "protocol",
    "seed",
    "updates",
    "GPU minutes",
    "run",
)
LEFT = (0, 5, 9)  # columns of words
BASELINES = "baselines"
SHORT = "chosen"  # a table of our own recipes alone, with these columns
SHORT_HEAD = ("model", "published valid / test", "valid", "test", "GPU minutes", "run")


def write(folder: Path, runs: Sequence[Run], *, pictures: bool = True) -> int:
    """Replace what stands between the marks of the page, and draw the curves; how many runs there are."""
    found, path, rows = (
        [run for run in runs if isinstance(run.config.model, ModelConfig)],
        folder / PAGE,
        read_published(),
    )
    if not path.is_file():
        raise DataError(f"{path}: no such file; the page of language models was expected.")
    pages = marks.pages_of(folder, PAGE)
    corpora = [corpus for page in pages for corpus in marks.find(folder / page, KIND)]
    if sorted(corpora) != sorted({row.corpus for row in rows}):
        raise DataError(
            f"{path}: has marks for {', '.join(corpora) or 'nothing'}, but the papers' rows are of "
            f"{', '.join(sorted({row.corpus for row in rows}))}.\n"
            "  A table goes between <!-- results NAME --> and <!-- end of results -->."
        )
    marks.replace(folder, pages, KIND, lambda corpus: section(corpus, rows, found))
    marks.replace(folder, pages, SHORT, lambda corpus: short_table(corpus, rows, found))
    marks.replace(folder, pages, BASELINES, lambda corpus: alternatives(folder, corpus))
    if found and pictures:
        draw_perplexities(found, folder / PICTURE)
    return len(found)


def section(corpus: str, rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """The table of a corpus, its notes, and the commands of its runs."""
    own = [row for row in rows if row.corpus == corpus]
    lines: list[list[str]] = []
    notes: list[str] = []
    shown: list[Run] = []
    for row in own:
        mark = footnote(row.source, row.note, notes)
        found = [run for run in runs if belongs(run, row)]
        shown += found
        lines += [_line(row.model + mark, row, run) for run in found] or [_line(row.model + mark, row, None)]
    others = [run for run in runs if run.corpus == corpus and run not in shown]
    lines += [_line(run.name, None, run) for run in others]
    return marks.join(
        marks.table(HEAD, lines, left=LEFT),
        marks.number_notes(notes),
        "\n".join(f"- `{run.name}`: `{run.command}`" for run in [*shown, *others]),
    )


def short_table(corpus: str, rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """The finished runs that are named as their recipes, which are ours, next to what is published."""
    pairs = [(row, run) for row in rows for run in runs if row.corpus == corpus and run.name == row.recipe]
    lines = [_line(row.model, row, run) for row, run in pairs if run.finished]
    columns = [HEAD.index(title) for title in SHORT_HEAD]
    chosen = [[line[i] for i in columns] for line in lines]
    return marks.table(SHORT_HEAD, chosen, left=(0, len(columns) - 1))


def alternatives(folder: Path, corpus: str) -> str:
    """The table of models without a large state space, the best last; their results may be in several files."""
    paths = [folder / f"{BASELINES}-{corpus}.json", *sorted(folder.glob(f"{BASELINES}-{corpus}-*.json"))]
    found = [read_json(path, "the results of baselines") for path in paths]
    return baselines.text({"models": {name: row for one in found for name, row in one["models"].items()}})


def _line(model: str, row: Row | None, run: Run | None) -> list[str]:
    figures = [row.valid, row.test] if row else [None, None]
    paper = " / ".join("-" if x is None else f"{x:g}" for x in figures) if any(figures) else "-"
    remarks = ["second hand"] if row and row.second_hand else []
    if row and any(figures) and "state carried" in row.note.lower():
        remarks.append("state carried")
    paper += f" ({', '.join(remarks)})" if remarks else ""
    if run is None:
        return [model, paper, "not run", *[""] * (len(HEAD) - 3)]
    values = [_perplexity(value) for value in (run.valid, run.test, run.train)]
    return [model, paper, *values, run.protocol, *ending(run)]


def _perplexity(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
