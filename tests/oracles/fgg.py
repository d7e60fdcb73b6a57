"""Factor graph grammars by enumeration: every derivation, every assignment, in plain Python.

A grammar is a dict from nonterminals to rules; a rule is a dict with "nodes" (name to number of values), "externals"
(names), "edges" (pairs of a label and names) and "observed" (name to value, optional). Factors are nested lists. For
grammars without recursion: a conjoined one, say.
"""

from __future__ import annotations

import itertools
import math


def entry(table, index):
    """The entry of nested lists at an index."""
    for i in index:
        table = table[i]
    return table


def scores(rules, factors, left, values=()):
    """The weight of each pair of a derivation from `left` and an assignment of its inner nodes, externals as given."""
    for rule in rules.get(left, []):
        fixed = dict(rule.get("observed", {}))
        fixed.update(zip(rule["externals"], values, strict=True))
        free = [name for name in rule["nodes"] if name not in fixed]
        for chosen in itertools.product(*(range(rule["nodes"][name]) for name in free)):
            value = {**fixed, **dict(zip(free, chosen, strict=True))}
            weight, inner = 1.0, []
            for label, names in rule["edges"]:
                at = tuple(value[name] for name in names)
                if label in factors:
                    weight *= entry(factors[label], at)
                else:
                    inner.append(list(scores(rules, factors, label, at)))
            for combination in itertools.product(*inner):
                yield weight * math.prod(combination)


def derivations(rules, left):
    """The number of derivations from `left`, whatever their weights."""
    return sum(
        math.prod(derivations(rules, label) for label, _ in rule["edges"] if label in rules)
        for rule in rules.get(left, [])
    )


def total(rules, factors, start):
    """The sum-product: equation 2 of Yang et al. (2022)."""
    return math.fsum(scores(rules, factors, start))


def best(rules, factors, start):
    """The largest weight of a derivation with an assignment; 0 where there is none."""
    return max(scores(rules, factors, start), default=0.0)


def count(rules, factors, start):
    """The number of pairs of a derivation and an assignment that have a weight above 0."""
    return sum(weight > 0 for weight in scores(rules, factors, start))


def trees(rules, factors, left, depth, values=()):
    """Of each derivation at most so deep, with an assignment: its weight, and (rule, values of all nodes) for each use.

    For recursive grammars. A rule is named by its left side and its place there; parents come before children.
    """
    if depth == 0:
        return
    for place, rule in enumerate(rules.get(left, [])):
        fixed = dict(rule.get("observed", {}))
        fixed.update(zip(rule["externals"], values, strict=True))
        free = [name for name in rule["nodes"] if name not in fixed]
        for chosen in itertools.product(*(range(rule["nodes"][name]) for name in free)):
            value = {**fixed, **dict(zip(free, chosen, strict=True))}
            weight, inner = 1.0, []
            for label, names in rule["edges"]:
                at = tuple(value[name] for name in names)
                if label in factors:
                    weight *= entry(factors[label], at)
                else:
                    inner.append(list(trees(rules, factors, label, depth - 1, at)))
            for below in itertools.product(*inner):
                uses = [((left, place), value), *(use for _, own in below for use in own)]
                yield weight * math.prod(own for own, _ in below), uses
