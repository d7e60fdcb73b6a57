"""Tables of gradient steps on the results pages, from what `rankfold bench --table NAME --json` printed.

A file `steps-NAME.json` of the folder is the command's whole output; its table stands between two marks of a page.
Read next: `results.py`, which calls this; `src/rankfold/bench/row.py`, which measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankfold.errors import DataError

MARK = re.compile(r"<!-- steps (?P<name>[\w-]+) -->.*?<!-- end of steps -->", re.DOTALL)
HEAD = ("model", "batch x length", "{} ms", "authors / {}", "authors ms", "MiB", "authors MiB", "error {}")


def write(folder: Path, pages: Iterable[str]) -> int:
    """Replace what stands between the marks of the pages; how many tables there were."""
    num = 0
    for page in pages:
        path = folder / page
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        num += len(MARK.findall(text))
        path.write_text(MARK.sub(lambda mark: section(folder, mark["name"]), text), encoding="utf-8")
    return num


def section(folder: Path, name: str) -> str:
    """The marks with the table of one run of the command between them."""
    path = folder / f"steps-{name}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        by_case: dict[tuple[str, int, int], dict[str, Any]] = {}
        for row in record["rows"]:
            by_case.setdefault((row["name"], row["batch"], row["length"]), {})[row["precision"]] = row
        modes = list(dict.fromkeys(row["precision"] for row in record["rows"]))
        lines = [_line(case, rows, modes) for case, rows in by_case.items()]
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
    table = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2), *lines]
    command = f"`rankfold bench --table {name} --json`, [as printed]({path.name}): {where}."
    return "\n".join([f"<!-- steps {name} -->", "", command, "", *table, "", "<!-- end of steps -->"])


def _line(case: tuple[str, int, int], rows: dict[str, Any], modes: list[str]) -> str:
    name, batch, length = case
    first = next(iter(rows.values()))
    authors = first["published_ms"]
    times = [rows[mode]["step_ms"]["median"] if mode in rows and rows[mode]["step_ms"] else None for mode in modes]
    cells = [
        name,
        f"{batch} x {length}",
        *("-" if ms is None else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}" for ms in times),
        *("-" if ms is None or authors is None else _ratio(authors / ms) for ms in times),
        "-" if authors is None else f"{authors:g}",
        "-" if first["peak_mib"] is None else f"{first['peak_mib']:,.0f}",
        "-" if first["published_mib"] is None else f"{first['published_mib']:,.0f}",
        *("-" if mode not in rows else f"{rows[mode]['error']:.1e}" for mode in modes),
    ]
    return "| " + " | ".join(cells) + " |"


def _ratio(times: float) -> str:
    """Two digits, or as many as a whole number has."""
    return f"{times:.0f}x" if times >= 99.5 else f"{times:.2g}x"
