"""A text or recordings answered by an engine: to standard output, or with --out to a folder, one file for each input.

A worker answers a piece with what is printed of it, so that other processes do that work, too. Without --out a file is
read twice, first to check it; with --out once, and a file in which a mistake is found has no result.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rankfold.cli.load import Text, count, load_words, text_path
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import Progress, Survey, TextSource, survey_text
from rankfold.corpora.engines import KINDS, RETRIES, Engine, Source, run, share_of
from rankfold.corpora.results import ResultFile, Results, model_digest
from rankfold.data.arrow_files import ARROW
from rankfold.data.text import STDIN
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, UnsupportedError, quantity
from rankfold.training.run_dir import model_folder

TEXTS = (".txt", ".txt.gz", ".tokens", ".tokens.gz", *ARROW)
# Not part of what is asked: where the input is, and where and by how many it is answered.
ELSEWHERE = (
    *("folder", "file", "data", "device", "engine", "workers", "retries", "out", "quiet", "threads", "run", "plot"),
    *("draw", "kind", "line"),
)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """--engine, --workers, --retries and --out."""
    parser.add_argument(
        "--engine",
        choices=KINDS,
        default="here",
        help="here: this process (default); processes: several on this machine; ray: actors of Ray Data (extra ray)",
    )
    parser.add_argument("--workers", type=count, metavar="N", help="processes or actors (default: one for each CPU)")
    parser.add_argument(
        "--retries",
        type=_from_zero,
        metavar="N",
        default=RETRIES,
        help="how often a piece is tried again whose worker died (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write one file for each input into this folder; a second run skips those that are finished",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """--column and --ids, of texts."""
    parser.add_argument(
        "--column", metavar="NAME", help="the column of a Parquet or Arrow file that is the text (default: text)"
    )
    parser.add_argument(
        "--ids",
        nargs="?",
        const="",
        metavar="COLUMN",
        help="begin each result with the number of its line, or with its value of a column",
    )


def _from_zero(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def engine_of(arguments: argparse.Namespace) -> Engine:
    """The engine that a command was given; raises where it cannot run."""
    kind, workers = arguments.engine, arguments.workers
    if kind == "here" and workers is not None:
        raise DataError(f"--workers {workers} is for other engines.\n  Add --engine processes, or --engine ray.")
    threads = getattr(arguments, "threads", None)
    gpus = arguments.device == "cuda" or (arguments.device == "auto" and torch.cuda.is_available())
    return Engine(kind, workers, arguments.retries, threads, gpus=gpus)


class Answer(NamedTuple):
    """What a worker found in a piece."""

    where: str  # the input
    num: int  # lines, or recordings
    out: str  # as printed; of recordings nothing, their rows are in the notes
    survey: Survey | None = None
    notes: Any = None  # what the command says at the end


Row = str | Mapping[str, Any]  # one line that is printed, or its record


class TextWorker:
    """Answers to the pieces of a text by a model of words; a command of its own says how."""

    ends = False  # whether <eos> may be a word
    done = "answered"  # what progress says of lines
    remark = ""  # said before the answers
    whole = False  # whether standard input is read to its end first, too

    def __init__(self, model: Any, vocabulary: Vocabulary, arguments: argparse.Namespace) -> None:
        self.model, self.vocabulary, self.arguments = model, vocabulary, arguments
        self.parts: Any = None
        self.surveys = False  # whether pieces are checked and surveyed here, as they come

    def check(self, text: Text) -> None:
        """Raise on a piece that cannot be answered."""

    def answer(self, text: Text) -> tuple[Sequence[Sequence[Row]], Any]:
        """The printed lines of each line of the text, and notes."""
        raise NotImplementedError

    def __call__(self, text: Text) -> Answer:
        survey = None
        if self.surveys:
            survey = Survey(text.where)
            self.check(text)
            survey.see(text, self.vocabulary)
        with torch.no_grad():
            self.parts = self.model.parts() if self.parts is None else self.parts
        rows, notes = self.answer(text)
        ids: Sequence[str | None] = [None] * len(text.lines) if text.ids is None else text.ids
        lines = (_printed(row, name) for found, name in zip(rows, ids, strict=True) for row in found)
        return Answer(text.where, len(text.lines), "".join(lines), survey, notes)


def _printed(row: Row, name: str | None) -> str:
    if isinstance(row, str):
        return f"{row}\n" if name is None else f"{name}\t{row}\n"
    return to_json(row if name is None else {"id": name, **row}) + "\n"


def open_text_worker(
    kind: type[TextWorker], folder: Path, device: str, arguments: argparse.Namespace, surveys: bool
) -> TextWorker:
    """A worker in another process, with a model of its own."""
    worker = kind(*load_words(folder, device), arguments)
    worker.surveys = surveys
    return worker


def answer_text(
    arguments: argparse.Namespace, command: str, kind: type[TextWorker], tell: Callable[[Any], None]
) -> TextWorker:
    """Answer the text of a command by an engine. `tell` gets the notes of every piece, in order."""
    engine = engine_of(arguments)
    model, vocabulary = load_words(arguments.folder, arguments.device if engine.kind == "here" else "cpu")
    worker = kind(model, vocabulary, arguments)
    path = text_path(arguments)
    if path is None and (engine.kind == "ray" or arguments.out is not None):
        what = "--out writes a result for each file" if arguments.out is not None else "--engine ray reads files"
        raise DataError(f"{what}, but the text is standard input.\n  Give a FILE or a folder of files.")
    if path is not None and path.is_dir() and arguments.out is None:
        raise DataError(
            f"{path} is a folder: its files are answered one by one, each with a result of its own.\n"
            "  Say where they go with --out FOLDER, or give one file of it, such as train.txt."
        )
    given = files_of(path, TEXTS) if path is not None and path.is_dir() else [path]
    sources: list[Source] = [
        TextSource(file, vocabulary, worker.ends, arguments.column, arguments.ids) for file in given
    ]
    if path is None and worker.whole:
        sources = [share_of(list(sources[0]()))]
    worker.surveys = arguments.out is not None or (path is None and not worker.whole)
    if worker.remark:
        say(worker.remark)
    settings = argparse.Namespace(**{key: value for key, value in vars(arguments).items() if key != "run"})
    opener: Any = partial(
        open_text_worker, kind, model_folder(arguments.folder), arguments.device, settings, worker.surveys
    )
    if engine.kind == "here":
        opener = partial(_same, worker)
    if arguments.out is None:
        where = str(STDIN if path is None else path)
        total = None if worker.surveys else survey_text(where, sources[0](), vocabulary, worker.check).num_lines
        _to_stdout(run(engine, opener, sources), worker, tell, total)
    else:
        suffix = ".jsonl" if arguments.json else ".txt"
        files = [file for file in given if file is not None]
        _to_folder(arguments, command, files, suffix, engine, opener, sources, worker, tell)
    return worker


def _same(worker: TextWorker) -> TextWorker:
    return worker


def _to_stdout(
    answers: Generator[Answer, None, None], worker: TextWorker, tell: Callable[[Any], None], total: int | None
) -> None:
    survey = Survey(str(STDIN))
    with Progress(worker.done, total) as progress, kept_stdout() as stdout, contextlib.closing(answers):
        for answer in answers:
            stdout.write(answer.out)
            stdout.flush()
            progress.add(answer.num)
            if answer.survey is not None:
                survey.add(answer.survey)
            tell(answer.notes)
    if worker.surveys:
        survey.tell(worker.vocabulary)


def _to_folder(
    arguments: argparse.Namespace,
    command: str,
    files: Sequence[Path],
    suffix: str,
    engine: Engine,
    opener: Any,
    sources: Sequence[Source],
    worker: TextWorker,
    tell: Callable[[Any], None],
) -> None:
    survey = Survey(str(files[0]) if len(files) == 1 else str(files[0].parent))
    with open_results(arguments, command) as results:
        todo = unfinished(results, command, files, suffix)
        chosen = [source for file, source in zip(files, sources, strict=True) if file in todo]
        answers: Iterator[Answer] = run(engine, opener, chosen) if chosen else iter(())
        with Progress(worker.done, None, always=True) as progress, kept_stdout(), writing(results, todo) as write:
            for answer in answers:
                write(answer.where, answer.out)
                progress.add(answer.num)
                if answer.survey is not None:
                    survey.add(answer.survey)
                tell(answer.notes)
    survey.tell(worker.vocabulary)
    say(f"{worker.done} {quantity(survey.num_lines, 'line')} of {quantity(len(todo), 'file')} into {arguments.out}")


def files_of(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """The files of a folder that can be answered, in the order of their names; an error if there is none."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    found = [folder / name for name in names if name.lower().endswith(tuple(suffixes)) and not name.startswith(".")]
    if not found:
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise DataError(f"{folder}: no files in {', '.join(suffixes)}; the folder holds {listed or 'no files'}.")
    if len(found) < len(names):
        say(f"{folder}: {quantity(len(names) - len(found), 'other file')} passed over")
    return found


