"""Constituency trees: labelled brackets over the words of one sentence, immutable and comparable.

Nothing here recurses, so that a tree may be as deep as its sentence is long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from rankfold.errors import DataError, UnsupportedError

Value = TypeVar("Value")


class Span(NamedTuple):
    """A constituent: words `start` to `end - 1`, counted from 0, and its label."""

    start: int
    end: int
    label: str


class _Close(NamedTuple):
    """The end of a tree, in a walk over its brackets."""

    tree: Tree


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A label over one or more children, each a tree or a word. A tree over a single word is a tag, not a constituent.

    Labels and words hold no white space and no brackets (Penn treebanks write -LRB- and -RRB-), so that `str(tree)`,
    the tree in brackets on one line, can be read again. Equal trees have equal labels and words in equal brackets.
    """

    label: str
    children: tuple[Tree | str, ...]

    def __post_init__(self) -> None:
        _check_token(self.label, "label")
        if isinstance(self.children, str | Tree):
            raise DataError(f"the children of {self.label} are a tuple of trees and words: ({self.children!r},).")
        object.__setattr__(self, "children", tuple(self.children))
        if not self.children:
            raise DataError(f"the constituent {self.label} is empty: at least one tree or word was expected.")
        for child in self.children:
            if not isinstance(child, Tree):
                _check_token(child, "word")

    @property
    def is_tag(self) -> bool:
        """Whether this is a part of speech: a label over exactly one word."""
        return len(self.children) == 1 and isinstance(self.children[0], str)

    @property
    def is_binary(self) -> bool:
        """Whether every node is a tag or has exactly two children."""
        return all(node.is_tag or len(node.children) == 2 for node in self.nodes())

    @property
    def words(self) -> list[str]:
        """The words, left to right."""
        return [step for step in self._walk() if isinstance(step, str)]

    @property
    def tags(self) -> list[str | None]:
        """The part of speech of each word, None where a word has none of its own."""
        found: list[str | None] = []
        tag = None
        for step in self._walk():
            if isinstance(step, Tree):
                tag = step.label if step.is_tag else None
            elif isinstance(step, str):
                found.append(tag)
            else:
                tag = None
        return found

    def nodes(self) -> Iterator[Tree]:
        """Every subtree, tags among them, parents before children and left before right."""
        return (step for step in self._walk() if isinstance(step, Tree))

    def spans(self, *, tags: bool = False) -> list[Span]:
        """The constituents, outermost first and left before right; a unary chain repeats its words.

        The whole sentence and constituents of one word are among them; parts of speech are not, unless `tags`.
        """
        starts: list[tuple[int, str]] = []
        ends: list[int] = []
        open_ones: list[int] = []
        position = 0
        for step in self._walk():
            if isinstance(step, str):
                position += 1
            elif isinstance(step, Tree):
                if tags or not step.is_tag:
                    open_ones.append(len(starts))
                    starts.append((position, step.label))
                    ends.append(position)
            elif tags or not step.tree.is_tag:
                ends[open_ones.pop()] = position
        return [Span(start, end, label) for (start, label), end in zip(starts, ends, strict=True)]

    def fold(self, of_word: Callable[[str], Value], of_tree: Callable[[Tree, list[Value]], Value]) -> Value:
        """The value of the whole, where `of_tree` makes a tree's value of its children's, bottom up."""
        values: list[list[Value]] = [[]]
        for step in self._walk():
            if isinstance(step, str):
                values[-1].append(of_word(step))
            elif isinstance(step, Tree):
                values.append([])
            else:
                below = values.pop()
                values[-1].append(of_tree(step.tree, below))
        return values[0][0]

    def rewrite(
        self, of_tree: Callable[[Tree, list[Tree | str]], Tree] | None = None, of_word: Callable[[str], str] = str
    ) -> Tree:
        """The tree with its subtrees, of children already rewritten, and words replaced; None: other children alone."""

        def rewritten(node: Tree, children: list[Tree | str]) -> Tree | str:
            return Tree(node.label, tuple(children)) if of_tree is None else of_tree(node, children)

        found = self.fold(of_word, rewritten)
        assert isinstance(found, Tree)
        return found

    def __str__(self) -> str:
        parts: list[str] = []
        for step in self._walk():
            if isinstance(step, _Close):
                parts[-1] += ")"
            else:
                parts.append(step if isinstance(step, str) else f"({step.label}")
        return " ".join(parts)

    def __repr__(self) -> str:
        return f"Tree({self})"

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Callable[[list[tuple[str, int]]], Tree], tuple[list[tuple[str, int]]]]:
        # Copied and pickled as a list: nested objects would be copied by recursion.
        steps = [
            (step, -1) if isinstance(step, str) else (step.tree.label, len(step.tree.children))
            for step in self._walk()
            if not isinstance(step, Tree)
        ]
        return _from_steps, (steps,)

    def _walk(self) -> Iterator[Tree | str | _Close]:
        """Each tree where it opens and, as `_Close`, where it ends, and the words between."""
        pending: list[Tree | str | _Close] = [self]
        while pending:
            step = pending.pop()
            yield step
            if isinstance(step, Tree):
                pending.append(_Close(step))
                pending.extend(reversed(step.children))


