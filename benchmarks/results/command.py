"""`python -m benchmarks.results docs/results`: the pages of results, written from the runs of the folder.

    python -m benchmarks.results docs/results --add results.tar.gz     # finished runs, from `benchmarks.queue --pack`
    python -m benchmarks.results docs/results --extract NAME FOLDER    # the files of a run

Runs are kept in a file per page (`archive.py`). Every table stands between two marks of a page (`marks.py`); what is
outside them is left alone.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.results import claims, comparisons, frontiers, grammars, language_models, marks, music, summary
from benchmarks.results.archive import Record, read_archives, read_results, read_run_folders, write_archives, write_run
from benchmarks.results.runs import read_runs
from benchmarks.steps import pages as steps
from rankfold.errors import DataError
from rankfold.models.config import GrammarConfig


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
            for path, content in read_results(source).items():
                (folder / path).write_bytes(content)
                _say(f"{path}: written")
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
    runs = read_runs(folder)
    counts = {page.PAGE: page.write(folder, runs, pictures=pictures) for page in (language_models, grammars, music)}
    pages = [page for first in counts for page in marks.pages_of(folder, first)]
    steps.write(folder, pages, pictures=pictures)
    comparisons.write(folder, pages)
    summary.write(folder, runs)
    frontiers.write(folder, runs, pictures=pictures)
    claims.write(folder, runs)
    _say(", ".join(f"{num} runs in {page}" for page, num in counts.items()))


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
    parser.add_argument("folder", type=Path, help="folder of the pages and their runs")
    parser.add_argument("--no-picture", action="store_true", help="leave the pictures alone")
    parser.add_argument(
        "--add", type=Path, nargs="+", default=[], metavar="RUNS", help="a folder of run folders, or an archive of one"
    )
    parser.add_argument("--unfinished", action="store_true", help="add runs that were cut short as well")
    parser.add_argument("--remove", nargs="+", default=[], metavar="NAME", help="runs that are no longer to be shown")
    parser.add_argument("--extract", nargs=2, metavar=("NAME", "FOLDER"), help="write the files of a run; nothing else")
    return parser
