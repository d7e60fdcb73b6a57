"""How time grows with a size, on the results pages, from what `rankfold bench --sweep ... --json` printed.

Files `sweep-NAME-*.json` of the folder are the command's whole outputs. Read next: `src/rankfold/bench/sweep.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import marks
from rankfold.errors import DataError
from rankfold.plots.scaling import plot_scaling

HEAD = ("`--sweep`", "model", "sizes", "ms", "exponent", "of the last two", "of the dominant work")
SIZES = {"num_states": "states", "rank": "rank", "length": "length"}
# Of the products of states, ranks and words that a step consists of, in the size that grows.
WORK = {("hmm", "states"): 2}


def write(folder: Path, pages: Iterable[str], *, pictures: bool) -> int:
    """Replace what stands between the marks of the pages, and draw; how many tables there were."""
    return marks.replace(folder, pages, "sweeps", lambda folder, name: body(folder, name, pictures=pictures))


def body(folder: Path, name: str, *, pictures: bool) -> str:
    """A table of all sweeps of a name, and a picture of each."""
    paths = sorted(folder.glob(f"sweep-{name}-*.json"))
    if not paths:
        raise DataError(f"{folder}: has no sweep-{name}-*.json, which `rankfold bench --sweep` prints with --json.")
    lines: list[list[str]] = []
    shown: list[str] = []
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            lines += _lines(record)
            where = f"{record['device']}, torch {record['torch']}, {record['date']}"
            picture = path.with_suffix(".png")
            if pictures:
                plot_scaling(record["sweep"]["axis"], record["sweep"]["curves"], picture, title=_model(record))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: is not what `rankfold bench --sweep` prints: {error!r}.") from None
        shown.append(f"![Time against {record['sweep']['axis']}: {_model(record)}]({picture.name})")
    printed = ", ".join(f"[{path.stem.removeprefix(f'sweep-{name}-')}]({path.name})" for path in paths)
    said = f"`rankfold bench --sweep AXIS --no-reference --repeats 5 --json`, as printed ({printed}): {where}."
    return "\n\n".join([said, marks.table(HEAD, lines, left=4), *shown])


def _lines(record: dict[str, Any]) -> Iterable[list[str]]:
    axis = record["sweep"]["axis"]
    work = WORK.get((record["rows"][0]["family"], axis), 1)
    for curve in record["sweep"]["curves"]:
        yield [
            axis,
            f"{_model(record)}, {curve['precision']}",
            ", ".join(f"{size:,}" for size in curve["sizes"]),
            ", ".join(f"{ms:.2f}" for ms in curve["ms"]),
            f"{curve['exponent']:.2f}",
            f"{curve['last_exponent']:.2f}",
            str(work),
        ]


def _model(record: dict[str, Any]) -> str:
    """Its family and the sizes that stay."""
    row, axis = record["rows"][0], record["sweep"]["axis"]
    kept = [f"{name} {row[key]:,}" for key, name in SIZES.items() if name != axis and row[key] is not None]
    return ", ".join([row["family"], *kept, f"batch {row['batch']}"])
