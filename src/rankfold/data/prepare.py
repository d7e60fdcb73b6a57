"""A prepared text: sentences, tokens and splits of any text, in a folder that `rankfold train --data` reads.

The folder holds train.txt, valid.txt and test.txt, a sentence per line, tokens apart by spaces; tokenizer.json; and
prepared.json, how it was made and counts of everything. A split is a function of the text's order and a seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankfold.data.raw_text import HEAD, Layout, Piece, Reader, expect_texts
from rankfold.data.tokenize import Kind, Tokenizer, expect_package, simple_tokens, train_subwords
from rankfold.data.vocab import EOS
from rankfold.errors import DataError, DomainError, expect_absent, quantity
from rankfold.files import read_json, write_text
from rankfold.version import __version__

SplitBy = Literal["file", "document", "line"]
FILE, FORMAT, VERSION = "prepared.json", "rankfold-prepared", 1
SPLITS = ("train", "valid", "test")
ONE_OF = 20  # units, of which one goes to valid and one to test
FIRST = 10_000_000  # bytes: beyond them one of 40, beyond twice as many one of 80, and so on
LONGEST = 1_000  # tokens of a sentence
MOST_TYPES = 1_000_000  # counted


@dataclass
class Prepared:
    """How a text was prepared, and its counts."""

    files: list[str]
    tokenizer: Kind
    layout: str
    split_by: SplitBy
    seed: int
    sha256: str = ""  # of the text, unpacked
    counts: dict[str, int] = field(default_factory=dict)
    sentences: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    types: int = 0
    all_types: bool = True  # false: there are more, not counted
    cut_sentences: int = 0  # of more than `LONGEST` tokens, which are cut
    repeated: dict[str, int] = field(default_factory=dict)  # sentences of valid and test that are in train, too

    def lines(self) -> list[str]:
        """Counts for a person: how the text was read, and a table of its splits."""
        c, also = self.counts, any(self.repeated.values())
        shown = f"{'' if self.all_types else 'more than '}{quantity(self.types, 'type')}"
        units = {"file": "file", "document": "document (parted by blank lines)", "line": "sentence"}[self.split_by]
        found = [
            f"read       {quantity(len(self.files), 'file')}, {quantity(c['bytes'], 'byte')}, "
            f"{quantity(c['lines'], 'line')} ({c['empty_lines']:,} empty), {quantity(c['documents'], 'document')}",
            f"layout     {self.layout}",
            f"tokenizer  {self.tokenizer}, {shown}",
            f"split      by {units}, seed {self.seed}",
            f"           {'sentences':>12}{'tokens':>14}" + f"{'also in train':>16}" * also,
        ]
        for name in SPLITS:
            repeated = f"{self.repeated[name]:>16,}" if also and name in self.repeated else ""
            found.append(f"  {name:<9}{self.sentences[name]:>12,}{self.tokens[name]:>14,}{repeated}")
        if self.cut_sentences:
            found.append(f"cut        {quantity(self.cut_sentences, 'sentence')} of more than {LONGEST:,} tokens")
        if c["byte_order_marks"]:
            found.append(f"left out   {quantity(c['byte_order_marks'], 'byte order mark')} at the beginning of a file")
        return found


def prepare(
    names: Sequence[str],
    out: str | Path,
    *,
    tokenizer: Kind = "simple",
    layout: Layout | None = None,
    split_by: SplitBy | None = None,
    seed: int = 1,
    num_types: int = 4000,
    progress: Callable[[int], None] = lambda done: None,
) -> Prepared:
    """Write the sentences of some texts into a new folder; nothing is left of it if that fails.

    `names`: files, plain or .gz, or "-". `layout`: None finds it. `split_by`: None takes files if there are 20 or
    more, else documents if the first megabyte holds 20, else sentences. `num_types`: of subwords.

    Of every 20 in a row, one drawn goes to valid and one to test; beyond 10 MB of 40, beyond 20 MB of 80 and so on, so
    that these splits grow slowly: of 200 MB each has about 1.6. Cost: 40 ns per byte, and the memory of a few MB.
    """
    out = Path(out)
    expect_texts(names)
    expect_new_folder(out)
    if seed < 0:
        raise DomainError(f"seed is {seed}, but must be at least 0.")
    if split_by == "file" and len(names) < len(SPLITS):
        raise DataError(
            f"{quantity(len(names), 'file')} cannot be split by file: three are needed.\n"
            "  Split by document or by line."
        )
    if tokenizer == "subwords":
        expect_package()
    found = Prepared(list(names), tokenizer, "", split_by or "line", seed)
    with new_folder(out) as work:
        _Preparation(work, found, num_types).run(layout, split_by, progress)
        content = {"format": FORMAT, "version": VERSION, "rankfold": __version__, **asdict(found)}
        write_text(work / FILE, json.dumps(content, indent=2) + "\n")
    return found


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` at the end; nothing is left of it if that fails."""
    expect_new_folder(out)
    made = list(itertools.takewhile(lambda folder: not folder.exists(), out.parents))
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield work
        os.chmod(work, 0o777 & ~_umask())
        with contextlib.suppress(FileNotFoundError):
            out.rmdir()  # an empty one: the last moment in which another's files would be seen
        work.rename(out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        with contextlib.suppress(OSError):  # another may be in them by now
            for folder in made:
                folder.rmdir()
        raise


def expect_new_folder(out: Path) -> None:
    """Raise unless a folder can be made there: nothing has that name, or an empty folder."""
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    expect_absent(out, "an empty folder")


def read_prepared(folder: str | Path) -> dict[str, Any] | None:
    """How the text of a folder was prepared; None if it has no prepared.json."""
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    content = read_json(path, "the prepared.json of a prepared text")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'{path}: not a prepared text: an object with "format": "{FORMAT}" was expected.')
    return content


