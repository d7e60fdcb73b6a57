"""Known brackets of sentences: spans that their trees must have, from a file, one line for each line of a text.

    0:2 3:7

are the words 0 and 1, and the words 3 to 6, counted from 0: ends are not included, as in the output of `rankfold parse
--json`. An empty line knows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rankfold.data.brackets import lines_of
from rankfold.errors import DataError
from rankfold.files import expect_file

Brackets = list[tuple[int, int]]
_SPAN = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True)
class KnownBrackets:
    """The brackets of each line of a file."""

    path: Path
    lines: list[Brackets]

    def of_lines(self, first: int, words: Sequence[Sequence[str]]) -> list[Brackets]:
        """The brackets of some lines of the text, from number `first`; raises where they do not fit its words."""
        if first - 1 + len(words) > len(self.lines):
            raise DataError(
                f"{self.path} has {len(self.lines)} lines of brackets, but the text has more.\n"
                "  Give one line for each line of the text, an empty one where nothing is known."
            )
        found = self.lines[first - 1 : first - 1 + len(words)]
        for number, (brackets, own) in enumerate(zip(found, words, strict=True), first):
            expect_spans(brackets, len(own), f"{self.path}, line {number}")
        return found

    def expect_all_used(self, num_lines: int) -> None:
        """Raise where there are more lines than the text has."""
        if num_lines < len(self.lines):
            raise DataError(
                f"{self.path} has {len(self.lines)} lines of brackets, but the text has {num_lines}: "
                "as many were expected."
            )


def read_brackets(path: str | Path) -> KnownBrackets:
    """The brackets of a file in UTF-8, one line for each sentence; errors name the file and the line."""
    path = Path(path)
    if not path.exists() or path.is_dir():
        what = "a folder, but a file of brackets was expected" if path.is_dir() else "missing"
        raise DataError(f"{path} is {what}.\n  Check the path, relative to {Path.cwd()}.")
    expect_file(path, "a file of brackets")
    found: list[Brackets] = []
    for number, line in enumerate(lines_of(path), 1):
        where, own = f"{path}, line {number}", []
        for token in line.split():
            match = _SPAN.fullmatch(token)
            if match is None:
                raise DataError(
                    f"{where}: {token!r} is no bracket; spans such as 0:2 were expected, white space between."
                )
            own.append((int(match[1]), int(match[2])))
        expect_nested(own, where)
        found.append(own)
    return KnownBrackets(path, found)


def expect_spans(brackets: Iterable[tuple[int, int]], length: int, where: str) -> None:
    """Raise unless these are spans of a sentence of so many words, none of which cross."""
    own = list(brackets)
    for i, j in own:
        if not 0 <= i < j <= length:
            raise DataError(
                f"{where}: bracket {i}:{j} is no span of {length} words; i:j with 0 <= i < j <= {length} was expected."
            )
    expect_nested(own, where)


def expect_nested(brackets: Sequence[tuple[int, int]], where: str) -> None:
    """Raise where two brackets cross: no tree has both."""
    open_ones: list[tuple[int, int]] = []
    for i, j in sorted(set(brackets), key=lambda span: (span[0], -span[1])):
        while open_ones and open_ones[-1][1] <= i:
            open_ones.pop()
        if open_ones and open_ones[-1][1] < j:
            k, m = open_ones[-1]
            raise DataError(
                f"{where}: brackets {k}:{m} and {i}:{j} cross, so no tree has both.\n  Leave one of them out."
            )
        open_ones.append((i, j))


def log_spans(brackets: Sequence[Sequence[tuple[int, int]]], length: int, *, like: Tensor) -> Tensor:  # "b t+1 t+1"
    """0 for the spans that trees with these brackets may have, -inf for those that cross one.

    A binary tree none of whose spans crosses a bracket has that bracket.
    """
    i, j = torch.arange(length + 1)[:, None], torch.arange(length + 1)
    found = torch.zeros(len(brackets), length + 1, length + 1)
    for k, own in enumerate(brackets):
        for begin, end in own:
            cross = ((i < begin) & (begin < j) & (j < end)) | ((begin < i) & (i < end) & (end < j))
            found[k].masked_fill_(cross, float("-inf"))
    return found.to(like)
