"""`rankfold data`: the texts and music the library knows, how to get them, and how to prepare one of your own."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rankfold.cli.output import say, to_json
from rankfold.data import catalog
from rankfold.data.arrow_files import is_arrow
from rankfold.data.prepare import Megabytes, Prepared, SplitBy, prepare
from rankfold.data.raw_text import Layout
from rankfold.data.tables import Table, prepare_tables
from rankfold.data.tokenize import Kind
from rankfold.errors import DataError

COMPUTES = False
DESCRIPTION = (
    "List the texts and music the library knows, put one into a folder (a text as train.txt, valid.txt and test.txt), "
    "or prepare a text of your own in that way."
)
EXAMPLE = "example:\n  rankfold data list"
GET_EXAMPLE = """\
example:
  rankfold data get ptb-lm --out ptb                  (downloads 6 MB)
  rankfold data get ptb-lm --out ptb --from FOLDER    (copies, without a network)"""
PREPARE_EXAMPLE = """\
example:
  rankfold data prepare book.txt --out book
  rankfold data prepare *.txt.gz --out books --split file --seed 7
  rankfold data prepare walks.csv --out walks --group recording --label activity
  zcat news.gz | rankfold data prepare - --out news --tokenizer characters"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(name: str, run: Callable[[argparse.Namespace], int], epilog: str, about: str, more: str) -> Any:
        action = actions.add_parser(name, help=about, description=more, epilog=epilog)
        action.set_defaults(run=run)
        return action

    listing = add("list", run_list, EXAMPLE, "names, sizes and licences", "Names, sizes and licences.")
    more = "Download or copy a text, check it, and print where each split is. What broke off is resumed."
    getting = add("get", run_get, GET_EXAMPLE, "put one into a folder, checked", more)
    getting.add_argument("name", metavar="NAME", help="a name from `rankfold data list`")
    getting.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the files")
    getting.add_argument(
        "--from", dest="source", metavar="FOLDER", help="copy from a folder, or download from this base address"
    )
    about = "cut a text of your own into sentences, tokens and splits"
    more = (
        "Cut texts (plain or .gz) into sentences, tokens and splits, in a new folder for rankfold train "
        "--data: train.txt, valid.txt, test.txt, and prepared.json, which says how they were made."
    )
    preparing = add("prepare", run_prepare, PREPARE_EXAMPLE, about, more)
    preparing.add_argument(
        "files", nargs="+", metavar="FILE", help="texts in UTF-8, - is standard input; or tables in .csv or .parquet"
    )
    preparing.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the result")
    preparing.add_argument(
        "--tokenizer",
        choices=get_args(Kind),
        default="simple",
        help="simple: words and punctuation (default); spaces: words are apart already; characters; subwords: trained "
        "on the text, needs the package tokenizers",
    )
    preparing.add_argument("--types", type=int, default=4000, metavar="N", help="how many subwords (default: 4000)")
    layout = (
        "lines of a paragraph belong together (wrapped), or each is a paragraph, or a sentence; auto: by the first "
        "megabyte (default)"
    )
    split = (
        "held out are whole files, documents (parted by blank lines) or lines; auto: the first of these of which "
        "there are 20 (default)"
    )
    for name, kinds, text in (("--layout", Layout, layout), ("--split", SplitBy, split)):
        preparing.add_argument(name, choices=("auto", *get_args(kinds)), default="auto", help=text)
    preparing.add_argument("--columns", metavar="A,B", help="tables: which columns are features (default: all)")
    preparing.add_argument("--group", metavar="COLUMN", help="tables: rows of one value are a recording")
    preparing.add_argument("--label", metavar="COLUMN", help="tables: what each row is")
    preparing.add_argument("--seed", type=int, default=1, help="of the draw of what is held out (default: 1)")
    for action in (listing, getting, preparing):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run_list(arguments: argparse.Namespace) -> int:
    """Print the catalogue."""
    entries = catalog.DATASETS.values()
    if arguments.json:
        print(to_json({entry.name: _record(entry) for entry in entries}, indent=2))
    else:
        print("\n\n".join(map(_text, entries)))
    return 0


def run_get(arguments: argparse.Namespace) -> int:
    """Fetch a dataset and print its paths."""
    dataset = catalog.find_dataset(arguments.name)
    print(textwrap.fill(f"licence: {dataset.licence}", 100), file=sys.stderr)
    results = catalog.fetch(arguments.name, arguments.out, source=arguments.source, progress=_Quarters())
    if arguments.json:
        print(to_json({result.split: {"path": str(result.path), "action": result.action} for result in results}))
    else:
        print("\n".join(f"{result.split:<6} {result.action:<14} {result.path}" for result in results))
    return 0


def run_prepare(arguments: argparse.Namespace) -> int:
    """Prepare a text, or tables, and print the counts."""
    found: Prepared | Table
    tables = [Path(file).suffix.lower() == ".csv" or is_arrow(file) for file in arguments.files]
    if any(tables):
        if not all(tables):
            raise DataError(
                f"{arguments.files[tables.index(False)]} is no table, but other files are: one kind, please."
            )
        columns = arguments.columns.split(",") if arguments.columns else ()
        named = {"columns": columns, "group": arguments.group, "label": arguments.label}
        found = prepare_tables(arguments.files, arguments.out, seed=arguments.seed, **named)
        return _tell_prepared(found, arguments)
    if arguments.columns or arguments.group or arguments.label:
        raise DataError("--columns, --group and --label are for tables, files in .csv or .parquet.")
    found = prepare(
        arguments.files,
        arguments.out,
        tokenizer=arguments.tokenizer,
        layout=None if arguments.layout == "auto" else arguments.layout,
        split_by=None if arguments.split == "auto" else arguments.split,
        seed=arguments.seed,
        num_types=arguments.types,
        progress=Megabytes("read", say),
    )
    return _tell_prepared(found, arguments)


def _tell_prepared(found: Prepared | Table, arguments: argparse.Namespace) -> int:
    print(to_json(asdict(found), indent=2) if arguments.json else "\n".join(found.lines()))
    say(f"next: rankfold train --data {arguments.out} --out RUN")
    return 0


class _Quarters:
    """Progress on standard error, at most five lines per file."""

    def __init__(self) -> None:
        self._said = ("", -1)

    def __call__(self, name: str, done: int, total: int) -> None:
        now = (name, 4 * done // total)
        if now != self._said:
            self._said = now
            print(f"  {name}: {done:,} of {total:,} bytes", file=sys.stderr, flush=True)


def _record(dataset: catalog.Dataset) -> dict[str, Any]:
    return {**dataset._asdict(), "files": [file._asdict() for file in dataset.files]}


def _text(dataset: catalog.Dataset) -> str:
    about = textwrap.fill(dataset.description, 100, initial_indent="  ", subsequent_indent="  ")
    terms = textwrap.fill(f"licence: {dataset.licence}", 100, initial_indent="  ", subsequent_indent="    ")
    lines = [f"{dataset.name} ({dataset.num_bytes / 1e6:.1f} MB)", about]
    width = max(len(file.split) for file in dataset.files) + 1
    units = ("pieces", "frames") if dataset.kind == "music" else ("sentences", "words")
    for file in dataset.files:
        lines.append(f"    {file.split:<{width}}{file.num_sentences:>9,} {units[0]} {file.num_words:>11,} {units[1]}")
    if dataset.origin:
        lines.append(f"  not downloaded: give --from FOLDER. Public, in another form, at\n    {dataset.origin}")
    return "\n".join([*lines, terms])