class Placement:
    """The split of each unit, in order: of `size` in a row one is in valid and one in test, drawn by the seed."""

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size
        self.number = 0
        self.waiting: list[tuple[str, int]] = []  # splits, and how many units in a row have each; the next is last

    def __call__(self, num_bytes: int) -> str:
        """The split of the next unit; `num_bytes` of text came before it."""
        ((split, _),) = self.runs(1, num_bytes)
        return split

    def runs(self, num: int, num_bytes: int) -> Iterator[tuple[str, int]]:
        """The splits of the next `num` units, and how many in a row have each."""
        while num:
            if not self.waiting:
                self._draw(num_bytes)
            split, size = self.waiting.pop()
            if size > num:
                self.waiting.append((split, size - num))
            run = min(size, num)
            num -= run
            yield split, run

    def _draw(self, num_bytes: int) -> None:
        doublings = max(0, num_bytes // FIRST).bit_length()
        size = self.size << doublings
        drawn = hashlib.blake2b(f"{self.seed}:{self.number}".encode(), digest_size=16).digest()
        valid, test = int.from_bytes(drawn[:8]) % size, int.from_bytes(drawn[8:]) % (size - 1)
        (first, one), (second, other) = sorted([(valid, "valid"), (test + (test >= valid), "test")])
        runs = [("train", first), (one, 1), ("train", second - first - 1), (other, 1), ("train", size - 1 - second)]
        self.waiting = [(split, num) for split, num in runs if num]
        self.number += 1


class Megabytes:
    """Progress of reading, every few seconds: a line with the bytes so far."""

    def __init__(self, what: str, say: Callable[[str], None], every: float = 5.0) -> None:
        self.what, self.say, self.every = what, say, every
        self.started = self.said = time.monotonic()
        self.before = 0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if done <= self.before or not self.before:  # it starts, perhaps again
            self.started = self.said = now
        self.before = done
        if now - self.said >= self.every and now > self.started:
            self.said = now
            self.say(f"{self.what} {done / 1e6:,.0f} MB, {done / 1e6 / (now - self.started):.1f} MB/s")


class _Preparation:
    """From files to lines of tokens in a folder, in one pass; subwords are trained after it, and take another."""

    def __init__(self, folder: Path, found: Prepared, num_types: int) -> None:
        self.folder, self.found, self.num_types = folder, found, num_types
        self.types: set[str] = set()

    def run(self, layout: Layout | None, split_by: SplitBy | None, progress: Callable[[int], None]) -> None:
        """Write the splits and the tokenizer, and fill in the counts."""
        found, reader = self.found, Reader(self.found.files, self._chunk, layout, progress)
        pieces = iter(reader)
        head, whole = _take(pieces, HEAD)
        found.split_by, size = self._choose_split(split_by, head, whole=whole)
        placed = self._placed(itertools.chain(head, pieces), Placement(found.seed, size))
        if found.tokenizer == "subwords":
            self._write(placed, "raw", None)
            self._expect_splits()
            with (self.folder / "train.raw").open(encoding="utf-8", newline="\n") as lines:
                tokenizer = train_subwords(lines, self.num_types)
            placed = self._read_raw()
        else:
            tokenizer = Tokenizer(found.tokenizer)
        self._write(placed, "txt", tokenizer)
        self._expect_splits()
        tokenizer.save(self.folder)
        self._finish(reader)

    def _choose_split(self, split_by: SplitBy | None, head: list[Piece], *, whole: bool) -> tuple[SplitBy, int]:
        """The unit of the splits, and how many of them have one in valid and one in test: 20, or all if fewer."""
        num_files, num_documents = len(self.found.files), sum(piece.new for piece in head)
        if split_by is None:
            split_by = "file" if num_files >= ONE_OF else "document" if num_documents >= ONE_OF else "line"
        if split_by == "file":
            return split_by, min(num_files, ONE_OF)
        num = num_documents if split_by == "document" else sum(len(piece.sentences) for piece in head)
        if whole and 0 < num < len(SPLITS):
            what = "document" if split_by == "document" else "sentence"
            raise DataError(
                f"{', '.join(self.found.files)}: {quantity(num, what)}, but train, valid and test "
                "need at least one each.\n"
                + ("  Split by line." if split_by == "document" else "  Give a longer text.")
            )
        return split_by, max(min(num, ONE_OF), 2) if whole else ONE_OF

    def _placed(self, pieces: Iterable[Piece], place: Placement) -> Iterator[tuple[str, list[str]]]:
        """The split of some sentences, and the sentences."""
        by, split, done = self.found.split_by, "", 0
        for piece in pieces:
            if (by == "document" and piece.new) or (by == "file" and piece.new_file):
                split = place(done)
            if by == "line":
                chosen: dict[str, list[str]] = {name: [] for name in SPLITS}
                following = iter(piece.sentences)
                for name, num in place.runs(len(piece.sentences), done):
                    chosen[name] += itertools.islice(following, num)
                yield from ((name, sentences) for name, sentences in chosen.items() if sentences)
            else:
                yield split, piece.sentences
            done += piece.size

    def _chunk(self, chunk: str) -> str:
        if self.found.tokenizer == "simple":
            return self._tokens(simple_tokens(chunk))
        if chunk == EOS and self.found.tokenizer == "spaces":
            raise DataError(
                f"{', '.join(self.found.files)}: {EOS} is a word of the text, but it marks the end of a sentence.\n"
                "  It is added to each sentence later: remove it, or take the simple tokenizer."
            )
        return self._tokens([chunk]) if self.found.tokenizer == "spaces" else chunk

    def _tokens(self, tokens: list[str]) -> str:
        if len(self.types) < MOST_TYPES:
            self.types.update(tokens)
        return " ".join(tokens)

    def _write(self, placed: Iterable[tuple[str, list[str]]], suffix: str, tokenizer: Tokenizer | None) -> None:
        """Write the sentences, cut into tokens; those of "simple" and "spaces" came so, chunk by chunk."""
        found = self.found
        found.sentences, found.tokens = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
        cutting = tokenizer if tokenizer and tokenizer.kind in ("characters", "subwords") else None
        with contextlib.ExitStack() as stack:
            streams = {
                name: stack.enter_context((self.folder / f"{name}.{suffix}").open("x", encoding="utf-8", newline="\n"))
                for name in SPLITS
            }
            for split, lines in placed:
                if cutting:
                    lines = [self._tokens(cutting.tokenize(line)) for line in lines]
                if tokenizer and max(map(len, lines)) > LONGEST:
                    lines = list(self._limited(lines))
                text = "\n".join(lines)
                found.sentences[split] += len(lines)
                found.tokens[split] += text.count(" ") + len(lines)
                streams[split].write(text + "\n")

    def _limited(self, lines: list[str]) -> Iterator[str]:
        """The lines, those of too many tokens in several."""
        for line in lines:
            tokens = line.split(" ")
            self.found.cut_sentences += len(tokens) > LONGEST
            yield from (" ".join(tokens[i : i + LONGEST]) for i in range(0, len(tokens), LONGEST))

    def _read_raw(self) -> Iterator[tuple[str, list[str]]]:
        for split in SPLITS:
            with (self.folder / f"{split}.raw").open(encoding="utf-8", newline="\n") as lines:
                yield from ((split, [line.rstrip("\n")]) for line in lines)
            (self.folder / f"{split}.raw").unlink()

    def _expect_splits(self) -> None:
        found = self.found
        if all(found.sentences.values()):
            return
        if not any(found.sentences.values()):
            raise DataError(f"{', '.join(found.files)}: nothing but white space; a text was expected.")
        empty = next(name for name in SPLITS if not found.sentences[name])
        raise DataError(
            f"{', '.join(found.files)}: too few {found.split_by}s for a split by {found.split_by}: {empty} would be "
            "empty.\n" + ("  Give a longer text." if found.split_by == "line" else "  Split by line: --split line.")
        )

    def _finish(self, reader: Reader) -> None:
        found, counts = self.found, asdict(reader.counts)
        layouts = counts.pop("layouts")
        names = [f"{name} ({quantity(num, 'file')})" if len(layouts) > 1 else name for name, num in layouts.items()]
        found.layout, found.counts, found.sha256 = ", ".join(names), counts, reader.digest.hexdigest()
        found.types, found.all_types = len(self.types), len(self.types) < MOST_TYPES
        found.repeated = self._count_repeated()

    def _count_repeated(self) -> dict[str, int]:
        """How many sentences of valid and of test are in train, too."""
        held: dict[str, Counter[bytes]] = {}
        for name in SPLITS[1:]:
            with (self.folder / f"{name}.txt").open("rb") as lines:
                held[name] = Counter(lines)
        with (self.folder / "train.txt").open("rb") as lines:
            both = set().union(*held.values()).intersection(lines)
        return {name: sum(counts[line] for line in both) for name, counts in held.items()}


def _take(pieces: Iterator[Piece], size: int) -> tuple[list[Piece], bool]:
    """The first pieces, with at least so many characters, and whether that is all."""
    head: list[Piece] = []
    for piece in pieces:
        head.append(piece)
        size -= piece.size
        if size <= 0:
            return head, False
    return head, True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
