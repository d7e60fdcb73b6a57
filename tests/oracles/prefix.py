"""Beginnings of sentences under a grammar, from right to left and by plain iteration; and all sentences, where finite.

Arguments are nested lists of linear weights: `emission` [symbol][word], `rules` a dictionary of four nested lists by
kind of child ("ss", "sl", "ls", "ll"), each [parent][left][right], `root` "n", `root_leaf` "p". Rules are
distributions; words are numbers.
"""

import itertools
from functools import cache


def sizes(rules) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    return len(rules["ll"]), len(rules["ll"][0])


def every_rule(rules) -> list:  # type: ignore[no-untyped-def]
    """(parent, left, right, weight), leaves numbered after spans."""
    n, p = sizes(rules)
    shift = {"s": range(n), "l": range(n, n + p)}
    return [
        (a, left, right, rules[kind][a][left - shift[kind[0]][0]][right - shift[kind[1]][0]])
        for kind in ("ss", "sl", "ls", "ll")
        for a in range(n)
        for left, right in itertools.product(shift[kind[0]], shift[kind[1]])
    ]


def mass(rules) -> list[float]:  # type: ignore[no-untyped-def]
    """The probability that a tree from each symbol ends, leaves last: what trees of growing height add up to."""
    n, p = sizes(rules)
    found = [0.0] * n + [1.0] * p
    while True:
        new = [0.0] * n + [1.0] * p
        for a, left, right, weight in every_rule(rules):
            new[a] += weight * found[left] * found[right]
        if all(abs(x - y) <= 1e-17 for x, y in zip(new, found, strict=True)):
            return new
        found = new


def prefix(words, emission, rules, root, root_leaf) -> float:  # type: ignore[no-untyped-def]
    """The probability of all sentences that begin with these words.

    begins[x, i]: a tree from x, finite, begins with words i.. to the end of `words` (its own may be more).
    """
    n, p = sizes(rules)
    ends, table, last = mass(rules), every_rule(rules), len(words)
    if not last:
        return sum(x * y for x, y in zip(root, ends, strict=False)) + sum(root_leaf)

    @cache
    def inside(x, i, j) -> float:  # type: ignore[no-untyped-def]
        if j - i == 1:
            return emission[x - n][words[i]] if x >= n else 0.0
        return sum(
            weight * inside(left, i, k) * inside(right, k, j)
            for a, left, right, weight in table
            if a == x
            for k in range(i + 1, j)
        )

    @cache
    def begins(i) -> tuple[float, ...]:  # type: ignore[no-untyped-def]
        leaf = [emission[x][words[i]] if i == last - 1 else 0.0 for x in range(p)]
        fixed = [0.0] * n + leaf  # words parted between both children
        for a, left, right, weight in table:
            for k in range(i + 1, last):
                fixed[a] += weight * inside(left, i, k) * begins(k)[right]
        found = list(fixed)
        while True:  # all words in the left child
            new = list(fixed)
            for a, left, right, weight in table:
                new[a] += weight * found[left] * ends[right]
            if all(abs(x - y) <= 1e-17 * y for x, y in zip(new, found, strict=True)):
                return tuple(new)
            found = new

    return sum(x * y for x, y in zip([*root, *root_leaf], begins(0), strict=True))


def sentences(emission, rules, root, root_leaf) -> dict:  # type: ignore[no-untyped-def]
    """Every sentence and its probability, of a grammar whose symbols lead to later ones only."""
    n, _ = sizes(rules)
    table = [rule for rule in every_rule(rules) if rule[3]]
    assert all(left > a and right > a for a, left, right, _ in table)

    @cache
    def below(x) -> tuple:  # type: ignore[no-untyped-def]
        if x >= n:
            return tuple(((word,), weight) for word, weight in enumerate(emission[x - n]))
        found: dict[tuple[int, ...], float] = {}
        for a, left, right, weight in table:
            if a == x:
                for (one, u), (other, v) in itertools.product(below(left), below(right)):
                    found[one + other] = found.get(one + other, 0.0) + weight * u * v
        return tuple(found.items())

    total: dict[tuple[int, ...], float] = {}
    for x, top in enumerate([*root, *root_leaf]):
        for sentence, weight in below(x):
            total[sentence] = total.get(sentence, 0.0) + top * weight
    return total
