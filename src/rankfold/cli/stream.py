"""Text read piece by piece: memory does not grow with a file, and answers keep the order of its lines.

A file is read twice. First its lines are checked and counted, so that a mistake in the last one costs no work; then
they are answered. Standard input is answered as it comes, and what it held is said at its end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from rankfold.cli.load import Text, keeps_ends, tell_unknown_words
from rankfold.cli.output import say
from rankfold.data.text import STDIN, Arriving, iterate_lines
from rankfold.data.vocab import Vocabulary
from rankfold.errors import quantity
from rankfold.models.strings import split_line

NUM_WORDS = 2**14  # of a piece at most, a line counted as one more: several batches of like lengths
NUM_COUNTED = 100_000  # different unknown words at most, each with its count
SECONDS = 10.0  # between two lines of progress


def stream(
    path: Path | None,
    vocabulary: Vocabulary,
    *,
    ends: bool = False,
    check: Callable[[Text], None] | None = None,
    done: str = "answered",
    whole: bool = False,
) -> Iterator[Text]:
    """The pieces of a file, or (None) of standard input; after each the output is flushed.

    `check` sees all pieces of a file before the first is answered, of standard input each just before it is; with
    `whole` that is read to its end first, too. `done`: what progress says of lines.
    """
    survey = _Survey(path, vocabulary)
    pieces: Iterable[Text] = _pieces(path, vocabulary, ends=ends)
    if path is not None or whole:
        pieces = pieces if path is not None else list(pieces)
        with Progress("read", None) as progress:
            for text in pieces:
                survey.see(text, check)
                progress.add(len(text.lines))
        survey.tell()
        pieces = pieces if path is None else _pieces(path, vocabulary, ends=ends)
    with Progress(done, survey.num_lines or None) as progress:
        for text in pieces:
            if path is None and not whole:
                survey.see(text, check)
            yield text
            sys.stdout.flush()
            progress.add(len(text.lines))
    if path is None and not whole:
        survey.tell()


def _pieces(path: Path | None, vocabulary: Vocabulary, *, ends: bool) -> Iterator[Text]:
    """Consecutive lines; fewer where more of standard input has not come yet."""
    where = str(STDIN if path is None else path)
    arriving = Arriving(sys.stdin.buffer) if path is None else None
    text, size = Text(where, [], []), 0
    for line in iterate_lines(path, ends=keeps_ends(vocabulary, ends=ends), arriving=arriving):
        words = split_line(line, vocabulary, ends=ends)
        text.lines.append(line)
        text.words.append(words)
        size += len(words) + 1
        if size >= NUM_WORDS or (arriving is not None and arriving.is_idle()):
            yield text
            text, size = Text(where, [], [], text.first + len(text.lines)), 0
    if text.lines:
        yield text


class _Survey:
    """What a text held: lines, empty ones, words that count as <unk>."""

    def __init__(self, path: Path | None, vocabulary: Vocabulary) -> None:
        self.where, self.vocabulary = str(STDIN if path is None else path), vocabulary
        self.num_lines = self.num_empty = self.num_others = 0
        self.unknown: Counter[str] = Counter()

    def see(self, text: Text, check: Callable[[Text], None] | None) -> None:
        if check is not None:
            check(text)
        self.num_lines += len(text.lines)
        self.num_empty += len(text.words) - len(text.sentences)
        for words in text.words:
            for word in words:
                if not self.vocabulary.knows(word):
                    if word in self.unknown or len(self.unknown) < NUM_COUNTED:
                        self.unknown[word] += 1
                    else:
                        self.num_others += 1

    def tell(self) -> None:
        """Say it on standard error."""
        if self.num_empty:
            say(f"{self.where}: {self.num_empty:,} empty {'line stays' if self.num_empty == 1 else 'lines stay'} empty")
        tell_unknown_words(self.unknown, self.vocabulary, others=self.num_others)


class Progress:
    """How many lines are done, on standard error: a bar on a terminal, else a line every ten seconds.

    Where results go to the same terminal, they are the progress.
    """

    def __init__(self, done: str, total: int | None) -> None:
        self.done, self.total, self.num, self.last = done, total, 0, time.monotonic()
        self.bar: Any = None

    def __enter__(self) -> Progress:
        self.shown = not (sys.stderr.isatty() and sys.stdout.isatty())
        if self.shown and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            columns = (TextColumn(self.done), BarColumn(), MofNCompleteColumn(), TextColumn("lines"))
            self.bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("", total=self.total)
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def add(self, num: int) -> None:
        """So many lines more are done."""
        self.num += num
        if self.bar is not None:
            self.bar.update(self.task, completed=self.num)
        elif self.shown and time.monotonic() - self.last >= SECONDS:
            self.last = time.monotonic()
            of = "" if self.total is None else f"{self.num:,} of "
            say(f"{self.done} {of}{quantity(self.num if self.total is None else self.total, 'line')}")
