"""`rankfold segment`: recordings in, a table of segments out."""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rankfold.analysis.decoded_frames import (
    ENTRIES,
    answer_recordings,
    impossible,
    segment_tables,
    state_posteriors,
)
from rankfold.analysis.segmentation import labels_of
from rankfold.analysis.states import match_states
from rankfold.cli.answer import (
    Answer,
    add_engine,
    engine_of,
    files_of,
    kept_stdout,
    open_results,
    refuse_elsewhere,
    unfinished,
    writing,
)
from rankfold.cli.load import LoadedFrames, add_recordings, load_asked, load_frames
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import Progress
from rankfold.corpora import engines
from rankfold.corpora.engines import Engine, share_of
from rankfold.data.frame_files import SUFFIXES
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import Frames
from rankfold.decoding.segment_table import cut_short, gain_of_longer
from rankfold.errors import DataError, DomainError, quantity
from rankfold.models.frame_model import FrameModel
from rankfold.plots.picture import expect_picture

Kind = Literal["strips", "posterior", "durations", "roll"]
COLUMNS = ("recording", "start", "end", "state", "label", "posterior", "frames")
DESCRIPTION = (
    "Print the most probable segments of recordings (.npy, .npz, .csv, .parquet, or a folder of them): start and end "
    "in frames, the end exclusive, the state, the probability of that very segment given the whole recording, and "
    "the mean over its frames of the probability of its state. Frames are brought onto the scale of the "
    "training set first."
)
EXAMPLE = """\
example:
  rankfold segment runs/walks recordings.npz --split test
  rankfold segment runs/walks new.csv --csv > segments.csv
  rankfold segment runs/walks recordings.npz --split test --plot strips.png
  rankfold segment runs/walks recordings/ --plot pictures/
  rankfold segment runs/walks recordings.npz --split test --json --recording s08_01
  rankfold segment runs/walks recordings/ --engine processes --workers 2 --out segments/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recordings(parser)
    parser.add_argument("--recording", metavar="NAME", help="one of them alone")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="save a picture of the first recording; a folder: one of every recording",
    )
    parser.add_argument(
        "--kind",
        choices=("strips", "posterior", "durations", "roll"),
        default="strips",
        help="of the picture: strips next to true labels (default), posterior over time, durations, piano roll",
    )
    add_engine(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the segments, and save the picture."""
    if arguments.csv and arguments.json:
        raise DataError("--csv and --json: one of them.")
    every = arguments.plot is not None and (arguments.plot.is_dir() or not arguments.plot.suffix)
    if every and arguments.kind == "durations":
        raise DataError("--kind durations is one picture of all recordings: name a file, --plot durations.png.")
    engine = engine_of(arguments)
    if arguments.out is not None:
        refuse_elsewhere(arguments, ["plot", "recording"])
        return _to_folder(arguments, engine)
    if arguments.plot is not None and not every:
        expect_picture(arguments.plot)  # before the work
    loaded = load_asked(arguments)
    if arguments.recording is not None:
        loaded = only(loaded, arguments.recording)
    paths = [] if arguments.plot is None else pictures_of(loaded, arguments.plot) if every else [arguments.plot]
    rows: list[dict[str, Any]] = []
    gains: list[float] = []
    source = share_of([piece._replace(where=str(arguments.data)) for piece in pieces_of(loaded)])
    opener: Any = partial(_open, arguments.folder, arguments.device)
    if engine.kind == "here":
        opener = partial(Segmenter, loaded.model, loaded.space)
    with Progress("segmented", len(loaded.frames), "recording", always=True) as progress, kept_stdout():
        for answer in engines.run(engine, opener, [source]):
            rows += answer.notes[0]
            gains += answer.notes[1]
            progress.add(answer.num)
    _warn(gains, loaded.model)
    for number, path in enumerate(paths):  # before the table, of which a pipe may want the beginning alone
        drawn = plot(loaded, rows, path, arguments.kind, number=number)
        names = loaded.frames.names
        alone = not every and arguments.kind != "durations" and len(names) > 1
        first = f": recording {names[0]}, the first of {len(names):,}; --plot FOLDER draws all" if alone else ""
        say(f"wrote {drawn}{first}")
    print(_table(rows, arguments))
    return 0


