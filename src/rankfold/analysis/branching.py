"""Trees that need no model: left- and right-branching, drawn at random, and the best a binary tree can do.

What a parser is worth is told by its distance from these.
Read next: `bracketing.py`, which scores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from rankfold.data.trees import Tree
from rankfold.errors import DataError, UnsupportedError


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


def random_binary(words: Sequence[str], *, generator: torch.Generator, label: str = "X", tag: str = "T") -> Tree:
    """A binary tree, each of the C(n - 1) over n words with the same probability, C the Catalan numbers.

    By the cycle lemma: of the 2n - 1 rotations of a shuffled row of n words and n - 1 joints, exactly one reads as a tree
    (each joint followed by its two parts). O(n). Not the coin flips between shift and reduce of some published
    baselines, which are not uniform.
    """
    leaves = _leaves(words, tag)
    n = len(leaves)
    is_word = (torch.randperm(2 * n - 1, generator=generator, device=generator.device) < n).tolist()
    # A joint opens one place more than it fills, a word fills one: the tree starts after the row is lowest for the first time.
    height, lowest, start = 0, 0, 0
    for at, word in enumerate(is_word):
        height += -1 if word else 1
        if height < lowest:
            lowest, start = height, at + 1
    row = is_word[start:] + is_word[:start]
    ready: list[Tree] = []
    for word in reversed(row):
        if word:
            ready.append(leaves.pop())
        else:
            ready.append(Tree(label, (ready.pop(), ready.pop())))
    return ready[0]


def binarise(tree: Tree, *, branching: Literal["left", "right"] = "right") -> Tree:
    """A binary tree that has every bracket of a tree over two words or more; of unary chains the upper label stays.

    Of a gold tree it is the best binary prediction: any binary tree over n words has n - 2 brackets between one word and
    the whole, so none has higher F1 than one that has all gold brackets. Added ones are labelled like the
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
