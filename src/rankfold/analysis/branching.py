"""Trees that need no model: left- and right-branching, drawn at random, and the best a binary tree can do.

What a parser is worth is told by its distance from these.
Read next: `bracketing.py`, which scores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from rankfold.data.trees import Tree
from rankfold.errors import DataError, UnsupportedError

RandomLaw = Literal["trees", "splits", "actions"]


def right_branching(words: Sequence[str], *, label: str = "X", tag: str = "T") -> Tree:
    """(X a (X b (X c d))): each word beside all that follow it."""
    leaves = _leaves(words, tag)
    tree = leaves[-1]
    for leaf in reversed(leaves[:-1]):
        tree = Tree(label, (leaf, tree))
    return tree


def left_branching(words: Sequence[str], *, label: str = "X", tag: str = "T") -> Tree:
    """(X (X (X a b) c) d): each word beside all before it."""
    leaves = _leaves(words, tag)
    tree = leaves[0]
    for leaf in leaves[1:]:
        tree = Tree(label, (tree, leaf))
    return tree


def random_binary(
    words: Sequence[str], *, generator: torch.Generator, law: RandomLaw = "trees", label: str = "X", tag: str = "T"
) -> Tree:
    """A random binary tree under one of three laws, which differ by several points of F1.

    "trees"    each of the C(n - 1) binary trees with the same probability, C the Catalan numbers
    "splits"   each constituent parted at a uniformly drawn place, from the top
    "actions"  shift or reduce by the toss of a coin, where both are possible; the random trees in the code of
               Kim, Dyer, Rush 2019
    """
    leaves = _leaves(words, tag)
    if law not in _ROWS:
        raise UnsupportedError(f"law={law!r} is not known: one of {', '.join(map(repr, _ROWS))} was expected.")
    ready: list[Tree] = []
    for is_word in reversed(_ROWS[law](len(leaves), generator)):
        ready.append(leaves.pop() if is_word else Tree(label, (ready.pop(), ready.pop())))
    return ready[0]


def binarise(tree: Tree, *, branching: Literal["left", "right"] = "right") -> Tree:
    """A binary tree that has every bracket of a tree over two words or more; of unary chains the upper label stays.

    Of a gold tree it is the best binary prediction: any binary tree over n words has n - 2 brackets between one word
    and the whole, so none has higher F1 than one that has all gold brackets. Added ones are labelled like the
    constituent they part, with a prime ('), and lean to the side of `branching`, which does not change F1.
    """
    if branching not in ("left", "right"):
        raise UnsupportedError(f'branching={branching!r} is not known: "left" or "right" was expected.')

    def of_tree(node: Tree, children: list[Tree | str]) -> Tree:
        only = children[0]
        if len(children) == 1:
            if isinstance(only, str):
                return node
            return only if only.is_tag else Tree(node.label, only.children)
        inner = f"{node.label}'"
        while len(children) > 2:
            if branching == "right":
                children[-2:] = [Tree(inner, (children[-2], children[-1]))]
            else:
                children[:2] = [Tree(inner, (children[0], children[1]))]
        return Tree(node.label, tuple(children))

    def of_word(word: str) -> Tree | str:
        return word

    whole = tree.fold(of_word, of_tree)
    assert isinstance(whole, Tree)
    return whole


def _leaves(words: Sequence[str], tag: str) -> list[Tree]:
    if isinstance(words, str) or not words:
        raise DataError(f"a sequence of at least one word was expected, but {words!r} came.")
    return [Tree(tag, (word,)) for word in words]


def _row_of_trees(n: int, generator: torch.Generator) -> list[bool]:
    """A uniform tree, written with each joint (false) before its two parts and words as true.

    By the cycle lemma exactly one rotation of a shuffled row of n words and n - 1 joints reads as a tree.
    """
    row = (torch.randperm(2 * n - 1, generator=generator, device=generator.device) < n).tolist()
    # A joint opens one place more than it fills, a word fills one: start after the first place where fewest are open.
    height, lowest, start = 0, 0, 0
    for at, is_word in enumerate(row):
        height += -1 if is_word else 1
        if height < lowest:
            lowest, start = height, at + 1
    return [*row[start:], *row[:start]]


def _row_of_splits(n: int, generator: torch.Generator) -> list[bool]:
    shares = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device).tolist()
    row, pending = [], [n]
    while pending:
        width = pending.pop()
        row.append(width == 1)
        if width > 1:
            left = 1 + int(shares.pop() * (width - 1))
            pending += [width - left, left]
    return row


def _row_of_actions(n: int, generator: torch.Generator) -> list[bool]:
    coins = torch.randint(2, (2 * n,), generator=generator, device=generator.device).tolist()
    ready: list[list[bool]] = []
    shifted = 0
    while shifted < n or len(ready) > 1:
        if len(ready) < 2 or (shifted < n and coins.pop()):
            ready.append([True])
            shifted += 1
        else:
            right = ready.pop()
            ready.append([False, *ready.pop(), *right])
    return ready[0]


_ROWS: dict[str, Callable[[int, torch.Generator], list[bool]]] = {
    "trees": _row_of_trees,
    "splits": _row_of_splits,
    "actions": _row_of_actions,
}
