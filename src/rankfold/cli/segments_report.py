"""`rankfold segments-report`: what each state of a model of frames is: durations, features, labels."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.analysis.decoded_frames import best_states
from rankfold.analysis.segment_profiles import SegmentProfiles, States, segment_profiles
from rankfold.cli.load import LoadedFrames, add_recordings, load_asked
from rankfold.cli.output import printable, say, table, to_json
from rankfold.errors import quantity
from rankfold.plots.picture import expect_picture
from rankfold.run_report.page import expect_report, make_page, write_page
from rankfold.run_report.sections import segments_section

NUM_FEATURES, NUM_LABELS = 8, 12  # columns of the tables that are printed; --json has all
DESCRIPTION = (
    "Print what the states of a model do in recordings (.npy, .npz, .csv, .parquet, or a folder of them): the share of "
    "frames of each, the durations of its segments, the mean of every feature in its own units, and, where frames have "
    "labels, how many frames of each state have which. A run of frames of one state is a segment. rankfold segment "
    "prints the segments themselves."
)
EXAMPLE = """\
example:
  rankfold segments-report runs/walks recordings.npz --split test
  rankfold segments-report runs/walks recordings.npz --split test --html segments.html
  rankfold segments-report runs/walks recordings.npz --split test --plot durations.png --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recordings(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a picture of the durations by state")
    parser.add_argument("--html", type=Path, metavar="FILE", help="save the same as a page for browsers")


def run(arguments: argparse.Namespace) -> int:
    """Print the states, and save picture and page."""
    if arguments.plot is not None:
        expect_picture(arguments.plot)  # before the work
    if arguments.html is not None:
        expect_report(arguments.html)
    loaded = load_asked(arguments)
    states = best_states(loaded.model, loaded.frames)
    found = report(loaded, states)
    where = str(arguments.data) + ("" if arguments.split is None else f", split {arguments.split}")
    if arguments.plot is not None:
        from rankfold.plots.segments import plot_durations

        say(f"wrote {plot_durations(states, arguments.plot, fps=found.fps, title=where)}")
    if arguments.html is not None:
        title = f"Segments of {arguments.data.name}"
        subtitle = f"{loaded.model.config.family}, {loaded.model.config.size}, of {arguments.folder}"
        page = make_page(title, subtitle, [segments_section(found, where, recordings=_by_name(loaded, states))])
        say(f"wrote {write_page(arguments.html, page)}")
    print(to_json(found._asdict(), indent=2) if arguments.json else _text(found, where))
    return 0


def _by_name(loaded: LoadedFrames, states: Sequence[States]) -> dict[str, States]:
    return dict(zip(loaded.frames.names, states, strict=True))


def report(loaded: LoadedFrames, states: Sequence[States]) -> SegmentProfiles:
    """The states of the most probable segments, with the features as they were read."""
    return segment_profiles(
        states,
        loaded.given,
        fps=loaded.space.fps if loaded.given.fps is None else loaded.given.fps,
        label_names=loaded.space.label_names,
        symbols=loaded.model.observation.symbols,
    )


def _text(found: SegmentProfiles, where: str) -> str:
    unit, per = ("seconds", found.fps) if found.fps else ("frames", 1.0)
    lines = [
        f"{quantity(found.num_segments, 'segment')} in {quantity(found.num_frames, 'frame')} of "
        f"{quantity(found.num_recordings, 'recording')} of "
        f"{where}; durations in {unit}",
        "",
    ]
    labelled = found.label_names is not None
    head = ["state", *(["label"] if labelled else []), "use", "segments", "mean", "median", "shortest", "longest"]
    rows = [
        [
            str(x["state"]),
            *([printable(x["label"] or "-")] if labelled else []),
            f"{x['use']:.1%}",
            f"{x['segments']:,}",
            *(f"{x['duration'][name] / per:.3g}" for name in ("mean", "median", "shortest", "longest")),
        ]
        for x in found.states
    ]
    lines += [table(head, rows, left=2 if labelled else 1), "", _values(found)]
    if found.confusion is not None and found.label_names is not None:
        names = [printable(name) for name in found.label_names[:NUM_LABELS]]
        more = len(found.label_names) - len(names)
        lines += ["", "frames by state and label" + (f"; {more:,} more labels with --json" if more else "")]
        pairs = zip(found.states, found.confusion, strict=True)
        cells = [[str(x["state"]), *(f"{n:,}" for n in row[:NUM_LABELS])] for x, row in pairs]
        lines.append(table(["state", *names], cells))
    return "\n".join(lines)


def _values(found: SegmentProfiles) -> str:
    if found.states and "symbols" in found.states[0]:
        rows = [[str(x["state"]), "  ".join(f"{s} {p:.1%}" for s, p in x["symbols"])] for x in found.states]
        return "most frequent symbols\n" + table(["state", "symbols"], rows, left=2)
    names = [printable(name) for name in found.feature_names[:NUM_FEATURES]]
    more = len(found.feature_names) - len(names)
    title = "mean of each feature (deviation)" + (f"; {more:,} more features with --json" if more else "")
    cells = [[str(x["state"]), *(_mean(f) for f in x["features"][:NUM_FEATURES])] for x in found.states]
    return f"{title}\n" + table(["state", *names], cells)


def _mean(feature: dict[str, Any]) -> str:
    return "missing" if feature["mean"] is None else f"{feature['mean']:.3g} ({feature['deviation']:.2g})"
