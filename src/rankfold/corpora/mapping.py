"""`rankfold.map`: one question about every sentence or recording of a dataset, by an engine, in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

from rankfold.analysis.decoded_frames import answer_recordings
from rankfold.corpora.engines import RETRIES, Engine, Kind, Source, run, share_of
from rankfold.data.arrow_files import arrow_lines, is_arrow
from rankfold.data.frame_files import read_frames
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import frames_of
from rankfold.data.text import iterate_lines
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.strings import parse_text, score_text, tag_text
from rankfold.training.recordings import expect_observed
from rankfold.training.run_dir import load, model_folder

Question = Literal["score", "tag", "parse", "segment"]
TEXT_QUESTIONS: dict[str, Callable[..., Any]] = {"score": score_text, "tag": tag_text, "parse": parse_text}
NUM_WORDS = 2**14  # of a piece, a sentence counted as one more
NUM_FRAMES = 2**16


class Items(NamedTuple):
    """Some items of a dataset."""

    where: str
    first: int  # the number of the first, from 1
    items: list[Any]

    @property
    def label(self) -> str:
        """Which they are, for an error."""
        return f"{self.where}, items {self.first} to {self.first + len(self.items) - 1}"


def map(
    dataset: Any,
    model: Model[Any, Any] | str | Path,
    question: Question,
    *,
    engine: Kind = "here",
    workers: int | None = None,
    retries: int = RETRIES,
    threads: int | None = None,
    device: str = "cpu",
    column: str = "text",
    **options: Any,
) -> Iterator[Any]:
    """The answer to each item of a dataset, in order, as they come: what `model.score`, `.tag` or `.parse` returns of a
    sentence, or the segments of a recording. Memory does not grow with the dataset.

    dataset   sentences (strings or lists of words) or, for "segment", arrays "t f": a list, or anything that is
              iterated over; or the path of a file (text, one sentence a line; Parquet or Arrow; recordings), or a list
              of `Path`s
    model     a model, or the folder of a run or model, which workers load by themselves
    engine    "here"; "processes" on this machine; "ray", actors of Ray Data. The others as in
              `rankfold score --help`; a script calls it under `if __name__ == "__main__":` for processes
    options   of the question: end (score), method (tag), decode and labels (parse)
    """
    chosen = Engine(engine, workers, retries, threads, gpus=device == "cuda")
    if question not in get_args(Question):
        raise DomainError(f'the question is {question!r}, but must be "score", "tag", "parse" or "segment".')
    own = model if isinstance(model, Model) else load(model, device=device if engine == "here" else "cpu")
    frames = own.config.data == "recordings"
    if frames != (question == "segment"):
        of = "models of frames" if question == "segment" else "models of words"
        raise UnsupportedError(f'"{question}" is asked of {of}, but "{own.config.family}" is no family of such models.')
    _asker(own, question, options)([])  # raises on an option that the question has not
    paths = _paths(dataset)
    if paths is None:
        pieces = _pieces(dataset, "the dataset", frames=frames)
        sources: list[Source] = [share_of(list(pieces) if engine == "ray" else pieces)]
    else:
        sources = [partial(_read, path, column, frames=frames) for path in paths]
    return _answers(chosen, own, model, question, options, sources, device)


def _answers(
    engine: Engine,
    own: Model[Any, Any],
    model: Any,
    question: str,
    options: Mapping[str, Any],
    sources: list[Source],
    device: str,
) -> Iterator[Any]:
    if engine.kind == "here":
        for found in run(engine, partial(_asker, own, question, options), sources):
            yield from found
        return
    with tempfile.TemporaryDirectory(prefix="rankfold-") as folder:
        home = Path(folder)
        if isinstance(model, Model):
            model.save_pretrained(home)
        else:
            home = model_folder(Path(model)).absolute()
        for found in run(engine, partial(_open, home, device, question, options), sources):
            yield from found


def _open(folder: Path, device: str, question: str, options: Mapping[str, Any]) -> Callable[[Any], list[Any]]:
    return _asker(load(folder, device=device), question, options)


def _asker(model: Any, question: str, options: Mapping[str, Any]) -> Callable[[Any], list[Any]]:
    """The worker: a list of answers to the items of a piece."""
    if question == "segment":
        if options:
            raise DomainError(f'"segment" has no option {next(iter(options))!r}.')
        return partial(_segments, model)
    with torch.no_grad():
        parts = model.parts()

    def ask(piece: Items | list[Any]) -> list[Any]:
        items = piece.items if isinstance(piece, Items) else piece
        try:
            return list(TEXT_QUESTIONS[question](model, items, parts=parts, **options))
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise DomainError(f'"{question}" has no such option: {str(error).split("argument")[-1].strip()}.') from None

    return ask


def _segments(model: Any, piece: Items | list[Any]) -> list[Any]:
    if not isinstance(piece, Items):
        return []
    frames = frames_of(piece.items, missing="feature")
    expect_observed(frames, model.config)
    space = FrameSpace(frames.num_features) if model.space is None else model.space
    return answer_recordings(model, space.apply(frames), model.segments)


def _paths(dataset: Any) -> list[Path] | None:
    """The files of a dataset; None where it is not a path or paths."""
    if isinstance(dataset, str | Path):
        return [Path(dataset)]
    if isinstance(dataset, list | tuple) and dataset and all(isinstance(one, Path) for one in dataset):
        return list(dataset)
    if not isinstance(dataset, Iterable):
        raise UnsupportedError(
            f"the dataset is a {type(dataset).__name__}, but a list, a path or anything to iterate over was expected."
        )
    return None


def _read(path: Path, column: str, *, frames: bool) -> Iterator[Items]:
    if frames:
        yield from _pieces(read_frames(path).features, str(path), frames=True)
    elif is_arrow(path):
        yield from _pieces((text for text, _ in arrow_lines(path, column)), str(path), frames=False)
    else:
        yield from _pieces(iterate_lines(path), str(path), frames=False)


def _pieces(items: Iterable[Any], where: str, *, frames: bool) -> Iterator[Items]:
    """Consecutive items, so many that a batch of like lengths can be found among them."""
    taken: list[Any] = []
    size, first = 0, 1
    for item in items:
        taken.append(item)
        size += len(item) if frames else 1 + len(item.split() if isinstance(item, str) else item)
        if size >= (NUM_FRAMES if frames else NUM_WORDS):
            yield Items(where, first, taken)
            taken, size, first = [], 0, first + len(taken)
    if taken:
        yield Items(where, first, taken)
