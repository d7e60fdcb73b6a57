"""Tables of gradient steps on the results pages, from what `rankfold bench --table NAME --json` printed.

A file `steps-NAME.json` of the folder is the command's whole output; its table stands between two marks of a page.
Read next: `marks.py`; `results.py`, which calls this; `src/rankfold/bench/row.py`, which measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import marks
from rankfold.errors import DataError

HEAD = ("model", "batch x length", "{} ms", "authors / {}", "authors ms", "MiB", "authors MiB", "error {}")

REPEATS = 15  # the command's own


def write(folder: Path, pages: Iterable[str]) -> int:
    """Replace what stands between the marks of the pages; how many tables there were."""
    return marks.replace(folder, pages, "steps", body)


def body(folder: Path, name: str) -> str:
    """The command, its table, and a sentence for each whole update it timed."""
    path = folder / f"steps-{name}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        by_case: dict[tuple[str, int, int], dict[str, Any]] = {}
        for row in record["rows"]:
            by_case.setdefault((row["name"], row["batch"], row["length"]), {})[row["precision"]] = row
        modes = list(dict.fromkeys(row["precision"] for row in record["rows"]))
        lines = [_line(case, rows, modes) for case, rows in by_case.items()]
        updates = [_update(case, rows) for case, rows in by_case.items() if any(_updated(rows))]
        repeats = max((row["step_ms"]["repeats"] for row in record["rows"] if row["step_ms"]), default=REPEATS)
        where = f"{record['device']}, torch {record['torch']}, {record['date']}"
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: is not what `rankfold bench --table {name} --json` prints: {type(error).__name__}: {error}."
        ) from None
    head = [
        cell for column in HEAD for cell in ([column.format(mode) for mode in modes] if "{" in column else [column])
    ]
    told = f" --repeats {repeats}" if repeats != REPEATS else ""
    command = f"`rankfold bench --table {name}{told} --json`, [as printed]({path.name}): {where}."
    return "\n\n".join([command, marks.table(head, lines, left=2), *updates])


def _line(case: tuple[str, int, int], rows: dict[str, Any], modes: list[str]) -> Sequence[str]:
    name, batch, length = case
    first = next(iter(rows.values()))
    authors = first["published_ms"]
    times = [rows[mode]["step_ms"]["median"] if mode in rows and rows[mode]["step_ms"] else None for mode in modes]
    errors = [rows[mode]["error"] if mode in rows else None for mode in modes]
    return [
        name,
        f"{batch} x {length}",
        *("-" if ms is None else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}" for ms in times),
        *("-" if ms is None or authors is None else _ratio(authors / ms) for ms in times),
        "-" if authors is None else f"{authors:g}",
        "-" if first["peak_mib"] is None else f"{first['peak_mib']:,.0f}",
        "-" if first["published_mib"] is None else f"{first['published_mib']:,.0f}",
        *("-" if error is None else f"{error:.1e}" for error in errors),
    ]


def _updated(rows: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return (row for row in rows.values() if row.get("update_ms"))


def _update(case: tuple[str, int, int], rows: dict[str, Any]) -> str:
    parts = [
        f"{row['update_ms']['median']:.0f} ms in {row['precision']} ({row['update_mib']:,.0f} MiB)"
        for row in _updated(rows)
    ]
    of = f"{case[0]}, {case[1]} x {case[2]} tokens"
    return (
        f"A whole update of {of}, AdamW included, without a graph: {', '.join(parts)}; memory reserved, workspaces too."
    )


def _ratio(times: float) -> str:
    """Two digits, or as many as a whole number has."""
    return f"{times:.0f}x" if times >= 99.5 else f"{times:.2g}x"
