"""Sentences from text files: UTF-8, plain or gzip, one sentence per line, words apart by white space.

Every rule is checked while reading, and nothing is repaired: an error names the file, the line and the token.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import select
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rankfold.data.vocab import EOS
from rankfold.errors import DataError, quantity
from rankfold.files import expect_file, expect_unpacked, write_text

BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
STDIN = Path("standard input")
LONGEST_LINE = 1_000_000  # bytes
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Sentences:
    """The sentences of one file, and how many empty lines were skipped. Iterates over the sentences."""

    sentences: list[list[str]]
    num_empty_lines: int
    path: Path
    empty_lines: tuple[int, ...] = ()  # their numbers, from 1

    @property
    def num_words(self) -> int:
        """All words, without the ends of sentences."""
        return sum(map(len, self.sentences))

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self.sentences)

    def __len__(self) -> int:
        return len(self.sentences)


def read_sentences(path: str | Path | None, *, max_line_bytes: int = LONGEST_LINE, brackets: bool = True) -> Sentences:
    """The sentences of a file, each line split as `str.split` does; a name that ends in .gz is read as gzip.
    None is standard input.

    Lines without words are skipped and counted. A longer line than `max_line_bytes` is refused: it is nearly always
    a file without line ends, and one sentence of that length would take all memory later. With `brackets` false,
    words with ( or ) in them are refused, which no tree could be written with.
    """
    path = STDIN if path is None else Path(path)
    lines = read_lines(None if path is STDIN else path, max_line_bytes=max_line_bytes)
    sentences, empty = [], []
    for number, line in enumerate(lines, 1):
        tokens = line.split()
        if not brackets:
            expect_no_brackets(tokens, f"{path}, line {number}")
        if tokens:
            sentences.append(tokens)
        else:
            empty.append(number)
    return Sentences(sentences, len(empty), path, tuple(empty))


def read_lines(path: Path | None, *, ends: bool = False, max_line_bytes: int = LONGEST_LINE) -> list[str]:
    """The lines of a file, or (None) of standard input; see `iterate_lines`."""
    return list(iterate_lines(path, ends=ends, max_line_bytes=max_line_bytes))


def iterate_lines(
    path: Path | None, *, ends: bool = False, max_line_bytes: int = LONGEST_LINE, arriving: Arriving | None = None
) -> Iterator[str]:
    """The lines of a file, or (None) of standard input, in their order, empty ones too, without their line ends.

    One of them is in memory at a time. At least one has a word. With `ends`, `<eos>` is a word like others.
    """
    where = STDIN if path is None else path
    number, has_words = 0, False
    if path is not None:
        _check_file(path)
    with (
        contextlib.nullcontext(arriving or sys.stdin.buffer)
        if path is None
        else open_bytes(path, gzipped=path.suffix == ".gz") as stream
    ):
        for number, line in enumerate(limited_lines(stream, where, max_line_bytes), 1):
            text = _text(line, f"{where}, line {number}", first=number == 1, ends=ends)
            has_words = has_words or bool(text.split())
            yield text
    expect_words(where, number, has_words, is_file=path is not None)


def expect_words(where: str | Path, num_lines: int, has_words: bool, *, is_file: bool = True) -> None:
    """Raise at the end of a text without words."""
    if not has_words:
        said = "the file is " if is_file else ""
        what = said + (
            f"{quantity(num_lines, 'line')}, {'empty' if num_lines == 1 else 'all of them empty'}"
            if num_lines
            else "empty"
        )
        raise DataError(f"{where}: {what}; at least one sentence was expected, one a line.")


class Arriving:
    """Lines of standard input as they come, and whether the next is there already."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.held, self.at = stream, b"", 0  # read, and up to where it was handed out
        self.read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)  # read1: what is there

    def readline(self, limit: int) -> bytes:
        """The next line with its end, or so many bytes of it; nothing at the end."""
        parts, size = [], 0
        while size < limit:
            if self.at == len(self.held):
                self.held, self.at = self.read(2**16), 0
                if not self.held:
                    break
            stop = self.held.find(b"\n", self.at) + 1 or len(self.held)
            parts.append(self.held[self.at : min(stop, self.at + limit - size)])
            self.at, size = self.at + len(parts[-1]), size + len(parts[-1])
            if parts[-1].endswith(b"\n"):
                break
        return b"".join(parts)

    def is_idle(self, seconds: float = 0.05) -> bool:
        """Whether no whole line is there, and nothing comes within the time; never of what is no pipe or terminal."""
        if self.held.find(b"\n", self.at) >= 0:
            return False
        try:
            return not select.select([self.stream], [], [], seconds)[0]
        except (OSError, ValueError, TypeError):  # no descriptor to wait for
            return False


