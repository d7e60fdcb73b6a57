"""What a question about trees is answered with: brackets and symbols of one sentence, as plain numbers.

Read next: `decoding/tree_mbr.py`.
"""

from __future__ import annotations

from typing import NamedTuple


class ParsedTree(NamedTuple):
    """A binary tree of one sentence. Without brackets: one word, or a sentence that the grammar cannot make."""

    spans: list[tuple[int, int]]  # words i..j-1, two and more; parents first, left before right
    labels: list[int] | None = None  # the symbol of each of these
    tags: list[int] | None = None  # the symbol of each word
    score: float | None = None  # what the tree is best at: said by whoever gives it
