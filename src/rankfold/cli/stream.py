"""Text read piece by piece: memory does not grow with a file, and answers keep the order of its lines.

A file is read twice. First its lines are checked and counted, so that a mistake in the last one costs no work; then
they are answered. Standard input is answered as it comes, and what it held is said at its end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rankfold.cli.load import Text, keeps_ends, tell_unknown_words
from rankfold.cli.output import say
from rankfold.data.arrow_files import arrow_lines, is_arrow
from rankfold.data.text import STDIN, Arriving, check_line, expect_words, iterate_lines
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, quantity
from rankfold.models.strings import split_line

NUM_WORDS = 2**14  # of a piece at most, a line counted as one more: several batches of like lengths
NUM_COUNTED = 100_000  # different unknown words at most, each with its count
SECONDS = 10.0  # between two lines of progress
COLUMN = "text"  # of a table, where none is named


@dataclass(frozen=True)
class TextSource:
    """The pieces of a file, or (None) of standard input: consecutive lines, fewer where more has not come yet.

    Of a table (Parquet, Arrow) `column` is the text, a row a line. With `ids` every line has one: its number, or the
    value of a column called so. With `ends`, `<eos>` is a word like others.
    """

    path: Path | None
    vocabulary: Vocabulary
    ends: bool = False
    column: str | None = None
    ids: str | None = None

    @property
    def where(self) -> str:
        """Its name in errors."""
        return str(STDIN if self.path is None else self.path)

    def __call__(self) -> Iterator[Text]:
        arriving = Arriving(sys.stdin.buffer) if self.path is None else None
        text, size = self._empty(1), 0
        for number, (line, name) in enumerate(self._lines(arriving), 1):
            words = split_line(line, self.vocabulary, ends=self.ends)
            text.lines.append(line)
            text.words.append(words)
            if text.ids is not None:
                text.ids.append(str(number) if name is None else name)
            size += len(words) + 1
            if size >= NUM_WORDS or (arriving is not None and arriving.is_idle()):
                yield text
                text, size = self._empty(number + 1), 0
        if text.lines:
            yield text

    def _empty(self, first: int) -> Text:
        return Text(self.where, [], [], first, None if self.ids is None else [])

    def _lines(self, arriving: Arriving | None) -> Iterator[tuple[str, str | None]]:
        """The lines, and their ids where a column has them."""
        ends = keeps_ends(self.vocabulary, ends=self.ends)
        if self.path is None or not is_arrow(self.path):
            for option, given in (("--column", self.column), ("--ids", self.ids)):
                if given:
                    raise DataError(f"{self.where} has no columns: {option} {given} is for Parquet and Arrow files.")
            yield from ((line, None) for line in iterate_lines(self.path, ends=ends, arriving=arriving))
            return
        number, has_words = 0, False
        for number, (line, name) in enumerate(arrow_lines(self.path, self.column or COLUMN, self.ids or None), 1):
            check_line(line, f"{self.path}, row {number}", ends=ends)
            has_words = has_words or bool(line.split())
            yield line, name
        expect_words(self.where, number, has_words)


@dataclass
class Survey:
    """What a text held: lines, empty ones, words that count as <unk>."""

    where: str
    num_lines: int = 0
    num_empty: int = 0
    num_others: int = 0  # unknown words that came after so many different ones
    unknown: Counter[str] = field(default_factory=Counter)

    def see(self, text: Text, vocabulary: Vocabulary) -> None:
        self.num_lines += len(text.lines)
        self.num_empty += len(text.words) - len(text.sentences)
        self._count(Counter(word for words in text.words for word in words if not vocabulary.knows(word)))

    def add(self, other: Survey) -> None:
        """Take in that of the next piece."""
        self.num_lines += other.num_lines
        self.num_empty += other.num_empty
        self.num_others += other.num_others
        self._count(other.unknown)

    def _count(self, unknown: Counter[str]) -> None:
        for word, count in unknown.items():
            if word in self.unknown or len(self.unknown) < NUM_COUNTED:
                self.unknown[word] += count
            else:
                self.num_others += count

    def tell(self, vocabulary: Vocabulary) -> None:
        """Say it on standard error."""
        if self.num_empty:
            say(f"{self.where}: {self.num_empty:,} empty {'line stays' if self.num_empty == 1 else 'lines stay'} empty")
        tell_unknown_words(self.unknown, vocabulary, others=self.num_others)


def survey_text(where: str, pieces: Iterable[Text], vocabulary: Vocabulary, check: Callable[[Text], None]) -> Survey:
    """Check every piece of a text before any is answered; its survey is told."""
    survey = Survey(where)
    with Progress("read", None) as progress:
        for text in pieces:
            check(text)
            survey.see(text, vocabulary)
            progress.add(len(text.lines))
    survey.tell(vocabulary)
    return survey


class Progress:
    """How many lines (or `what`) are done, on standard error: a bar on a terminal, else a line every ten seconds.

    Where results go to the same terminal, they are the progress; with `always` they go elsewhere, or come at the end.
    """

    def __init__(self, done: str, total: int | None, what: str = "line", *, always: bool = False) -> None:
        self.done, self.total, self.num, self.last, self.what = done, total, 0, time.monotonic(), what
        self.shown = always
        self.bar: Any = None

    def __enter__(self) -> Progress:
        self.shown = self.shown or not (sys.stderr.isatty() and sys.stdout.isatty())
        if self.shown and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            columns = (TextColumn(self.done), BarColumn(), MofNCompleteColumn(), TextColumn(f"{self.what}s"))
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
            say(f"{self.done} {of}{quantity(self.num if self.total is None else self.total, self.what)}")
