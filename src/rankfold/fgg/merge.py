"""Several factors of a fragment as one (step 1 of section 4.1), so that one decomposition serves them all.

    X(t) -> trans(t, u) emit(u, x) X(u)      X(t) -> trans[emit](t, u, x) X(u)

Read next: `fgg/decompose.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from rankfold.errors import UnsupportedError
from rankfold.fgg.derived import Expression, derive
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hrg import is_inclusion
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Rule


def merge(g: Grammar, rules: Collection[str] | None = None) -> Grammar:
    """The same grammar with one factor in place of all factors that share nodes, in these rules (None: in all).

    The merged factor is the product over all their nodes, `first[others]` by name, computed when it is needed,
    differentiable; a decomposition of it (`decompose`) replaces it before it ever is. Equal merged factors share a
    label. Raises where a merged factor would name the symbols of a string in another order. Cost, once a pass: the size
    of the merged tensor.
    """
    for name in rules or ():
        g.hrg.rule(name)
    labels = {label.name: label for label in g.labels}
    factors: dict[str, Factor] = dict(g.factors)
    made: dict[Expression, str] = {}

    def merged(rule: Rule, group: list[Edge]) -> Edge:
        nodes = tuple(dict.fromkeys(name for edge in group for name in edge.nodes))
        expression = Expression.of([(edge.label, edge.nodes) for edge in group], nodes)
        if expression not in made:
            sources = {edge.label: _source(g, edge.label) for edge in group}
            name = expression.name
            while name in labels:
                name += "'"
            type_ = tuple(rule.right.node(node).domain for node in nodes)
            batched = {x.name for x in g.labels if x.is_batched}
            is_batched = any(edge.label in batched for edge in group)
            made[expression] = name
            labels[name] = Label(name, type_, is_terminal=True, is_batched=is_batched)
            if all(source is not None for source in sources.values()):
                factors[name] = derive(expression, {k: x for k, x in sources.items() if x is not None}, batched)[0]
        return Edge(made[expression], nodes)

    found = tuple(_merged(g, rule, merged) if rules is None or rule.name in rules else rule for rule in g.rules)
    used = {edge.label for rule in found for edge in rule.right.edges} | {rule.left for rule in found} | {g.start}
    return Grammar.of(
        g.domains,
        tuple(label for name, label in labels.items() if name in used),
        found,
        g.start,
        {name: factor for name, factor in factors.items() if name in used},
        g.observed,
    )


def _source(g: Grammar, label: str) -> Factor | None:
    """A factor, or None while it has no tensor."""
    return g.factor(label) if is_inclusion(label) else g.factors.get(label)


def _merged(g: Grammar, rule: Rule, merged: Callable[[Rule, list[Edge]], Edge]) -> Rule:
    """The rule with each set of factors that share nodes as one, where its first factor was."""
    free = {node.name for node in rule.right.nodes if node.observed is None}
    groups: list[list[Edge]] = []
    for edge in g.hrg.terminal_edges(rule):
        shared = [own for own in groups if any(set(edge.nodes) & set(other.nodes) & free for other in own)]
        groups = [own for own in groups if own not in shared] + [[e for own in shared for e in own] + [edge]]
    order = {id(edge): k for k, edge in enumerate(rule.right.edges)}
    for own in groups:
        own.sort(key=lambda edge: order[id(edge)])
    group_of = {id(edge): own for own in groups for edge in own}
    edges: list[Edge] = []
    for edge in rule.right.edges:
        group = group_of.get(id(edge), [edge])
        if len(group) == 1:
            edges.append(edge)
        elif group[0] is edge:
            edges.append(merged(rule, group))
    out = replace(rule, right=Fragment(rule.right.nodes, tuple(edges), rule.right.externals))
    expect_order(g, rule, out)
    return out


def expect_order(g: Grammar, before: Rule, after: Rule) -> None:
    """Raise if a rule names its nonterminals and the symbols that a query will fix in another order than before."""
    if _slots(g, before, before.right.edges) != _slots(g, before, after.right.edges):
        raise UnsupportedError(
            f"As one factor, those of rule {before.name!r} would name its symbols in another order than before.\n"
            "  Write the factors that emit next to each other, or do this after the query."
        )


def _slots(g: Grammar, rule: Rule, edges: tuple[Edge, ...]) -> list[str]:
    """Nonterminals and the symbols that a query will read, in the order the edges name them."""
    found: list[str] = []
    for edge in edges:
        if edge.label in {own.label for own in g.hrg.nonterminal_edges(rule)}:
            found.append(edge.label)
        for name in edge.nodes:
            node = rule.right.node(name)
            is_cell = isinstance(node.observed, tuple)
            if not is_cell and g.domain(node.domain).is_observed and f"({name})" not in found:
                found.append(f"({name})")
    return found