def write_new(texts: Mapping[Path, str]) -> None:
    """Write each text into its file, unless that holds it already; `DataError`, before any is written, where one of the
    files holds anything else.
    """
    there = {path for path in texts if os.path.lexists(path)}
    for path in there:
        if not path.is_file() or path.read_bytes() != texts[path].encode():
            raise DataError(
                f"{path} exists and holds something else than the text to be written; it is left as it is.\n"
                "  Choose another folder, or move it away."
            )
    for path in texts.keys() - there:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, texts[path])


def expect_no_brackets(tokens: Sequence[str], where: str, *, remedy: str = "Write -LRB- and -RRB-") -> None:
    """Raise on a word with a bracket in it: trees are written in brackets, and their words hold none."""
    for number, token in enumerate(tokens, 1):
        if "(" in token or ")" in token:
            raise DataError(
                f"{where}: word {number} is {token[:40]!r}, but the words of a tree hold no brackets.\n"
                f"  {remedy}, or leave them out; a file of trees has a name in .trees, .trees.txt or .mrg."
            )


def escape_brackets(word: str) -> str:
    """A word as treebanks write it: brackets are -LRB- and -RRB-."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def expect_no_bom(line: bytes, where: str) -> None:
    """Raise on a first line that begins with a byte order mark, which some editors write and none show."""
    if line.startswith(BOM):
        raise DataError(
            f"{where}: starts with a byte order mark, which would become part of the first word.\n"
            "  Save the file as UTF-8 without BOM."
        )


def read_splits(directory: str | Path, splits: Sequence[str] = ("train", "valid", "test")) -> dict[str, Sentences]:
    """The sentences of each split of a folder; every file is found before the first is read. See `find_split`."""
    paths = {split: find_split(directory, split) for split in splits}
    return {split: read_sentences(path) for split, path in paths.items()}


def find_split(directory: str | Path, split: str, *, trees: bool = False) -> Path:
    """The one file of a split: `train.txt` or `train.txt.gz`, else the only `*.train.txt`, `*.train.tokens` or .gz.

    Before the split's name may stand any prefix that ends in a dot, hyphen or underscore. Two candidates are an error;
    where a folder holds several texts, `folder/prefix` names one of them. With `trees`, bracketed trees will do:
    `*.train.trees`, `*.train.trees.txt` or `*.train.mrg`.
    """
    directory = Path(directory)
    found = _candidates(directory, split, trees=trees)
    if not found:
        names = _names(directory) if directory.is_dir() else _names(directory.parent)
        listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise DataError(
            f"{directory}: no file for the split {split!r}; the folder holds {listed or 'no files'}.\n"
            f"  Expected {split}.txt or {split}.txt.gz, one sentence a line"
            + (f", or trees in {split}.trees." if trees else ".")
        )
    return (directory if directory.is_dir() else directory.parent) / found[0]


def has_split(directory: str | Path, split: str, *, trees: bool = False) -> bool:
    """Whether `find_split` would find one; two candidates are an error here too."""
    return bool(_candidates(Path(directory), split, trees=trees))


def holds_trees(path: Path) -> bool:
    """Whether the name of a file is one of bracketed trees."""
    return re.search(r"\.(trees|trees\.txt|mrg)(\.gz)?$", path.name) is not None


def _candidates(directory: Path, split: str, *, trees: bool) -> list[str]:
    """The name of the one file that could be the split, or nothing."""
    prefix = ""
    if not directory.is_dir():
        prefix = directory.name
        if directory.exists() or not begins_names(directory):
            what = "a file" if directory.exists() else "missing"
            raise DataError(f"{directory} is {what}, but a folder that holds {split}.txt was expected.")
    names = _names(directory.parent if prefix else directory)
    kinds = "txt|tokens|trees|trees\\.txt|mrg" if trees else "txt|tokens"
    pattern = re.compile(rf"(.*[._-])?{re.escape(split)}\.({kinds})(\.gz)?")
    found = [name for name in names if name in (f"{split}.txt", f"{split}.txt.gz") and not prefix]
    if not found:
        found = [name for name in names if pattern.fullmatch(name)]
    if prefix:
        found = [name for name in found if re.match(rf"{re.escape(prefix)}[._-]{re.escape(split)}\.", name)]
    if len(found) > 1:
        raise DataError(
            f"{directory}: {len(found)} files could be the split {split!r}: {', '.join(found)}.\n"
            "  Which one is meant is not guessed at: keep one, move the others, or add what the names of its text "
            f"begin with,\n  such as {directory / re.split(r'[._-]' + re.escape(split), found[0])[0]}."
        )
    return found


def begins_names(path: Path) -> bool:
    """Whether a path is no folder, but the beginning of the names of files: treebank/gum of treebank/gum.train.txt."""
    if not path.parent.is_dir() or not path.name:
        return False
    return any(re.match(rf"{re.escape(path.name)}[._-]", name) for name in _names(path.parent))


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def open_bytes(path: Path, *, gzipped: bool) -> BinaryIO:
    """The bytes of the text in a file; reading damaged gzip data raises one of `BROKEN_GZIP`."""
    return io.BufferedReader(_Unpacked(path), 2**16) if gzipped else path.open("rb")


class _Unpacked(io.RawIOBase):
    """The text of a gzip file, as far as `expect_unpacked` allows."""

    def __init__(self, path: Path) -> None:
        self.path, self.stream, self.done = path, gzip.GzipFile(path, "rb"), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num = self.stream.readinto(buffer)
        self.done += num
        expect_unpacked(self.path, self.done)
        return num

    def close(self) -> None:
        self.stream.close()
        super().close()


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder, but a text file was expected.\n  Give one file of it, such as train.txt.")
    if not path.exists():
        packed = path.with_name(path.name + ".gz")
        hint = f"Did you mean {packed}?" if packed.exists() else f"Check the path, relative to {Path.cwd()}."
        raise DataError(f"{path}: no such file.\n  {hint}")
    expect_file(path, "a text file")


class HasLines(Protocol):
    """A stream of bytes that is read by lines."""

    def readline(self, limit: int, /) -> bytes: ...


def limited_lines(stream: HasLines, path: Path, max_line_bytes: int) -> Iterator[bytes]:
    """Lines of bytes, never more than `max_line_bytes` of one in memory; `DataError` for a longer one."""
    number = 0
    try:
        while line := stream.readline(max_line_bytes + 1):
            number += 1
            if path is STDIN and len(line.rstrip(b"\r\n")) > max_line_bytes:  # it may never end
                raise DataError(f"{path}, line {number}: more than {max_line_bytes:,} bytes long: one sentence a line.")
            if len(line.rstrip(b"\r\n")) > max_line_bytes:
                length = len(line)
                while not line.endswith(b"\n") and (line := stream.readline(max_line_bytes + 1)):
                    length += len(line)
                raise DataError(
                    f"{path}, line {number}: {length:,} bytes long, but at most {max_line_bytes:,} are allowed.\n"
                    f"  One sentence a line; if the line is right, allow it: max_line_bytes={length}."
                )
            yield line
    except BROKEN_GZIP as error:
        raise DataError(
            f"{path}, line {number + 1}: the gzip data is damaged or ends early ({error}).\n"
            f"  Copy or download the file again; gzip -t {path.name} checks it."
        ) from None


def _text(line: bytes, where: str, *, first: bool, ends: bool) -> str:
    """The text of a line, after every rule that bytes or words can break."""
    if first and line.startswith(b"\x1f\x8b"):
        raise DataError(f"{where}: gzip data in a file whose name does not end in .gz.\n  Rename it to *.gz.")
    if first:
        expect_no_bom(line, where)
    if b"\0" in line:
        raise DataError(
            f"{where}: byte {line.index(0) + 1} is NUL: a binary file, or text in UTF-16 or UTF-32.\n"
            "  Plain UTF-8 text was expected; text converts with iconv -f utf-16 -t utf-8."
        )
    if b"\r" in line.rstrip(b"\r\n"):
        raise DataError(
            f"{where}: a carriage return inside the line: line ends must be \\n or \\r\\n.\n"
            "  Convert the file: tr '\\r' '\\n'."
        )
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        token = (line[: error.start].split(b" ")[-1] + line[error.start :].split(b" ")[0]).rstrip(b"\r\n")
        raise DataError(
            f"{where}: byte {error.start + 1} is 0x{line[error.start]:02x}, in the token {token[:40]!r}: not UTF-8.\n"
            "  Convert the file, e.g. iconv -f latin1 -t utf-8."
        ) from None
    _expect_no_end(text, where, ends=ends)
    return text


def check_line(text: str, where: str, *, ends: bool) -> None:
    """Raise where the text of a table breaks a rule that lines of a file keep."""
    if "\n" in text or "\r" in text or "\0" in text:
        what = "NUL" if "\0" in text else "a line break"
        raise DataError(f"{where}: {what} in the text, but a row is one sentence.\n  Part it, or leave it out.")
    _expect_no_end(text, where, ends=ends)


def _expect_no_end(text: str, where: str, *, ends: bool) -> None:
    if EOS in text and EOS in text.split() and not ends:
        raise DataError(
            f"{where}: token {text.split().index(EOS) + 1} is {EOS}, which marks the end of a sentence.\n"
            f"  {EOS} is added to each sentence later: remove it from the text, one sentence a line."
        )
