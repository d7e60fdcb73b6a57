"""`python -m benchmarks.results docs/results`: the pages of results, written from the runs of the folder.

    python -m benchmarks.results docs/results --add results.tar.gz     # finished runs, from `benchmarks.queue --pack`
    python -m benchmarks.results docs/results --extract NAME FOLDER    # the files of a run, as they were

Runs are kept in a file per page (`archive.py`). Every table stands between two marks of a page (`marks.py`); what is
outside them is left alone. This module writes `hmm-language-models.md`; `grammars.py` and `music.py` write theirs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import ablations, grammars, music, precisions
from benchmarks.archive import Record, read_archives, read_run_folders, write_archives, write_run
from benchmarks.runs import Row, Run, belongs, ending, footnote, published, read_runs
from benchmarks.steps import pages as steps
from rankfold.errors import DataError
from rankfold.models.config import ModelConfig
from rankfold.models.grammar_config import GrammarConfig

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
    """Write the pages and the pictures; 2 if something that is given cannot be read."""
    given = _parser().parse_args(arguments)
    folder: Path = given.folder
    try:
        records = {record.name: record for record in read_archives(folder)}
        if given.extract is not None:
            name, target = given.extract
            write_run(_named(records, name, folder), Path(target))
            return 0
        after = dict(records)
        for name in given.remove:
            _named(records, name, folder)
            del after[name]
        for source in given.add:
            for record in _complete(read_run_folders(source), unfinished=given.unfinished):
                _say(f"{record.name}: {'replaced' if record.name in records else 'added'}")
                after[record.name] = record
        write_archives(folder, after.values())
        try:
            write_pages(folder, pictures=not given.no_picture)
        except DataError:
            write_archives(folder, records.values())
            raise
    except DataError as error:
        _say(str(error))
        return 2
    return 0


def write_pages(folder: Path, *, pictures: bool) -> None:
    """Every page and picture, from the runs and measurements of the folder."""
    found = read_runs(folder)
    runs = [run for run in found if isinstance(run.config.model, ModelConfig)]
    write(folder, runs)
    num_grammars = grammars.write(folder, found, pictures=pictures)
    num_music = music.write(folder, found)
    steps.write(folder, [PAGE, grammars.PAGE, music.PAGE], pictures=pictures)
    ablations.write(folder, [PAGE])
    precisions.write(folder, [PAGE])
    if runs and pictures:
        from benchmarks.curves import draw

        draw(runs, folder / PICTURE)
    _say(f"{len(runs)} runs in {folder / PAGE}, {num_grammars} in {grammars.PAGE}, {num_music} in {music.PAGE}")


def _complete(records: Sequence[Record], *, unfinished: bool) -> Iterator[Record]:
    """The runs that came to their end, a grammar's with its evaluation; the others are named."""
    for record in records:
        judged = record.evaluation is not None or not isinstance(record.config.model, GrammarConfig)
        if unfinished or (record.finished and judged):
            yield record
        else:
            _say(f"{record.name}: {'not judged by trees' if record.finished else 'unfinished'}, left out")


def _named(records: Mapping[str, Record], name: str, folder: Path) -> Record:
    if name not in records:
        near = difflib.get_close_matches(name, records, n=3)
        raise DataError(f"{folder}: has no run {name}.\n  Near it: {', '.join(near) or 'none'}.")
    return records[name]


def _say(line: str) -> None:
    print(f"benchmarks.results: {line}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.results",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help=f"folder of {PAGE} and the other pages")
    parser.add_argument("--no-picture", action="store_true", help="leave the pictures alone")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], metavar="RUNS", help="a folder of run folders, or an archive of one"
    )
    parser.add_argument("--unfinished", action="store_true", help="add runs that were cut short as well")
    parser.add_argument("--remove", nargs="+", default=[], metavar="NAME", help="runs that are no longer to be shown")
    parser.add_argument("--extract", nargs=2, metavar=("NAME", "FOLDER"), help="write the files of a run; nothing else")
    return parser


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
