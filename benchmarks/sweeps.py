"""How time grows with a size, on the results pages, from what `rankfold bench --sweep ... --json` printed.

Files `sweep-NAME-*.json` of the folder are the command's whole outputs. Read next: `src/rankfold/bench/sweep.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import marks
from rankfold.bench.sweep import fit
from rankfold.errors import DataError
from rankfold.plots.scaling import plot_scaling

HEAD = (
    "`--sweep`",
    "model",
    "sizes",
    "ms",
    "exponent",
    "the plan's",
    "of the last two",
    "the plan's",
    "the dominant work's",
)
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
    commands: list[str] = []
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            lines += _lines(record)
            where = f"{record['device']}, torch {record['torch']}, {record['date']}"
            commands.append(f"- [{path.stem}]({path.name}): `{_command(record)}`")
            picture = path.with_suffix(".png")
            if pictures:
                picture.unlink(missing_ok=True)  # the page's own, drawn anew
                plot_scaling(record["sweep"]["axis"], record["sweep"]["curves"], picture, title=_model(record))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: is not what `rankfold bench --sweep` prints: {error!r}.") from None
        shown.append(f"![Time against {record['sweep']['axis']}: {_model(record)}]({picture.name})")
    return "\n\n".join([f"{where}.", marks.table(HEAD, lines, left=4), "\n".join(commands), *shown])


def _lines(record: dict[str, Any]) -> Iterable[list[str]]:
    axis = record["sweep"]["axis"]
    work = WORK.get((record["rows"][0]["family"], axis), 1)
    for curve in record["sweep"]["curves"]:
        rows = [row for row in record["rows"] if row["precision"] == curve["precision"] and row["step_ms"]]
        expected, expected_last = _estimated(curve["sizes"], [row["estimate_ms"] for row in rows])
        yield [
            axis,
            f"{_model(record)}, {curve['precision']}",
            ", ".join(f"{size:,}" for size in curve["sizes"]),
            ", ".join(f"{ms:.2f}" for ms in curve["ms"]),
            f"{curve['exponent']:.2f}",
            expected,
            f"{curve['last_exponent']:.2f}",
            expected_last,
            str(work),
        ]


def _estimated(sizes: Sequence[int], estimates: Sequence[float]) -> tuple[str, str]:
    """The exponents of what the plan expects, of all sizes and of the last two."""
    laws = (fit(sizes[start:], estimates[start:]) for start in (0, -2))
    whole, last = ("-" if law is None else f"{law.exponent:.2f}" for law in laws)
    return whole, last


def _command(record: dict[str, Any]) -> str:
    """What repeats it; the words are the command's own number of them."""
    row, (curve, *_), axis = record["rows"][0], record["sweep"]["curves"], record["sweep"]["axis"]
    sizes = [f"--{name} {row[key]}" for key, name in SIZES.items() if name != axis and row[key] is not None]
    values = ",".join(map(str, curve["sizes"]))
    of = " ".join([f"--sweep {axis}", f"--values {values}", f"--family {row['family']}", *sizes])
    return f"rankfold bench {of} --batch {row['batch']} --no-reference --repeats {row['step_ms']['repeats']} --json"


def _model(record: dict[str, Any]) -> str:
    """Its family and the sizes that stay."""
    row, axis = record["rows"][0], record["sweep"]["axis"]
    kept = [f"{name} {row[key]:,}" for key, name in SIZES.items() if name != axis and row[key] is not None]
    return ", ".join([row["family"], *kept, f"batch {row['batch']}"])
