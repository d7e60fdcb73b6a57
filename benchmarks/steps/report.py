"""A report as tables a person reads: what was measured, and how far it is from the ceiling and from the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankfold.cli.output import table, three_digits

Rows = list[list[str]]


def text(report: dict[str, Any]) -> str:
    """The whole report."""
    rows = report["rows"]
    published = any(row["published_ms"] is not None for row in rows)
    measured = [_measured(row, published=published) for row in rows]
    parts = [
        f"{report['device']}, torch {report['torch']}, rankfold {report['rankfold']}, {report['date']}",
        "A gradient step, parameters to potentials to log Z and back, in ms: median (quartiles)."
        + (" Captured as a CUDA graph; eager next to it." if any(row["captured"] for row in rows) else "")
        + (" Recursion: potentials, given, to log Z and back." if any(row["recursion_ms"] for row in rows) else "")
        + (" Update: a step without a graph, and AdamW." if any(row["update_ms"] for row in rows) else ""),
        table(*_filled(MEASURED + (PUBLISHED if published else []), measured)),
    ]
    timed = [row for row in rows if row["step_ms"]]
    if timed:
        rates = report["ceilings"]["multiply_adds_per_second"]
        speeds = ", ".join(f"{rate / 1e12:,.3g} T multiply-adds/s in {name}" for name, rate in rates.items())
        parts += [
            f"Against the ceiling, measured here: {report['ceilings']['bytes_per_second'] / 1e9:,.0f} GB/s copied, "
            f"{speeds}. The floor is the plan's work at these speeds; the plan's own time is its bound at fixed rates.",
            table(*_filled(CEILING, [_ceiling(row) for row in timed])),
        ]
    parts += ["\n".join(lines) for lines in (_exponents(report), _remarks(rows)) if lines]
    if report.get("plot"):
        parts.append(f"picture: {report['plot']}")
    return "\n\n".join(parts)


MEASURED = [
    "model",
    "summed",
    "batch x length",
    "precision",
    "step",
    "eager",
    "forward",
    "recursion",
    "MiB",
    "update",
    "update MiB",
]
MEASURED += ["reference", "reference MiB", "reference / step", "error of log Z"]
PUBLISHED = ["published", "published MiB", "published / step"]
CEILING = ["model", "summed", "precision", "step", "floor", "share of the ceiling", "plan", "MiB", "plan's MiB"]


def _measured(row: dict[str, Any], *, published: bool) -> list[str]:
    cells = [
        row["name"],
        _order(row),
        f"{row['batch']} x {row['length']}",
        row["precision"],
        _step(row),
        _ms(row["eager_ms"]) if row["captured"] else "-",  # else it is the step itself
        _ms(row["forward_ms"]),
        _ms(row["recursion_ms"]),
        _whole(row["peak_mib"]),
        _ms(row["update_ms"]),
        _whole(row["update_mib"]),
        _spread(row["reference_ms"]) if row["reference_ms"] else "-",
        _whole(row["reference_mib"]),
        _times(row["ratio"]),
        "-" if row["error"] is None else f"{row['error']:.1e}",
    ]
    if published:
        ms, step = row["published_ms"], row["step_ms"]
        cells += ["-" if ms is None else f"{ms:.1f}", _whole(row["published_mib"])]
        cells += [_times(ms / step["median"] if ms and step else None)]
    return cells


def _order(row: dict[str, Any]) -> str:
    """Where a family has a choice: the space in which a step sums, and whether the planner chose it."""
    if not row["plans"]:
        return "-"
    return f"{row['order']} space" + (" (auto)" if "auto" in row["plans"] else "")


def _step(row: dict[str, Any]) -> str:
    if not row["passed"]:
        return "CHECK FAILED"
    return _spread(row["step_ms"]) if row["step_ms"] else "not run"


def _ceiling(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        _order(row),
        row["precision"],
        _ms(row["step_ms"]),
        three_digits(row["floor_ms"]),
        f"{row['share']:.0%}",
        three_digits(row["estimate_ms"]),
        _whole(row["peak_mib"]),
        _whole(row["estimate_mib"]),
    ]


def _exponents(report: dict[str, Any]) -> list[str]:
    sweep = report.get("sweep")
    if not sweep:
        return []
    return [
        f"time ~ {sweep['axis']}^{curve['exponent']:.2f}: {curve['code']}, {curve['precision']}, "
        f"{min(curve['sizes']):,} to {max(curve['sizes']):,}"
        + (f" ({curve['last_exponent']:.2f} of the last two)" if len(curve["sizes"]) > 2 else "")
        for curve in sweep["curves"]
        if curve["exponent"] is not None
    ]


def _remarks(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What failed, what was left out and why; each row's dropout."""
    lines = []
    for row in rows:
        where = ", ".join(x for x in (row["name"], _order(row), row["precision"]) if x != "-")
        lines += [f"FAILED {where}: {check['text']}" for check in row["checks"] if not check["passed"]]
        lines += [f"{where}: {check['text']}" for check in row["checks"] if check["error"] is None]
        if row["note"]:
            lines.append(f"{where}: not run, {row['note']}")
        elif row["reference_note"] and all(check["error"] is not None for check in row["checks"]):
            lines.append(f"{where}: the reference is left out of the times, it {row['reference_note']}")
        if row["against"]:
            lines.append(_compared(row))
        if row["ratio"] is not None and row["same_step_ms"] != row["step_ms"]:
            lines.append(
                f"{where}: the reference is timed without dropout and compared with our step without it, "
                f"{_ms(row['same_step_ms'])} ms"
            )
    lines = list(dict.fromkeys(lines))  # of a sweep once
    if any(not row["passed"] for row in rows):
        lines.append("No time is reported for a result that is wrong.")
    return lines


def _compared(row: dict[str, Any]) -> str:
    """One order against the first of the same model."""
    against, recursion = row["against"], row["against"]["recursion_ratio"]
    return (
        f"{row['name']}, {row['precision']}: {row['order']} space / {against['order']} space: "
        f"step {_times(against['step_ratio'])}"
        + ("" if recursion is None else f", recursion {_times(recursion)}")
        + f"; log Z differs by {against['error']:.1e}"
    )


def _ms(spread: dict[str, Any] | None) -> str:
    return "-" if spread is None else three_digits(spread["median"])


def _spread(spread: dict[str, Any]) -> str:
    return f"{three_digits(spread['median'])} ({three_digits(spread['low'])} to {three_digits(spread['high'])})"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _filled(head: Sequence[str], rows: Rows) -> tuple[list[str], Rows]:
    """The columns that say something in a row; a CPU has no peak memory, for instance."""
    kept = [i for i in range(len(head)) if any(row[i] != "-" for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]
