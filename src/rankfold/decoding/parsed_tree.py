"""A binary tree of one sentence: brackets and symbols as plain numbers, and as a `Tree` of its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rankfold.data.trees import Tree, tree_of_spans
from rankfold.recursions.tree.descend import Traced

SPAN, LABEL, TAG = "X", "NT", "T"


class ParsedTree(NamedTuple):
    """A binary tree of one sentence. Without brackets: one word, or a sentence that the grammar cannot make."""

    spans: list[tuple[int, int]]  # words i..j-1, two and more; parents first, left before right
    labels: list[int] | None = None  # the symbol of each of these
    tags: list[int] | None = None  # the symbol of each word
    score: float | None = None  # the tree's score, by the measure of the function that returns it


def parsed_trees(traced: Traced, scores: list[float] | None = None) -> list[list[ParsedTree]]:
    """The trees that were traced, by sample and sentence."""
    found = []
    for spans, tags in zip(traced.spans, traced.tags, strict=True):
        row = []
        for b, (nodes, words) in enumerate(zip(spans, tags, strict=True)):
            ends, labels = [(i, j) for i, j, _ in nodes], [symbol for *_, symbol in nodes]
            score = None if scores is None else scores[b]
            row.append(ParsedTree(ends, labels, words, score) if words else ParsedTree([]))
        found.append(row)
    return found


def as_tree(found: ParsedTree, words: Sequence[str]) -> Tree | None:
    """Brackets and symbols as a tree of these words; None for more than one word without a bracket.

    Nonterminal 17 is written NT-17, preterminal 5 T-5; a tree without labels has X and T.
    """
    tags = [TAG] * len(words) if not found.tags else [f"{TAG}-{tag}" for tag in found.tags]
    if len(words) == 1:
        return Tree(tags[0], (words[0],))
    if not found.spans:
        return None
    labels = [SPAN] * len(found.spans) if found.labels is None else [f"{LABEL}-{label}" for label in found.labels]
    spans = [(start, end, label) for (start, end), label in zip(found.spans, labels, strict=True)]
    return tree_of_spans(words, spans, tags=tags)
