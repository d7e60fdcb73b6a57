"""Labelled binary trees of ONE sentence by enumeration.

Arguments are nested lists of linear weights: `leaf` "t p", `rules` a dictionary of four nested lists by kind of child
("ss", "sl", "ls", "ll"), each [parent][left][right], `root` "n", `root_leaf` "p", `span` a dictionary (i, j) -> weight.
A tree is (i, j, label, left, right), a leaf (i, i + 1, label). Meant for at most three symbols and five words.
"""

import itertools
import math
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


def rules_used(tree) -> list:  # type: ignore[no-untyped-def]
    """(kind, parent, left, right) of every rule in a tree, parents first."""
    if len(tree) == 3:
        return []
    _, _, label, left, right = tree
    kind = ("l" if len(left) == 3 else "s") + ("l" if len(right) == 3 else "s")
    return [(kind, label, left[2], right[2]), *rules_used(left), *rules_used(right)]


def labels(tree) -> list:  # type: ignore[no-untyped-def]
    """The symbol of every word."""
    return [tree[2]] if len(tree) == 3 else labels(tree[3]) + labels(tree[4])


def rule_gradient(leaf, rules, root, root_leaf, span) -> dict:  # type: ignore[no-untyped-def]
    """d log Z / d rule, nested as `rules`; right at weights of 0: each use is left out, not divided by."""
    found = {kind: [[[0.0 for _ in row] for row in table] for table in tables] for kind, tables in rules.items()}
    total = 0.0
    for tree in trees(0, len(leaf), leaf, rules, len(root)):
        used = rules_used(tree)
        rest = root[tree[2]] if used else root_leaf[tree[2]]
        rest *= math.prod(leaf[i][label] for i, label in enumerate(labels(tree)))
        rest *= math.prod(span.get(ends, 1.0) for ends in brackets(tree))
        own = [rules[kind][a][n][m] for kind, a, n, m in used]
        total += rest * math.prod(own)
        for at, (kind, a, n, m) in enumerate(used):
            found[kind][a][n][m] += rest * math.prod(own[:at] + own[at + 1 :])
    for tables in found.values():
        for table in tables:
            for row in table:
                row[:] = [x / total if total else 0.0 for x in row]
    return found


def labelled(tree) -> set:  # type: ignore[no-untyped-def]
    """(i, j, label) of the spans of two words and more."""
    if len(tree) == 3:
        return set()
    return {tree[:3]} | labelled(tree[3]) | labelled(tree[4])


def bracketings(i, j) -> Iterator[frozenset]:  # type: ignore[no-untyped-def]
    """The brackets of every binary tree over words i..j-1, two words and more."""
    if j - i == 1:
        yield frozenset()
        return
    for k in range(i + 1, j):
        for left, right in itertools.product(list(bracketings(i, k)), list(bracketings(k, j))):
            yield frozenset({(i, j)}) | left | right


def expected(weights, parts) -> dict:  # type: ignore[no-untyped-def]
    """How probable each part of a tree is, for trees of these weights; `parts` gives those of one."""
    total, found = sum(weights.values()), {}
    for tree, weight in weights.items():
        for part in parts(tree):
            found[part] = found.get(part, 0.0) + weight / total
    return found


def best_expected(length, posterior) -> float:  # type: ignore[no-untyped-def]
    """The largest sum of posteriors {(i, j): probability} of the brackets of a binary tree."""
    return max(sum(posterior.get(ends, 0.0) for ends in brackets) for brackets in bracketings(0, length))
