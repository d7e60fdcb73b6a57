"""English that is on every machine: the docstrings of Python's own standard library, cut into sentences.

Source files are parsed and never imported. Examples, tables and code are left out, so that what stays reads like prose.
The text differs between versions of Python, not between runs. Read next: `data/text.py`, which reads what is written.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankfold.data.text import write_new
from rankfold.errors import DataError, DomainError

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__", "turtledemo"}
SHORTEST, LONGEST = 3, 60  # tokens of a sentence

# A word or a dotted name, perhaps hyphenated or with an apostrophe inside; a number; one sign of punctuation.
TOKEN = re.compile(r"\.?[A-Za-z_]\w*(?:\.\w+)*(?:[-'][A-Za-z]+)*|\d+(?:[.,:]\d+)*|--|[.,;:!?()]")
# A name that only code has: an underscore, dot or digit inside, a capital after a small letter.
CODE = re.compile(r"(?!\d)\w*(?:[_\d]|\.\w)|.*[a-z][A-Z]")
# Marks around words and after calls, which are dropped while the word stays.
MARKS = re.compile(r"""[`"*]+|(?<!\w)'|'(?!\w)|(?<=\w)\(\)""")
ABBREVIATION = re.compile(r"\b(?:e\.?g|i\.?e|etc|vs|cf|resp|approx)\.(?=[,)]|\s+[^A-Z\s])")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z(])|(?<=[.!?]\))\s+(?=[A-Z(])")
DOCTEST = re.compile(r"\s*(?:>>>|\.\.\.(?:\s|$))")
# An item of a list, a field, the name that a description follows: each starts a line of its own.
ITEM = re.compile(
    r"\s*(?:[-*o+]\s+|:\w[^:]*:\s+|\(?(?:\d+|[a-z])[.)]\s+|[\w.*]+(?:\(.*\))?\s+(?:--?|=|:)\s+|[\w.*]+:\s+)"
)
# Every sentence has one of these: the others are headings, lists of names and remains of code.
WORDS = (
    "a an the of to in is are be was it this that these if for with on by not or and as from at can may must should "
    "will when which no any all each only there does do has have you your we use used than into then but"
)
COMMON = frozenset(WORDS.split())


@dataclass(frozen=True)
class DocstringText:
    """The sentences of all docstrings, the number of files read, and the files that could not be read or parsed."""

    sentences: list[list[str]]
    num_files: int
    skipped: list[Path]


def docstring_sentences(folder: str | Path | None = None) -> list[list[str]]:
    """The sentences of `read_docstrings` alone."""
    return read_docstrings(folder).sentences


def read_docstrings(folder: str | Path | None = None) -> DocstringText:
    """Every different sentence of the docstrings below a folder, files in the order of their names.

    Without a folder: this Python's standard library, without its tests. Tokens are words in lower case, names and
    punctuation; numbers are `N`. A sentence has 3 to 60 tokens, begins with a capital, has at least one common word
    of English, and at most a fifth of it are names of code; any sign that prose does not have drops it whole.
    """
    root = Path(sysconfig.get_path("stdlib") if folder is None else folder)
    paths = sorted(_files(root), key=lambda path: path.relative_to(root).as_posix())
    if not paths:
        raise DataError(f"{root}: no Python files; the standard library may be installed without its sources.")
    found: dict[tuple[str, ...], None] = {}  # keeps the order, drops what is there already
    skipped = []
    for path in paths:
        tree = _parsed(path)
        if tree is None:
            skipped.append(path)
            continue
        for docstring in _docstrings(tree):
            found.update(dict.fromkeys(_sentences(docstring)))
    return DocstringText(list(map(list, found)), len(paths) - len(skipped), skipped)


def split(sentences: Iterable[Sequence[str]], *, valid: float = 0.05, test: float = 0.05) -> dict[str, list[list[str]]]:
    """Train, valid and test, each sentence placed by a hash of its words: no other sentence can move it."""
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise DomainError(f"valid is {valid} and test is {test}, but they are shares, at least 0 and below 1 together.")
    parts: dict[str, list[list[str]]] = {"train": [], "valid": [], "test": []}
    for sentence in sentences:
        place = int.from_bytes(hashlib.sha256(" ".join(sentence).encode()).digest()[:6], "big") / 2**48
        part = "test" if place < test else "valid" if place < test + valid else "train"
        parts[part].append(list(sentence))
    return parts


def write_corpus(folder: str | Path, *, source: str | Path | None = None) -> dict[str, Path]:
    """Write `train.txt`, `valid.txt` and `test.txt`, one sentence a line; files that hold the same stay untouched.

    A file of that name that holds anything else is never written over: `DataError`, and nothing is written.
    """
    texts = {
        Path(folder) / f"{name}.txt": "".join(" ".join(sentence) + "\n" for sentence in sentences)
        for name, sentences in split(docstring_sentences(source)).items()
    }
    write_new(texts)
    return {path.stem: path for path in texts}


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in LEFT_OUT]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _parsed(path: Path) -> ast.AST | None:
    """The syntax tree of a file; None for what is no file, a pipe among others, or no Python."""
    if not path.is_file():
        return None
    try:
        with warnings.catch_warnings():  # of odd strings and the like in code that is not run
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # MemoryError: nested too deep
        return None


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, in the order of the file."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler):  # expressions hold no definitions
            todo.extend(reversed(list(ast.iter_child_nodes(node))))


def _sentences(docstring: str) -> Iterator[tuple[str, ...]]:
    for chunk, complete in _chunks(inspect.cleandoc(docstring).splitlines()):
        chunk = ABBREVIATION.sub(lambda found: found[0].replace(".", ""), MARKS.sub("", chunk)).strip()
        sentences = SENTENCE_END.split(chunk)
        if not complete and not chunk.endswith((".", "!", "?", ":", ")")):
            del sentences[-1]  # its other half was no prose
        for sentence in sentences:
            if tokens := _tokens(sentence):
                yield tokens


def _chunks(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Lines that belong together, joined, and whether they end where a paragraph or an item does."""
    chunk: list[str] = []
    depth, example = 0, False
    for line in [*lines, ""]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        example = bool(text) and (example or bool(DOCTEST.match(line)))  # what it prints follows, up to a blank line
        item = ITEM.match(line)
        prose = not example and _is_prose(text)
        if chunk and (not prose or item or indent < depth):
            yield " ".join(chunk), prose or not text
            chunk = []
        if prose:
            chunk.append(line[item.end() :].strip() if item else text)
            depth = indent


def _is_prose(line: str) -> bool:
    """Whether a line is mostly letters, in one column."""
    bare = MARKS.sub("", line)
    letters = sum(letter.isalpha() or letter == " " for letter in bare)
    return letters > 0.75 * len(bare) and not re.search(r"[^.!?:]\s{2,}", line)


def _tokens(sentence: str) -> tuple[str, ...]:
    """The tokens of a sentence, or none where it is not one."""
    if not sentence[:1].isupper() or not sentence.isascii() or re.search(r"\w\(|--\w", sentence):
        return ()
    if TOKEN.sub("", sentence).strip():  # a sign that prose does not have
        return ()
    words = TOKEN.findall(sentence)
    if not SHORTEST <= len(words) <= LONGEST or sum(bool(CODE.match(word)) for word in words) > len(words) / 5:
        return ()
    tokens = tuple("N" if word[0].isdigit() else word.lower() for word in words)
    cut_short = tokens[-1] in COMMON or tokens[-1] in (",", ";", "--") or words.count("(") != words.count(")")
    return () if cut_short or not COMMON.intersection(tokens) else tokens
