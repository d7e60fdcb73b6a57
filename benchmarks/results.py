"""`python -m benchmarks.results docs/results`: the pages of results, written from the runs in their folder.

Every table stands between two marks of `hmm-language-models.md`; what is outside them is left alone. So it is in
`grammars.md` and `music.md`, which `grammars.py` and `music.py` write; `steps.py` and `sweeps.py` write the tables of
gradient steps, `ablations.py` those of single settings, `precisions.py` those of `train.precision`.
Read next: `runs.py`, which reads a run; `published.toml`, papers' figures.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ablations, grammars, music, precisions, steps, sweeps
from benchmarks.runs import Row, Run, belongs, ending, footnote, published, read_runs
from rankfold.errors import DataError
from rankfold.models.config import ModelConfig

PAGE, PICTURE = "hmm-language-models.md", "curves.png"
MARK = re.compile(r"<!-- results (?P<corpus>[\w-]+) -->.*?<!-- end of results -->", re.DOTALL)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page and the picture; 2 if something in the folder cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results", description="Write the tables of a results page from its runs."
    )
    parser.add_argument("folder", type=Path, help=f"folder of {PAGE} and of one folder a run")
    parser.add_argument("--no-picture", action="store_true", help="leave the pictures alone")
    given = parser.parse_args(arguments)
    try:
        found = read_runs(given.folder)
        runs = [run for run in found if isinstance(run.config.model, ModelConfig)]
        write(given.folder, runs)
        num_grammars = grammars.write(given.folder, found, pictures=not given.no_picture)
        num_music = music.write(given.folder, found)
        steps.write(given.folder, [PAGE, grammars.PAGE, music.PAGE])
        ablations.write(given.folder, [PAGE])
        precisions.write(given.folder, [PAGE])
        sweeps.write(given.folder, [PAGE], pictures=not given.no_picture)
    except DataError as error:
        print(f"benchmarks.results: {error}", file=sys.stderr)
        return 2
    if runs and not given.no_picture:
        from benchmarks.curves import draw

        draw(runs, given.folder / PICTURE)
    others = f"{num_grammars} in {grammars.PAGE}, {num_music} in {music.PAGE}"
    print(f"{len(runs)} runs in {given.folder / PAGE}, {others}", file=sys.stderr)
    return 0


def write(folder: Path, runs: Sequence[Run]) -> None:
    """Replace what stands between the marks of the page."""
    path = folder / PAGE
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    rows = published()
    corpora = [mark["corpus"] for mark in MARK.finditer(text)]
    if sorted(corpora) != sorted({row.corpus for row in rows}):
        raise DataError(
            f"{path}: has marks for {', '.join(corpora) or 'nothing'}, but the papers' rows are of "
            f"{', '.join(sorted({row.corpus for row in rows}))}.\n"
            "  A table goes between <!-- results NAME --> and <!-- end of results -->."
        )
    made = MARK.sub(lambda mark: section(mark["corpus"], rows, runs), text)
    path.write_text(made, encoding="utf-8")


def section(corpus: str, rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """The marks of a corpus with its table, notes and commands between them."""
    own = [row for row in rows if row.corpus == corpus]
    lines: list[str] = []
    notes: list[str] = []
    shown: list[Run] = []
    for row in own:
        mark = footnote(row.source, row.note, notes)
        found = [run for run in runs if belongs(run, row)]
        shown += found
        lines += [_line(row.model + mark, row, run) for run in found] or [_line(row.model + mark, row, None)]
    others = [run for run in runs if run.corpus == corpus and run not in shown]
    lines += [_line(run.name, None, run) for run in others]
    blocks = [
        "\n".join(["| " + " | ".join(HEAD) + " |", "|---|" + "---:|" * 4 + "---|" + "---:|" * 3 + "---|", *lines]),
        "\n".join(f"{i}. {note}" for i, note in enumerate(notes, 1)),
        "\n".join(f"- `{run.name}`: `{run.command}`" for run in [*shown, *others]),
    ]
    body = "\n\n".join(block for block in blocks if block)
    return f"<!-- results {corpus} -->\n\n{body}\n\n<!-- end of results -->"


def _line(model: str, row: Row | None, run: Run | None) -> str:
    figures = [row.valid, row.test] if row else [None, None]
    paper = " / ".join("-" if x is None else f"{x:g}" for x in figures) if any(figures) else "-"
    remarks = ["second hand"] if row and row.second_hand else []
    if row and any(figures) and "state carried" in row.note.lower():
        remarks.append("state carried")
    paper += f" ({', '.join(remarks)})" if remarks else ""
    if run is None:
        cells = [model, paper, "not run", *[""] * (len(HEAD) - 3)]
    else:
        cells = [
            model,
            paper,
            _perplexity(run.valid),
            _perplexity(run.test),
            _perplexity(run.train),
            run.protocol,
            *ending(run),
        ]
    return "| " + " | ".join(cells) + " |"


def _perplexity(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
