"""Labelled binary trees of ONE sentence by enumeration.

Arguments are nested lists of linear weights: `leaf` "t p", `rules` a dictionary of four nested lists by kind of child
("ss", "sl", "ls", "ll"), each [parent][left][right], `root` "n", `root_leaf` "p", `span` a dictionary (i, j) -> weight.
A tree is (i, j, label, left, right), a leaf (i, i + 1, label). Meant for at most three symbols and five words.
"""

import itertools
from collections.abc import Iterator


def trees(i, j, leaf, rules, num_symbols) -> Iterator[tuple]:  # type: ignore[no-untyped-def]
    """Every labelled binary tree over words i..j-1."""
    if j - i == 1:
        for label in range(len(leaf[i])):
            yield (i, j, label)
        return
    for k in range(i + 1, j):
        for left, right in itertools.product(
            list(trees(i, k, leaf, rules, num_symbols)), list(trees(k, j, leaf, rules, num_symbols))
        ):
            for label in range(num_symbols):
                yield (i, j, label, left, right)


def weight(tree, leaf, rules, span) -> float:  # type: ignore[no-untyped-def]
    """The product of everything below and at the top of a tree, its root aside."""
    i, j, label = tree[:3]
    if len(tree) == 3:
        return leaf[i][label]
    left, right = tree[3:]
    kind = ("l" if len(left) == 3 else "s") + ("l" if len(right) == 3 else "s")
    own = rules[kind][label][left[2]][right[2]] * span.get((i, j), 1.0)
    return own * weight(left, leaf, rules, span) * weight(right, leaf, rules, span)


def weights(leaf, rules, root, root_leaf, span) -> dict:  # type: ignore[no-untyped-def]
    """Every tree of the whole sentence with its weight, the root's included."""
    found = {}
    for tree in trees(0, len(leaf), leaf, rules, len(root)):
        top = root[tree[2]] if len(tree) > 3 else root_leaf[tree[2]]
        found[tree] = top * weight(tree, leaf, rules, span)
    return found


def brackets(tree) -> set:  # type: ignore[no-untyped-def]
    """The spans of two words and more."""
    if len(tree) == 3:
        return set()
    return {tree[:2]} | brackets(tree[3]) | brackets(tree[4])