def open_results(arguments: argparse.Namespace, command: str) -> Results:
    """The folder --out, for this command, its options and its model."""
    given = Path(arguments.data if getattr(arguments, "file", None) is None else arguments.file)
    if given.is_dir() and arguments.out.resolve() == given.resolve():
        raise DataError(f"--out is {arguments.out}, the folder of the input.\n  Give another one.")
    asked = {key: value for key, value in vars(arguments).items() if key not in ELSEWHERE}
    return Results(
        arguments.out, {"command": command, "options": asked, "model": model_digest(model_folder(arguments.folder))}
    )


def unfinished(results: Results, command: str, files: Sequence[Path], suffix: str) -> dict[Path, str]:
    """The inputs that have no result yet, or changed since, and the names of their results; told."""
    names = {file: f"{file.name}.{command}{suffix}" for file in files}
    todo = {file: name for file, name in names.items() if not results.is_finished(file, name)}
    if len(todo) < len(names):
        say(f"{results.folder}: {quantity(len(names) - len(todo), 'file')} finished already, {len(todo):,} to do")
    return todo


@contextlib.contextmanager
def writing(results: Results, todo: Mapping[Path, str]) -> Iterator[Callable[[str, str], None]]:
    """A function that writes what is printed of an input, in the order of the inputs; a result is finished when the
    next begins, and what is not whole at an error is removed.
    """
    named = {str(file): file for file in todo}
    current: ResultFile | None = None

    def write(where: str, text: str) -> None:
        nonlocal current
        if current is None or str(current.source) != where:
            if current is not None:
                current.finish()
            current = None
            current = results.write(named[where], todo[named[where]])
        current.write(text)

    try:
        yield write
        if current is not None:
            current.finish()
    except BaseException:
        if current is not None:
            current.drop()
        raise


@contextlib.contextmanager
def kept_stdout() -> Iterator[Any]:
    """Standard output for results alone: what an engine prints meanwhile goes to standard error."""
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield stdout


def refuse_elsewhere(arguments: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise on options that need the answers in this process, or all of them at once."""
    for name in names:
        if getattr(arguments, name) and (arguments.engine != "here" or arguments.out is not None):
            other = "--out" if arguments.out is not None else f"--engine {arguments.engine}"
            raise UnsupportedError(f"--{name} goes without {other}.\n  Leave one of them out.")
