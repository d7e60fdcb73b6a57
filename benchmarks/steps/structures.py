"""`python -m benchmarks structures`: one table a structure of docs/benchmarks.md, from committed records.

A row is a gradient step of a record `steps-NAME.json`, or a row of `timed-NAME.json`: the time of the authors' code or
of the best peer, ours, their ratio, our time over the time aimed at, and the floor of the machine that the record was
made on. A step that is slower than the peer's, or than its aim, is in bold. Records that are not there are named below
the tables, with the commands that make them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import marks
from benchmarks.steps.aims import aimed_ms
from rankfold.cli.output import three_digits
from rankfold.errors import DataError

RECORDS = ("million", "frames", "grammars", "cpu")
STRUCTURES = {
    "Chains": ("hmm", "lhmm", "rank", "banded", "block", "frame_hmm", "frame_lhmm"),
    "Segments": ("hsmm", "lhsmm"),
    "Trees": ("npcfg", "cpcfg", "lpcfg", "tnpcfg", "spcfg", "rankpcfg"),
    "Factor graph grammars": (),
}
# What else there is to time, and how: `timed-NAME.json`.
TIMED = {
    "few": ("chains of few states next to hmmlearn, on a CPU", "python -m benchmarks few"),
    "ways": ("charts and segments with few launches next to those before them, on a GPU", "python -m benchmarks gpu"),
    "long": ("chains of 15 to 100 states, on a GPU", "python -m benchmarks long"),
    "segments": ("semi-Markov chains with durations to 1,000, on a GPU", "python -m benchmarks segments"),
    "fgg-cpu": ("a PCFG of 5 / 8 symbols as a factor graph grammar, on a CPU", "python -m benchmarks fgg"),
    "fgg-gpu": ("a PCFG of 30 / 60 symbols as a factor graph grammar, on a GPU", "python -m benchmarks fgg 30 60 4 40"),
}
HEAD = (
    "on",
    "model",
    "batch x length",
    "precision",
    "peer",
    "peer ms",
    "ours ms",
    "ratio",
    "over its aim",
    "floor ms",
    "share",
)
Key = tuple[bool, str, str, str]  # of a step: whether on a GPU, name, size, precision


def main(given: Sequence[str]) -> int:
    """Write the tables between the marks of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks structures", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the page (default: %(default)s)")
    docs: Path = parser.parse_args(given).docs
    body = page(docs / "results")
    if not marks.replace(docs, ["benchmarks.md"], "structures", lambda _: body):
        raise DataError(f"{docs / 'benchmarks.md'}: has no part between <!-- structures --> and its end.")
    return 0


def page(folder: Path) -> str:
    """The tables of all records of a folder."""
    steps = [_record(folder / f"steps-{name}.json") for name in RECORDS]
    found = {name: folder / f"timed-{name}.json" for name in TIMED}
    return tables(steps, {name: _record(path) for name, path in found.items() if path.exists()})


def tables(steps: Sequence[dict[str, Any]], timed: dict[str, dict[str, Any]]) -> str:
    """The machines, a heading and a table for each structure, and what is not timed."""
    every = [*steps, *timed.values()]
    made = "; ".join(dict.fromkeys(f"{x['device']}, torch {x['torch']}, {x['date']}" for x in every))
    parts = [f"{made}."]
    later = {_key(x, row): (x["date"], row["ours_ms"]) for x in timed.values() for row in x["rows"]}
    known = {_key(x, row) for x in steps for row in x["rows"]}
    for name, families in STRUCTURES.items():
        own = [_step(x, row, later) for f in families for x in steps for row in x["rows"] if row["family"] == f]
        own += [
            _timed(x, row)
            for x in timed.values()
            for row in x["rows"]
            if row["structure"] == name and _key(x, row) not in known
        ]
        own = sorted((line for line in own if line), key=lambda line: line[0])
        if own:
            parts += [f"### {name}", marks.table(HEAD, own, left=range(5))]
    missing = [
        f"- {what}: not timed; `{command} --json docs/results/timed-{name}.json`"
        for name, (what, command) in TIMED.items()
        if name not in timed
    ]
    return "\n\n".join([*parts, "\n".join(missing)] if missing else parts)


def _key(record: dict[str, Any], row: dict[str, Any]) -> Key:
    """Which step it is, whatever record it is in."""
    size = row["size"] if "size" in row else f"{row['batch']} x {row['length']}"
    return "NVIDIA" in record["device"], row["name"], size, row["precision"]


def _step(record: dict[str, Any], row: dict[str, Any], later: dict[Key, tuple[str, float]]) -> list[str]:
    """A gradient step next to the authors' code; on a CPU, where they have published nothing, next to plain torch.

    Where another record has timed it later, it has that time.
    """
    if not row["step_ms"]:
        return []
    dated = record["date"], row["step_ms"]["median"]
    _, ours = max(dated, later.get(_key(record, row), dated), key=lambda x: x[0])
    on_gpu = "NVIDIA" in record["device"]
    plain = row["reference_ms"]["median"] if row.get("reference_ms") else None
    peer, ms = ("authors", row["published_ms"]) if on_gpu else ("plain torch", plain)
    size = f"{row['batch']} x {row['length']}"
    what = ("GPU" if on_gpu else "CPU", row["name"], size, row["precision"])
    aim = aimed_ms(*what, ms)
    return [*what, "-" if ms is None else peer, *_times(ms, ours, aim, row["floor_ms"])]


def _timed(record: dict[str, Any], row: dict[str, Any]) -> list[str]:
    what = (record["on"], row["name"], row["size"], row["precision"])
    aim = aimed_ms(*what, row["peer_ms"])
    return [*what, row["peer"], *_times(row["peer_ms"], row["ours_ms"], aim, row["floor_ms"])]


def _times(peer: float | None, ours: float, aim: float | None, floor: float | None) -> list[str]:
    ratio = "-" if peer is None else f"{three_digits(peer / ours)}x"
    over = "-" if aim is None else f"{three_digits(ours / aim)}x"
    return [
        "-" if peer is None else three_digits(peer),
        three_digits(ours),
        f"**{ratio}**" if peer is not None and peer < ours else ratio,
        f"**{over}**" if aim is not None and aim < ours else over,
        "-" if floor is None else three_digits(floor),
        "-" if floor is None else f"{floor / ours:.1%}",
    ]


def _record(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    return found
