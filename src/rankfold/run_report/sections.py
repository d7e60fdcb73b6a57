"""The parts of a report: what a model learned, by its kind, and what a run was and came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfold.analysis.segment_profiles import SegmentProfiles
from rankfold.analysis.segmentation import segments_of
from rankfold.errors import quantity
from rankfold.run_report.drawing import bars, strips
from rankfold.run_report.page import Cell, Section, escape, number, paragraph, table, word

LEAST = 5e-4  # printed as 0.1%
MOST_STRIPS, MOST_SEGMENTS = 20, 4000  # recordings that are drawn, and segments of all of them: a page of about 1 MB


def states_section(states: Sequence[Mapping[str, Any]], of: str, counted: str, effective: float, total: int) -> Section:
    """The most used states of a model of words, with their words and neighbours."""
    told = f"{total:,} {of}; use is the share of {counted}; as many as {effective:,.0f} equally used ones do the work."
    rows = [
        [
            number(state["state"]),
            number(f"{state['use']:.2%}"),
            Cell(_listed((word(x), f"{p:.1%}") for x, p in state["words"] if p >= LEAST), "w"),
            Cell(_listed((word(x), f"x{lift:,.0f}") for x, lift in state["typical"][:6]), "w"),
            Cell(_neighbours(state["previous"]), "w"),
            Cell("the end" if state["ends"] >= 1 - LEAST else _neighbours(state["next"]), "w"),
            number(f"{state['word_entropy']:.2f}"),
        ]
        for state in states
    ]
    head = (of[:-1], "use", "most probable words", "most typical", "before it", "after it", "nats")
    return Section(f"The most used {of}", paragraph(told) + table(head, rows))


def _neighbours(entries: Sequence[Sequence[Any]]) -> str:
    return _listed((f"{state} {word(says)}", f"{p:.0%}") for state, p, says in entries[:4] if p >= 0.005)


def _listed(pairs: Any) -> str:
    return ", ".join(f'{name} <span class="soft">{escape(value)}</span>' for name, value in pairs)


def symbols_section(symbols: Sequence[Mapping[str, Any]], counted: str) -> Section:
    """The most used symbols of a grammar."""
    content = paragraph(f"Use in {counted}.")
    for kind, title in (("rules", "symbols of spans"), ("words", "symbols of words")):
        own = [symbol for symbol in symbols if kind in symbol]
        rows = [
            [
                Cell(escape(symbol["symbol"])),
                number(f"{symbol['use']:.1%}"),
                Cell(_rules(symbol) if kind == "rules" else _words(symbol), "w"),
                Cell(" | ".join(word(text) for text, _ in symbol["yields"]), "w"),
            ]
            for symbol in own
        ]
        if rows:
            content += table((title, "use", "most probable " + kind, "what it yields"), rows)
    return Section("The most used symbols", content)


def _rules(symbol: Mapping[str, Any]) -> str:
    return _listed((escape(f"{left} {right}"), f"{p:.1%}") for left, right, p in symbol["rules"] if p >= LEAST)


def _words(symbol: Mapping[str, Any]) -> str:
    return _listed((word(x), f"{p:.1%}") for x, p in symbol["words"] if p >= LEAST)


def segments_section(
    found: SegmentProfiles, where: str, units: str = "in its own units", recordings: Mapping[str, Any] | None = None
) -> Section:
    """The states of a model of frames: use, durations, features (`units` says how they are measured), labels.

    `recordings`: the states "t" of recordings by name, which are drawn as strips.
    """
    unit, per = ("s", found.fps) if found.fps else ("frames", 1.0)
    told = (
        f"{quantity(found.num_segments, 'segment')} in {quantity(found.num_frames, 'frame')} of "
        f"{quantity(found.num_recordings, 'recording')} of "
        f"{where}; runs of one state count as one segment."
    )
    shown = found.states[:30]
    drawn = bars(
        [
            (_name(x), x["duration"]["mean"] / per, f"{x['duration']['mean'] / per:.3g} {unit}", x["state"])
            for x in shown
        ],
        f"mean duration of segments by state, in {unit}",
    )
    rows = [
        [
            Cell(escape(_name(x))),
            number(f"{x['use']:.1%}"),
            number(f"{x['segments']:,}"),
            *(number(f"{x['duration'][name] / per:.3g}") for name in ("mean", "median", "shortest", "longest")),
        ]
        for x in shown
    ]
    head = ("state", "use", "segments", f"mean ({unit})", "median", "shortest", "longest")
    content = paragraph(told) + drawn + table(head, rows) + _values(found, shown, units)
    content += "" if recordings is None else _strips(found, recordings)
    if found.confusion is not None and found.label_names is not None:
        cells = [[Cell(escape(_name(x))), *(number(f"{n:,}") for n in row[:20])]
                 for x, row in zip(found.states, found.confusion, strict=True)]  # fmt: skip
        content += paragraph("Frames by state and true label:")
        content += table(("state", *found.label_names[:20]), cells[:30])
    return Section("Segments", content)


def _strips(found: SegmentProfiles, recordings: Mapping[str, Any]) -> str:
    """Recordings as strips of states, as many as a page should hold; a pointer on a segment shows what it is."""
    names = {x["state"]: _name(x) for x in found.states}
    unit, per = ("s", found.fps) if found.fps else ("", 1.0)
    rows: list[tuple[str, list[tuple[int, int, int, str]]]] = []
    left = MOST_SEGMENTS
    for name, states in list(recordings.items())[:MOST_STRIPS]:
        cut = [x for x in segments_of(states) if x.label >= 0]
        left -= len(cut)
        if left < 0 or not cut:
            break
        texts = (f"{x.start / per:g} to {x.end / per:g}{unit}: state {names[x.label]}" for x in cut)
        rows.append((name, [(x.start, x.end, x.label, text) for x, text in zip(cut, texts, strict=True)]))
    if not rows:
        return ""
    more = f"the first {len(rows)} of {len(recordings)} recordings" if len(rows) < len(recordings) else "all recordings"
    told = f"States over time, {more}. Point at a segment to see its state, start and end (exclusive)."
    return paragraph(told) + strips(rows, "states over time")


def _name(state: Mapping[str, Any]) -> str:
    label = state.get("label")
    return f"{state['state']}" + (f" ({label})" if label is not None else "")


def _values(found: SegmentProfiles, shown: Sequence[Mapping[str, Any]], units: str) -> str:
    if shown and "symbols" in shown[0]:
        rows = [
            [Cell(escape(_name(x))), Cell(_listed((escape(s), f"{p:.1%}") for s, p in x["symbols"]), "w")]
            for x in shown
        ]
        return table(("state", "most frequent symbols"), rows)
    names = found.feature_names[:12]
    told = f"Mean of each feature (deviation), {units}" + (
        f"; the first {len(names)} of {len(found.feature_names)}:" if len(found.feature_names) > len(names) else ":"
    )
    rows = [[Cell(escape(_name(x))), *(number(_mean(f)) for f in x["features"][: len(names)])] for x in shown]
    return paragraph(told) + table(("state", *names), rows)


def _mean(feature: Mapping[str, float | None]) -> str:
    mean, deviation = feature["mean"], feature["deviation"]
    return "missing" if mean is None or deviation is None else f"{mean:.3g} ({deviation:.2g})"


def settings_section(groups: Mapping[str, Mapping[str, Any]]) -> Section:
    """Settings and facts of a run, by group."""
    content = ""
    for title, values in groups.items():
        rows = [[Cell(escape(name)), Cell(escape(value), "w")] for name, value in values.items()]
        content += (f"<details><summary>{escape(title)}</summary>" + table(("name", "value"), rows) + "</details>") * (
            len(rows) > 0
        )
    return Section("Settings", content or paragraph("none known"))
