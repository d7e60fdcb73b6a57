"""`python -m benchmarks structures`: one table a structure of docs/benchmarks.md, from the committed records of a GPU.

A row is a gradient step of a record `steps-NAME.json`: the authors' time, ours, their ratio, and the floor of the
machine that the record was made on. A step that is slower than the authors' is in bold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import marks
from rankfold.cli.output import three_digits
from rankfold.errors import DataError

RECORDS = ("million", "frames", "grammars")
STRUCTURES = {
    "Chains": ("hmm", "lhmm", "rank", "banded", "block", "frame_hmm", "frame_lhmm"),
    "Segments": ("hsmm", "lhsmm"),
    "Trees": ("npcfg", "cpcfg", "lpcfg", "tnpcfg", "spcfg", "rankpcfg"),
}
HEAD = ("model", "batch x length", "precision", "authors ms", "ours ms", "ratio", "floor ms", "share of the floor")


def main(given: Sequence[str]) -> int:
    """Write the tables between the marks of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks structures", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the page (default: %(default)s)")
    docs: Path = parser.parse_args(given).docs
    body = tables([_record(docs / "results" / f"steps-{name}.json") for name in RECORDS])
    if not marks.replace(docs, ["benchmarks.md"], "structures", lambda _: body):
        raise DataError(f"{docs / 'benchmarks.md'}: has no part between <!-- structures --> and its end.")
    return 0


def tables(records: Iterable[dict[str, Any]]) -> str:
    """A heading and a table for each structure, the machine above."""
    records = list(records)
    rows = [row for record in records for row in record["rows"] if row["step_ms"]]
    made = "; ".join(dict.fromkeys(f"{x['device']}, torch {x['torch']}, {x['date']}" for x in records))
    parts = [f"{made}."]
    for name, families in STRUCTURES.items():
        own = [_line(row) for family in families for row in rows if row["family"] == family]
        if own:
            parts += [f"### {name} on a GPU", marks.table(HEAD, own, left=range(3))]
    return "\n\n".join(parts)


def _line(row: dict[str, Any]) -> list[str]:
    ours, authors, floor = row["step_ms"]["median"], row["published_ms"], row["floor_ms"]
    ratio = "-" if authors is None else f"{three_digits(authors / ours)}x"
    return [
        row["name"],
        f"{row['batch']} x {row['length']}",
        row["precision"],
        "-" if authors is None else three_digits(authors),
        three_digits(ours),
        f"**{ratio}**" if authors is not None and authors < ours else ratio,
        "-" if floor is None else three_digits(floor),
        "-" if floor is None else f"{floor / ours:.1%}",
    ]


def _record(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    return found