class FramePiece(NamedTuple):
    """Some recordings, on the scale of the model."""

    where: str  # the file or folder they are of
    frames: Frames

    @property
    def label(self) -> str:
        """Which recordings they are, for an error."""
        first, *others = self.frames.names
        more = f" and {len(others):,} more" if others else ""
        return f"{self.where}, recording {first!r}{more}"


def pieces_of(loaded: LoadedFrames) -> Iterator[FramePiece]:
    """Consecutive recordings, as many frames as are cheap to decode at once; one longer than that by itself."""
    room, where = max(1, ENTRIES // loaded.model.config.num_states), str(loaded.given.source)
    taken: list[int] = []
    size = 0
    for place, length in enumerate(loaded.frames.lengths):
        if taken and size + length > room:
            yield FramePiece(where, loaded.frames.subset(taken))
            taken, size = [], 0
        taken.append(place)
        size += length
    yield FramePiece(where, loaded.frames.subset(taken))


class Segmenter:
    """Answers to pieces: the rows of the table, and what longer segments would gain."""

    def __init__(self, model: FrameModel, space: FrameSpace) -> None:
        self.model, self.space = model, space

    def __call__(self, piece: FramePiece) -> Answer:
        rows = segment_frames(self.model, self.space, piece.frames)
        return Answer(piece.where, len(piece.frames), "", notes=(rows, _gains(self.model, piece.frames)))


def _open(folder: Path, device: str) -> Segmenter:
    return Segmenter(*load_frames(folder, device))


def _read(arguments: argparse.Namespace, file: Path) -> Iterator[FramePiece]:
    """The pieces of one file of recordings; read by whichever process."""
    given = argparse.Namespace(**{**vars(arguments), "data": file, "device": "cpu"})
    for piece in pieces_of(load_asked(given)):
        yield piece._replace(where=str(file))


def _to_folder(arguments: argparse.Namespace, engine: Engine) -> int:
    """One table for each file of recordings."""
    model, _ = load_frames(arguments.folder, "cpu")
    files = files_of(arguments.data, SUFFIXES) if arguments.data.is_dir() else [arguments.data]
    suffix = ".json" if arguments.json else ".csv" if arguments.csv else ".txt"
    settings = argparse.Namespace(**{key: value for key, value in vars(arguments).items() if key != "run"})
    gains: list[float] = []
    num = 0
    with open_results(arguments, "segment") as results:
        todo = unfinished(results, "segment", files, suffix)
        sources = [partial(_read, settings, file) for file in todo]
        opener = partial(_open, arguments.folder, arguments.device)
        answers: Iterator[Answer] = engines.run(engine, opener, sources) if todo else iter(())
        progress = Progress("segmented", None, "recording", always=True)
        with progress, kept_stdout(), writing(results, todo) as write:
            for where, group in itertools.groupby(answers, key=lambda answer: answer.where):
                rows: list[dict[str, Any]] = []
                for answer in group:
                    rows += answer.notes[0]
                    gains += [gain for gain in answer.notes[1] if gain > 0]
                    num += answer.num
                    progress.add(answer.num)
                write(where, _table(rows, arguments) + "\n")
    _warn(gains, model)
    say(f"segmented {quantity(num, 'recording')} of {quantity(len(todo), 'file')} into {arguments.out}")
    return 0


def _table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> str:
    return to_json(rows, indent=2) if arguments.json else _csv(rows) if arguments.csv else _text(rows)


def only(loaded: LoadedFrames, name: str) -> LoadedFrames:
    """One of the recordings."""
    names = loaded.given.names
    if name not in names:
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise DataError(f"no recording is called {name!r}; there are {listed}.")
    place = [names.index(name)]
    return loaded._replace(given=loaded.given.subset(place), frames=loaded.frames.subset(place))


def segment_frames(model: FrameModel, space: FrameSpace, frames: Frames) -> list[dict[str, Any]]:
    """The rows of the table, recording by recording; raises on a recording that is impossible under the model."""
    rows = []
    answers = answer_recordings(model, frames, lambda batch: segment_tables(model, batch))
    for name, length, found in zip(frames.names, frames.lengths, answers, strict=True):
        if not found:
            raise DomainError(impossible(name, length, model.config))
        for one in found:
            label = space.label_of(one.state)
            named = None if label is None or space.label_names is None else space.label_names[label]
            values = (name, one.start, one.end, one.state, named, one.posterior, one.frames)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _gains(model: FrameModel, frames: Frames) -> list[float]:
    """The nats that each recording would gain by longer segments than the model allows; none where all are shorter."""
    if not model.config.has_segments or model.config.max_duration >= max(frames.lengths):
        return []
    return answer_recordings(model, frames, lambda batch: gain_of_longer(model.potentials(batch)).tolist())


def _warn(gains: list[float], model: FrameModel) -> None:
    """Say it if longer segments would explain the recordings better."""
    longest = model.config.max_duration
    cut = cut_short(gains, longest, f"model.max_duration and train again: --set model.max_duration={2 * longest}")
    if cut is not None:
        say(f"warning: {cut}")


def pictures_of(loaded: LoadedFrames, folder: Path) -> list[Path]:
    """A picture for every recording, called by its name; raises where one is there that rankfold did not draw."""
    names = [re.sub(r"[^\w.-]+", "-", name) for name in loaded.frames.names]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two recordings would have the picture {twice}.png.\n  Give them names of their own.")
    paths = [folder / f"{name}.png" for name in names]
    for path in paths:
        expect_picture(path)
    return paths


def plot(
    loaded: LoadedFrames, rows: list[dict[str, Any]], path: Path, kind: Kind = "strips", *, number: int = 0
) -> Path:
    """Save a picture: of one recording, the first, or (durations) of all segments."""
    from rankfold.plots import segments as plots

    frames, given = loaded.frames, loaded.given
    found = [
        labels_of([(row["start"], row["end"], row["state"]) for row in rows if row["recording"] == name], length)
        for name, length in zip(frames.names, frames.lengths, strict=True)
    ]
    fps = loaded.space.fps if given.fps is None else given.fps
    truth = None if given.labels is None else given.labels
    names = given.label_names if truth is not None else loaded.space.label_names if loaded.space.labelled else None
    shown = found
    if truth is not None and not loaded.space.labelled:
        matching = match_states(found, truth)
        shown = [matching.apply(states) for states in found]
    title = f"recording {frames.names[number]}"
    if kind == "durations":
        return plots.plot_durations(shown, path, label_names=names, fps=fps)
    if kind == "roll":
        roll = given.features[number]
        return plots.plot_piano_roll(
            np.where(np.isnan(roll), 0.0, roll), path, states=found[number], fps=fps, title=title
        )
    if kind == "posterior":
        one = frames.subset([number])
        (table,) = answer_recordings(loaded.model, one, lambda batch: list(state_posteriors(loaded.model, batch)))
        above = None if truth is None else truth[number]
        return plots.plot_frame_posterior(
            table[: one.lengths[0]].numpy(), path, truth=above, label_names=names, fps=fps, title=title
        )
    strips = {"found": shown[number]} if truth is None else {"truth": truth[number], "found": shown[number]}
    return plots.plot_strips(strips, path, label_names=names, fps=fps, title=title)


def _text(rows: list[dict[str, Any]]) -> str:
    labelled = any(row["label"] is not None for row in rows)
    wide = max(len("recording"), *(len(row["recording"]) for row in rows))
    label_width = max((len(row["label"] or "-") for row in rows), default=0) + 2 if labelled else 0
    head = f"{'recording':<{wide}}  {'start':>7}{'end':>7}{'state':>7}"
    lines = [head + (f"  {'label':<{label_width}}" if labelled else "") + f"{'posterior':>11}{'frames':>8}"]
    for row in rows:
        named = f"  {row['label'] or '-':<{label_width}}" if labelled else ""
        place = f"{row['recording']:<{wide}}  {row['start']:>7}{row['end']:>7}{row['state']:>7}"
        lines.append(f"{place}{named}{row['posterior']:>11.4f}{row['frames']:>8.4f}")
    return "\n".join(lines)


def _csv(rows: list[dict[str, Any]]) -> str:
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue().rstrip("\n")
