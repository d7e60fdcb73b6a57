"""Text as it comes, to sentences: files in any layout, read once in blocks, never more than a few megabytes in memory.

A text is wrapped (the lines of a paragraph belong together), or has a paragraph or a sentence per line; blank lines
part documents. Sentences end at full stops, question and exclamation marks, by a few rules that need no language.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from rankfold.data.text import BOM, BROKEN_GZIP, LONGEST_LINE, STDIN, open_bytes
from rankfold.data.tokenize import Memory
from rankfold.errors import DataError
from rankfold.files import expect_file

Layout = Literal["wrapped", "paragraphs", "lines"]
HEAD, BLOCK = 2**20, 2**18  # bytes: of a file looked at to find its layout; read at once
WIDEST = 200  # characters of a line of wrapped text

# A chunk, text without white space, that may end a sentence: its mark, and the quotes and brackets closed after it.
END = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964\u0965\u3002\uff01\uff1f][\"'\u2019\u201d\u00bb)\]_*\u300d\u300f\uff09]*$"
)
INITIAL = re.compile(r"\W*[^\W\d_]\.\W*|\W*(?:[^\W\d_]\.){2,}\W*")  # J. and U.S. and e.g.
_ABBREVIATIONS = (
    "mr mrs ms dr st prof rev hon sr jr messrs mme mlle capt col gen lt sgt maj gov sen rep pres no nos vol vols ch "
    "chap fig figs pp ed eds vs viz cf al approx dept inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec "
    "mt ft ave"
)
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
INSIDE = re.compile("([\u3002\uff01\uff1f]+(?: ?[\u300d\u300f\u201d\u2019\uff09])*)(?=.)")  # scripts without spaces
CLOSING = frozenset(".,;:!?)]}\u2026\u201d\u00bb")
# Signs that no chunk holds: after one that may end a sentence; in place of a line end; two of these, a blank line.
MARK, LINE, GAP, EDGES = "\n", "\0", "\0 \0", " \0"
AFTER_MARK = re.compile(f"{MARK} ?([^ {MARK}{LINE}A-Z])")  # before a capital of ASCII nothing is joined


@dataclass
class Counts:
    """Counts of a text that was read."""

    files: int = 0
    bytes: int = 0  # unpacked
    lines: int = 0
    empty_lines: int = 0
    documents: int = 0
    byte_order_marks: int = 0
    layouts: dict[str, int] = field(default_factory=dict)  # files by layout


class Piece(NamedTuple):
    """Sentences of a document, all of them unless it is very long; `new` where a document begins, or a file."""

    sentences: list[str]
    new: bool
    new_file: bool
    size: int  # characters


def expect_texts(names: Sequence[str]) -> None:
    """Raise, before any work, on a name that is no file of text; "-" is standard input."""
    if not names:
        raise DataError("no text: give one file or more, or - for standard input.")
    seen: set[str] = set()
    for name in names:
        path = Path(name)
        if name != "-":
            if path.is_dir():
                raise DataError(f"{path} is a folder, but a file of text was expected.\n  Give its files: {path}/*.txt")
            expect_file(path, "a file of text")
            if not path.stat().st_size:
                raise DataError(f"{path}: the file is empty; a text was expected.")
        same = name if name == "-" else os.path.realpath(path)
        if same in seen:
            raise DataError(f"{name} is given twice: each of its sentences would stand in the text twice.")
        seen.add(same)


class Reader:
    """The documents of some files as sentences, read once; `counts` and `digest` are complete at the end.

    `write`: how a chunk, text without white space, is written. `layout`: of all files; None finds that of each from its
    first megabyte. `progress` is called with the number of bytes read so far, unpacked.
    """

    def __init__(
        self,
        names: Sequence[str],
        write: Callable[[str], str],
        layout: Layout | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.names, self.layout, self.progress = names, layout, progress
        self.counts = Counts()
        self.digest = hashlib.sha256()  # of all text, unpacked
        self._plain, self._marked = Memory(write), Memory(lambda chunk: mark_end(chunk, write(chunk)))
        for memory in (self._plain, self._marked):
            memory[LINE] = LINE

    def __iter__(self) -> Iterator[Piece]:
        for name in self.names:
            self.counts.files += 1
            yield from self._pieces(STDIN if name == "-" else Path(name))

    def _pieces(self, path: Path) -> Iterator[Piece]:
        layout, pending, new, first = self.layout, "", True, True  # whether a document begins, and the file
        for text in self._blocks(path):
            layout = layout or find_layout(text.split("\n"))
            memory = self._plain if layout == "lines" else self._marked
            pending += " ".join(map(memory.__getitem__, text.replace("\n", f" {LINE} ").split())) + " "
            *documents, pending = pending.split(GAP)
            complete = len(documents)
            if len(pending) > HEAD:
                cut = _last_end(pending)
                documents, pending = [*documents, pending[:cut]], pending[cut:]
            for i, document in enumerate(documents):
                if piece := self._piece(document, layout, new, first):
                    yield piece
                    first = False
                new = i < complete
        if layout and (piece := self._piece(pending, layout, new, first)):
            yield piece
        if layout:
            self.counts.layouts[layout] = self.counts.layouts.get(layout, 0) + 1

    def _piece(self, text: str, layout: Layout, new: bool, new_file: bool) -> Piece | None:
        text = text.strip(EDGES)
        if not text:
            return None
        self.counts.documents += new
        self.counts.empty_lines -= text.count(LINE) + 1  # of all lines, those that have words
        if layout == "lines":
            return Piece(text.split(f" {LINE} "), new, new_file, len(text))
        ends = join_small(text.replace(f" {LINE}", "") if layout == "wrapped" else text)
        sentences = list(filter(None, map(str.strip, ends.replace(LINE, MARK).split(MARK))))
        return Piece(sentences, new, new_file, len(text))

    def _blocks(self, path: Path) -> Iterator[str]:
        """The lines of a file, a block at a time; every rule that bytes can break is checked."""
        rest, done, line, size = b"", 0, 1, HEAD  # bytes and lines before `rest`
        packed = path.suffix == ".gz" and path is not STDIN
        opened = contextlib.nullcontext(sys.stdin.buffer) if path is STDIN else open_bytes(path, gzipped=packed)
        with opened as stream:
            while True:
                try:
                    block = stream.read(size)
                except BROKEN_GZIP as error:
                    raise DataError(
                        f"{path}, line {line}: the gzip data is damaged or ends early ({error}).\n"
                        f"  Copy or download the file again; gzip -t {path.name} checks it."
                    ) from None
                if not done and not rest and block.startswith(BOM):
                    self.counts.byte_order_marks += 1
                    block, done = block[len(BOM) :], len(BOM)
                if not block:
                    break
                size = BLOCK
                self.digest.update(block)
                self.counts.bytes += len(block)
                self.progress(self.counts.bytes)
                rest += block
                cut = rest.rfind(b"\n") + 1 or rest.rfind(b"\r", 0, -1) + 1
                if len(rest) - cut > LONGEST_LINE:
                    raise DataError(
                        f"{path}, line {line + rest.count(10)}: more than {LONGEST_LINE:,} bytes without a line end.\n"
                        "  A sentence or a paragraph a line was expected; fold -s cuts long lines between words."
                    )
                if cut:
                    yield self._text(rest[:cut], path, done, line)
                    done, line, rest = done + cut, line + rest.count(b"\n", 0, cut), rest[cut:]
            if rest:
                yield self._text(rest, path, done, line)
        if not done and not rest:
            raise DataError(f"{path}: empty; a text was expected.")

    def _text(self, block: bytes, path: Path, done: int, line: int) -> str:
        """The text of a block that begins after `done` bytes, with line number `line`."""
        if done == 0 and block.startswith(b"\x1f\x8b"):
            raise DataError(f"{path}: gzip data in a file whose name does not end in .gz.\n  Rename it to *.gz.")
        if b"\0" in block:
            at = block.index(0)
            raise DataError(
                f"{path}, line {line + block.count(10, 0, at)}: byte {done + at + 1:,} of the file is NUL: a binary "
                "file, or text in UTF-16 or UTF-32.\n"
                "  Plain UTF-8 text was expected; text converts with iconv -f utf-16 -t utf-8."
            )
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            at = error.start
            near = block[max(0, at - 10) : at + 10].decode(errors="backslashreplace")
            raise DataError(
                f"{path}, line {line + block.count(10, 0, at)}: byte {done + at + 1:,} of the file is "
                f"0x{block[at]:02x}, in {near!r}: not UTF-8.\n"
                "  Convert the file, e.g. iconv -f latin1 -t utf-8; a file that is no text cannot be read."
            ) from None
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        num_lines = text.count("\n") + (not text.endswith("\n"))
        self.counts.lines += num_lines
        self.counts.empty_lines += num_lines
        return text


def find_layout(lines: Sequence[str]) -> Layout:
    """The layout of a text, from its first lines.

    Wrapped: at least half of the lines that another follows have no space for the first word of that one, in a width
    that 19 of 20 lines keep to, and a sentence ends in one of 20 lines or more: else all would be one sentence. Else
    paragraphs, if a sentence ends within one of five lines or more; else sentences.
    """
    stripped = [line.rstrip() for line in lines]
    lengths = sorted(len(line) for line in stripped if line)
    if not lengths:
        return "lines"
    width = lengths[int(0.95 * (len(lengths) - 1))]
    pairs = [(a, b) for a, b in itertools.pairwise(stripped) if a and b]
    full = sum(len(a) + 1 + len(b.split(maxsplit=1)[0]) > width for a, b in pairs if not b.isspace())
    memory = Memory(mark_end)
    marked = [" ".join(map(memory.__getitem__, line.split())) for line in stripped if line]
    ending = sum(MARK in line for line in marked)
    tight = pairs and 2 * full >= len(pairs) and 20 < width <= WIDEST and 4 * len(pairs) >= len(lengths)
    if tight and 20 * ending >= len(lengths):
        return "wrapped"
    several = sum(MARK in join_small(line).rstrip(MARK) for line in marked)
    return "paragraphs" if 5 * several >= len(lengths) else "lines"


def mark_end(chunk: str, text: str | None = None) -> str:
    """A chunk, or `text` in its place, with MARK after it where it may end a sentence."""
    text = chunk if text is None else text
    if chunk[-1].isalnum() and chunk.isascii():
        return text
    if not chunk.isascii() and INSIDE.search(chunk):
        text = INSIDE.sub(rf"\1{MARK}", text)
    if END.search(chunk) is None or INITIAL.fullmatch(chunk):
        return text
    word = chunk.strip("\"'\u2018\u2019\u201c\u201d([_*").rstrip(".").lower()
    return text if chunk.endswith(".") and word in ABBREVIATIONS else text + MARK


def join_small(text: str) -> str:
    """The text without the possible ends that are none: those before a small letter or a closing sign."""
    return AFTER_MARK.sub(_unless_small, text)


def _unless_small(found: re.Match[str]) -> str:
    first = found[1]
    return " " + first if first.islower() or first in CLOSING else found[0]


def _last_end(text: str) -> int:
    """Where a long document without a blank line can be cut: after a line, if possible one that ends a sentence."""
    at = text.rfind(f"{MARK} {LINE}")
    return at + len(f"{MARK} {LINE}") if at >= 0 else text.rfind(LINE) + 1
