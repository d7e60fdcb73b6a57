"""Trees from text: Penn Treebank brackets, one tree per line or spread over lines, plain or gzip.

    ( (S (NP-SBJ (NNP Ms.) (NNP Haag)) (VP (VBZ plays) (NP (NNP Elianti))) (. .)) )

Every rule is checked while reading and nothing is repaired: an error names the file, the line and the token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankfold.data.text import BOM, LONGEST_LINE, limited_lines, open_bytes
from rankfold.data.trees import Tree
from rankfold.errors import DataError
from rankfold.files import expect_file

_TOKEN = re.compile(r"[()]|[^\s()]+")
DEEPEST = 100_000  # brackets in brackets, in a tree
_ESCAPE = "Brackets that are words are written -LRB- and -RRB-."


@dataclass(frozen=True)
class Treebank:
    """The trees of one file, and the line each starts in. Iterates over the trees."""

    trees: list[Tree]
    lines: list[int]
    path: Path

    @property
    def sentences(self) -> list[list[str]]:
        """The words of each tree."""
        return [tree.words for tree in self.trees]

    def __iter__(self) -> Iterator[Tree]:
        return iter(self.trees)

    def __len__(self) -> int:
        return len(self.trees)


def read_trees(path: str | Path) -> Treebank:
    """The trees of a file in UTF-8; a name that ends in .gz is read as gzip. See `parse_trees` for the rules."""
    path = Path(path)
    if not path.exists() or path.is_dir():
        what = "a folder, but a file of trees was expected" if path.is_dir() else "missing"
        raise DataError(f"{path} is {what}.\n  Check the path, relative to {Path.cwd()}.")
    expect_file(path, "a file of trees")
    found = list(_trees(enumerate(lines_of(path), 1), str(path)))
    if not found:
        raise DataError(f"{path}: the file holds no tree; at least one was expected, such as (S (NP it) (VP works)).")
    return Treebank([tree for tree, _ in found], [line for _, line in found], path)


def parse_trees(text: str, *, name: str = "text") -> list[Tree]:
    """The trees written in a text; `name` stands for the file in errors.

    Refused are brackets that do not match, constituents without words, text outside brackets, and words that touch
    a bracket on the wrong side. One outermost bracket without a label, around one tree, is taken off; anywhere else
    a label is needed. Words are kept as they are, -LRB- too. Lines of a file have at most a million bytes, and trees
    are at most 100,000 brackets deep. O(length), without recursion.
    """
    return [tree for tree, _ in _trees(enumerate(text.splitlines(), 1), name)]


def parse_tree(text: str) -> Tree:
    """The one tree written in a text. See `parse_trees`."""
    trees = parse_trees(text)
    if len(trees) != 1:
        raise DataError(f"one tree was expected, but the text holds {len(trees)}.\n  parse_trees reads any number.")
    return trees[0]


def expect_words(
    trees: Iterable[Tree], sentences: Iterable[Sequence[str]], places: Sequence[str] | None = None
) -> None:
    """Raise unless trees and sentences agree word by word.

    The error names the first sentence that differs, from 1, and its tree's place, where there is one for each tree.
    """
    in_trees, given = [tree.words for tree in trees], [list(sentence) for sentence in sentences]
    for number, (ours, theirs) in enumerate(zip(in_trees, given, strict=False), 1):
        if ours == theirs:
            continue
        pairs = zip(ours, theirs, strict=False)
        at = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))
        said = [repr(words[at]) if at < len(words) else "at its end" for words in (ours, theirs)]
        where = "" if places is None else f" ({places[number - 1]})"
        raise DataError(
            f"sentence {number}{where}: word {at + 1} is {said[0]} in the tree, but {said[1]} in the text "
            f"({len(ours)} words, and {len(theirs)}).\n"
            "  Trees and text must be prepared alike: case, numbers, punctuation, sentences dropped."
        )
    if len(in_trees) != len(given):
        raise DataError(f"{len(in_trees)} trees, but {len(given)} sentences of text: one each was expected.")


class _Open:
    """A bracket that has not been closed yet."""

    __slots__ = ("children", "label", "line")

    def __init__(self, line: int) -> None:
        self.label: str | None = None
        self.children: list[Tree | str] = []
        self.line = line


def _trees(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[Tree, int]]:
    """Each tree, with the line it starts in."""
    open_ones: list[_Open] = []
    for number, line in lines:
        where = f"{name}, line {number}"
        for match in _TOKEN.finditer(line):
            token = match.group()
            if token == "(":
                _check_nested(open_ones, where)
                if len(open_ones) == DEEPEST:
                    raise DataError(f"{where}: brackets within brackets more than {DEEPEST:,} deep; no tree is.")
                open_ones.append(_Open(number))
            elif not open_ones:
                what = "a closing bracket too many" if token == ")" else f"{token!r} stands outside brackets"
                raise DataError(f"{where}: {what}; each tree was expected in brackets of its own.\n  {_ESCAPE}")
            elif token == ")":
                done = _close(open_ones, where)
                if done is not None:
                    yield done
            else:
                _add(
                    open_ones,
                    token,
                    line[match.start() - 1 : match.start()],
                    line[match.end() : match.end() + 1],
                    where,
                )
    if open_ones:
        raise DataError(
            f"{name}, line {open_ones[0].line}: the tree that starts here never ends: "
            f"{len(open_ones)} brackets are still open at the end."
        )


def _check_nested(open_ones: list[_Open], where: str) -> None:
    """Only the outermost bracket may go without a label, and only around trees."""
    if len(open_ones) > 1 and open_ones[-1].label is None:
        raise DataError(
            f"{where}: a bracket without a label, inside the tree that starts in line {open_ones[0].line}.\n"
            f"  Does that tree lack a closing bracket? {_ESCAPE}"
        )


def _add(open_ones: list[_Open], token: str, before: str, after: str, where: str) -> None:
    """A label, the first token of its bracket, or a word."""
    top = open_ones[-1]
    if top.label is None and not top.children:
        top.label = token
        return
    if before == ")" or after == "(":
        shown = f"{before}{token}" if before == ")" else f"{token}{after}"
        raise DataError(f"{where}: a bracket inside a word, at {shown!r}.\n  {_ESCAPE} White space parts the others.")
    if top.label is None:
        raise DataError(f"{where}: the word {token!r} in the outermost bracket, which has no label.")
    top.children.append(token)


def _close(open_ones: list[_Open], where: str) -> tuple[Tree, int] | None:
    """End the innermost bracket; gives the whole tree where it was the outermost."""
    top = open_ones.pop()
    if not top.children:
        what = f"the constituent {top.label!r} holds no words" if top.label else "an empty pair of brackets"
        raise DataError(f"{where}: {what}.\n  {_ESCAPE}")
    if top.label is not None:
        tree = Tree(top.label, tuple(top.children))
        if open_ones:
            open_ones[-1].children.append(tree)
            return None
        return tree, top.line
    if len(top.children) > 1:
        raise DataError(f"{where}: a bracket without a label around {len(top.children)} trees; one was expected.")
    only = top.children[0]
    assert isinstance(only, Tree)
    return only, top.line


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file of brackets, which is UTF-8, or gzip by its name."""
    number = 0
    try:
        with open_bytes(path, gzipped=path.suffix == ".gz") as stream:
            for number, line in enumerate(limited_lines(stream, path, LONGEST_LINE), 1):
                if number == 1 and line.startswith((BOM, b"\x1f\x8b")):
                    what = "a byte order mark" if line.startswith(BOM) else "gzip data, but not a name in .gz"
                    raise DataError(f"{path}, line 1: starts with {what}; plain UTF-8 was expected.")
                yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: byte {error.start + 1} is 0x{error.object[error.start]:02x}: not UTF-8.\n"
            "  Convert the file, e.g. iconv -f latin1 -t utf-8."
        ) from None
