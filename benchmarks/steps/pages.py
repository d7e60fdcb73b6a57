"""Tables of gradient steps and of sweeps on the results pages, from what `python -m benchmarks steps --json` printed.

Files `steps-NAME.json` and `sweep-NAME-*.json` of the folder are the command's whole outputs; their tables stand
between two marks of a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import marks
from benchmarks.steps.scaling import fit, plot_scaling
from rankfold.errors import DataError

COMMAND = "python -m benchmarks steps"
HEAD = ("model", "batch x length", "{} ms", "authors / {}", "authors ms", "MiB", "authors MiB", "error {}")

REPEATS = 15  # the command's own
SWEEP_HEAD = (
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


def write(folder: Path, pages: Sequence[str], *, pictures: bool) -> int:
    """Replace what stands between the marks of the pages, and draw the sweeps; how many tables there were."""
    num = marks.replace(folder, pages, "steps", partial(steps_body, folder))
    shown = "".join((folder / page).read_text(encoding="utf-8") for page in pages if (folder / page).exists())
    return num + marks.replace(folder, pages, "sweeps", partial(sweeps_body, folder, shown=shown, pictures=pictures))


def steps_body(folder: Path, name: str) -> str:
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
            f"{path}: is not what `{COMMAND} --table {name} --json` prints: {type(error).__name__}: {error}."
        ) from None
    head = [
        cell for column in HEAD for cell in ([column.format(mode) for mode in modes] if "{" in column else [column])
    ]
    told = f" --repeats {repeats}" if repeats != REPEATS else ""
    command = f"`{COMMAND} --table {name}{told} --json`, [as printed]({path.name}): {where}."
    return "\n\n".join([command, marks.table(head, lines, left=range(2)), *updates])


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


def sweeps_body(folder: Path, name: str, *, shown: str = "", pictures: bool) -> str:
    """A table of all sweeps of a name, and a picture of each, drawn if the pages do not show its table yet."""
    paths = sorted(folder.glob(f"sweep-{name}-*.json"))
    if not paths:
        raise DataError(f"{folder}: has no sweep-{name}-*.json, which `{COMMAND} --sweep` prints with --json.")
    lines: list[list[str]] = []
    drawn: list[str] = []
    commands: list[str] = []
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            own = list(_lines(record))
            lines += own
            where = f"{record['device']}, torch {record['torch']}, {record['date']}"
            commands.append(f"- [{path.stem}]({path.name}): `{_command(record)}`")
            picture = path.with_suffix(".png")
            if pictures and not (picture.exists() and all(" | ".join(line) in shown for line in own)):
                picture.unlink(missing_ok=True)  # the page's own, drawn anew
                plot_scaling(record["sweep"]["axis"], record["sweep"]["curves"], picture, title=_model(record))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: is not what `{COMMAND} --sweep` prints: {error!r}.") from None
        drawn.append(f"![Time against {record['sweep']['axis']}: {_model(record)}]({picture.name})")
    return "\n\n".join([f"{where}.", marks.table(SWEEP_HEAD, lines, left=range(4)), "\n".join(commands), *drawn])


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
    return f"{COMMAND} {of} --batch {row['batch']} --no-reference --repeats {row['step_ms']['repeats']} --json"


def _model(record: dict[str, Any]) -> str:
    """Its family and the sizes that stay."""
    row, axis = record["rows"][0], record["sweep"]["axis"]
    kept = [f"{name} {row[key]:,}" for key, name in SIZES.items() if name != axis and row[key] is not None]
    return ", ".join([row["family"], *kept, f"batch {row['batch']}"])
