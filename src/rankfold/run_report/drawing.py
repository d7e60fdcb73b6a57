"""Drawings of a report as inline SVG, made by hand: the learning curve, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rankfold.plots.learning import axis_limits, curve_points, plain_ticks, round_ticks, spread_labels
from rankfold.run_report.page import escape

WIDTH, HEIGHT = 860, 360
# Those of Okabe and Ito, which colour-blind readers tell apart; then paler ones.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#80b8d8", "#f2cf80", "#80cfb9")
LEFT, RIGHT, TOP, BOTTOM = 64, 170, 16, 44  # margins; labels of baselines stand on the right


def learning_curve(
    metrics: Sequence[Mapping[str, Any]], measure: str, baselines: Mapping[str, float], on: str = "test"
) -> str | None:
    """Training and validation against updates, results on a split as dashed lines; None where nothing was measured.

    Perplexities have a logarithmic axis, nats a plain one. `measure` is "perplexity" or "nats", `on` the split.
    """
    curves = {split: curve_points(metrics, f"{split}_{measure}") for split in ("train", "valid")}
    values = [value for points in curves.values() for _, value in points]
    if not values:
        return None
    logs = measure == "perplexity"
    if logs:
        low, high = axis_limits(values, list(baselines.values()))
        ticks = round_ticks(low, high)
    else:
        low, high, ticks = _plain_limits([*values, *baselines.values()])
    last = max(update for points in curves.values() for update, _ in points) or 1

    def x(update: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * update / last

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if logs else (value - low) / (high - low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(share, 1.0)

    parts = [_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid") + _text(LEFT - 8, y(tick) + 4, f"{tick:,g}", "end")
             for tick in ticks]  # fmt: skip
    parts += [_text(x(t), HEIGHT - BOTTOM + 18, f"{t:,.0f}", "middle") for t in (0, last / 2, last)]
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
    parts.append(_text(x(last / 2), HEIGHT - 6, "update", "middle"))
    places = spread_labels([1 - y(value) / HEIGHT for value in baselines.values()])
    for (name, value), place in zip(baselines.items(), places, strict=True):
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value), "base"))
        parts.append(_text(WIDTH - RIGHT + 8, HEIGHT * (1 - place) + 4, f"{name} {value:,.1f}", kind="soft"))
    for split, points in curves.items():
        path = " ".join(f"{x(update):.1f},{y(value):.1f}" for update, value in points)
        parts.append(f'<polyline class="{split}" points="{path}"/>' if points else "")
        dots = points if split == "valid" or len(points) == 1 else []
        parts += [f'<circle class="dot" cx="{x(u):.1f}" cy="{y(v):.1f}" r="3"/>' for u, v in dots]
    unit = "perplexity" if logs else "nats per frame"
    best = min((value for _, value in curves["valid"]), default=None)
    told = f"{unit} by update; " + ("no validation" if best is None else f"best on validation {best:,.4g}")
    dashed = f", on {on} (dashed)" if baselines else ""
    key = _text(LEFT + 8, TOP - 4, f"{unit}: training (thin), validation (dots){dashed}", kind="soft")
    return _svg(WIDTH, HEIGHT, told, [key, *parts])


def bars(rows: Sequence[tuple[str, float, str, int]], told: str) -> str:
    """Horizontal bars: a name, a value of at least 0, a text behind the bar, and a colour, numbered as in `strips`."""
    height, left, most = 24, 150, max((row[1] for row in rows), default=0.0) or 1.0
    parts = []
    for i, (name, value, label, colour) in enumerate(rows):
        width = 360 * value / most
        parts.append(_text(left - 8, i * height + 16, name[:20], "end"))
        fill = COLOURS[colour % len(COLOURS)]
        parts.append(f'<rect x="{left}" y="{i * height + 4}" width="{width:.1f}" height="16" fill="{fill}"/>')
        parts.append(_text(left + width + 8, i * height + 16, label))
    return _svg(WIDTH, max(1, len(rows)) * height + 4, told, parts)


def strips(rows: Sequence[tuple[str, Sequence[tuple[int, int, int, str]]]], told: str) -> str:
    """A strip for each row: its name, and segments (start, end, colour, text), of which a pointer shows the text."""
    height, left = 26, 150
    longest = max(end for _, segments in rows for _, end, _, _ in segments)
    scale = (WIDTH - left - 10) / longest
    parts = []
    for i, (name, segments) in enumerate(rows):
        parts.append(_text(left - 8, i * height + 17, name[:20], "end"))
        parts += [
            f'<rect class="strip" x="{left + start * scale:.1f}" y="{i * height + 4}" '
            f'width="{(end - start) * scale:.1f}" height="18" fill="{COLOURS[colour % len(COLOURS)]}">'
            f"<title>{escape(text)}</title></rect>"
            for start, end, colour, text in segments
        ]
    return _svg(WIDTH, len(rows) * height + 4, told, parts)


def _plain_limits(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """A range around the values, and round ticks in it."""
    low, high = min(values), max(values)
    room = (high - low) / 20 or abs(high) / 20 or 1.0
    low, high = low - room, high + room
    return low, high, plain_ticks(low, high)


def _svg(width: int, height: int, told: str, parts: Sequence[str]) -> str:
    label = f"<title>{escape(told)}</title>"
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return head + label + "\n".join(part for part in parts if part) + "</svg>"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    own = f' class="{kind}"' if kind else ""
    return f'<text{own} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