def tree_of_spans(
    words: Sequence[str], spans: Iterable[tuple[int, int, str]], *, tags: Sequence[str] | None = None, tag: str = "T"
) -> Tree:
    """The tree with exactly these constituents, in the words of `Span`; the inverse of `Tree.spans`.

    Spans of the same words are a unary chain, the first of them outermost. The whole sentence must be among them.
    Every word gets a part of speech: its entry of `tags`, or `tag`.
    """
    if tags is not None and len(tags) != len(words):
        raise DataError(f"{len(words)} words, but {len(tags)} tags: one each was expected.")
    ordered = sorted((Span(*span) for span in spans), key=lambda span: (span.start, -span.end))
    if not ordered or (ordered[0].start, ordered[0].end) != (0, len(words)):
        raise DataError(f"no span covers the whole sentence, words 0 to {len(words)}.\n  Add (0, {len(words)}, label).")
    leaves = [Tree(tag if tags is None else tags[i], (word,)) for i, word in enumerate(words)]
    open_ones: list[tuple[Span, list[Tree | str]]] = []
    done: list[Tree | str] = []
    waiting = ordered[::-1]
    for position, leaf in enumerate(leaves):
        while waiting and waiting[-1].start == position:
            span = waiting.pop()
            if not (span.start < span.end <= (open_ones[-1][0].end if open_ones else len(words))):
                outer = f"{tuple(open_ones[-1][0])}" if open_ones else f"a sentence of {len(words)} words"
                raise DataError(f"the span {tuple(span)} is empty or crosses {outer}: constituents must nest.")
            open_ones.append((span, []))
        open_ones[-1][1].append(leaf)
        while open_ones and open_ones[-1][0].end == position + 1:
            span, children = open_ones.pop()
            (open_ones[-1][1] if open_ones else done).append(Tree(span.label, tuple(children)))
    if waiting:
        raise DataError(f"the span {tuple(waiting[-1])} starts outside a sentence of {len(words)} words.")
    whole = done[0]
    assert isinstance(whole, Tree)
    return whole


def to_nltk(tree: Tree) -> Any:
    """The same tree as an `nltk.Tree`."""
    make = _nltk().Tree
    return tree.fold(str, lambda node, children: make(node.label, children))


def from_nltk(tree: Any) -> Tree:
    """The same tree as ours; labels and words that cannot be written in brackets are refused.

    By nature nltk's own tree functions recurse; this one does not.
    """
    kind = _nltk().Tree
    if not isinstance(tree, kind):
        raise DataError(f"an nltk.Tree was expected, but a {type(tree).__name__} came.")
    pending: list[tuple[Any, bool]] = [(tree, False)]
    values: list[list[Tree | str]] = [[]]
    while pending:
        node, closing = pending.pop()
        if closing:
            below = values.pop()
            values[-1].append(Tree(node.label(), tuple(below)))
        elif isinstance(node, kind):
            values.append([])
            pending.append((node, True))
            pending.extend((child, False) for child in reversed(node))
        else:
            values[-1].append(node)
    whole = values[0][0]
    assert isinstance(whole, Tree)
    return whole


def _nltk() -> Any:
    try:
        return import_module("nltk.tree")
    except ImportError as error:
        raise UnsupportedError(
            "trees of nltk need nltk.\n  Install it: pip install nltk; str(tree) and parse_tree need nothing."
        ) from error


def _from_steps(steps: list[tuple[str, int]]) -> Tree:
    """The tree of its words (with -1) and labels (with their number of children), children first."""
    done: list[Tree | str] = []
    for text, count in steps:
        if count < 0:
            done.append(text)
        else:
            children = tuple(done[-count:])
            del done[-count:]
            done.append(Tree(text, children))
    whole = done[0]
    assert isinstance(whole, Tree)
    return whole


def _check_token(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise DataError(f"a {what} is a string, but {text!r} is a {type(text).__name__}.")
    if text.split() != [text] or "(" in text or ")" in text:
        raise DataError(
            f"the {what} {text!r} is empty, or has white space or a bracket in it.\n"
            "  Brackets that are words are written -LRB- and -RRB-."
        )
