"""The way back from ranks: factors that meet in a rank node are multiplied and summed over it; states alone are left.

A maximum or a count does not pass through the sum over ranks, so `best` and counting ask the grammar without them.
Read next: `fgg/decompose.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rankfold.errors import UnsupportedError
from rankfold.fgg.derived import Expression, derive
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Rule
from rankfold.fgg.merge import expect_order


def recompose(g: Grammar, what: str) -> Grammar:
    """The grammar without rank nodes; raises where nonterminals are over ranks: `what` would be of ranks there.

    Cost: the full tensors, once a pass. A grammar without ranks is returned as it is.
    """
    ranks = {domain.name for domain in g.domains if domain.is_rank}
    if not ranks:
        return g
    for label in g.labels:
        if not label.is_terminal and ranks & set(label.type):
            raise UnsupportedError(
                f"This grammar is in rank space: {label.name!r} is over ranks, and {what} would be of ranks.\n"
                "  Ask the grammar it was made of."
            )
    labels = {label.name: label for label in g.labels}
    factors: dict[str, Factor] = dict(g.factors)
    made: dict[Expression, str] = {}

    def joined(rule: Rule, group: list[Edge]) -> Edge:
        domain_of = {node.name: node.domain for node in rule.right.nodes}
        output = list(dict.fromkeys(name for edge in group for name in edge.nodes if domain_of[name] not in ranks))
        expression = Expression.of([(edge.label, edge.nodes) for edge in group], output)
        if expression not in made:
            sources = {edge.label: _source(g, edge.label) for edge in group}
            factor, is_batched = derive(expression, sources, {x.name for x in g.labels if x.is_batched})
            name = expression.name
            while name in labels:
                name += "'"
            type_ = tuple(domain_of[node] for node in output)
            made[expression], labels[name] = name, Label(name, type_, is_terminal=True, is_batched=is_batched)
            factors[name] = factor
        return Edge(made[expression], tuple(output))

    rules = tuple(_without(rule, ranks, joined) for rule in g.rules)
    for before, after in zip(g.rules, rules, strict=True):
        expect_order(g, before, after)
    used = {edge.label for rule in rules for edge in rule.right.edges} | {rule.left for rule in rules} | {g.start}
    return Grammar.of(
        g.domains,
        tuple(label for name, label in labels.items() if name in used),
        rules,
        g.start,
        {name: factor for name, factor in factors.items() if name in used},
        g.observed,
    )


def _source(g: Grammar, label: str) -> Factor:
    found = g.factors.get(label)
    return g.factor(label) if found is None else found


def _without(rule: Rule, ranks: set[str], joined: Callable[[Rule, list[Edge]], Edge]) -> Rule:
    """The rule with one factor for each set of factors that rank nodes join."""
    gone = {node.name for node in rule.right.nodes if node.domain in ranks}
    if not gone:
        return rule
    group_of: dict[str, list[Edge]] = {}
    for edge in rule.right.edges:
        own = [name for name in edge.nodes if name in gone]
        whole = [edge]
        for members in {id(group_of[name]): group_of[name] for name in own if name in group_of}.values():
            whole = [*members, *whole]
        for name in {name for member in whole for name in member.nodes if name in gone}:
            group_of[name] = whole
    edges: list[Edge] = []
    done: set[int] = set()
    for edge in rule.right.edges:
        touched = [name for name in edge.nodes if name in gone]
        if not touched:
            edges.append(edge)
        elif id(group_of[touched[0]]) not in done:
            done.add(id(group_of[touched[0]]))
            edges.append(joined(rule, group_of[touched[0]]))
    nodes = tuple(node for node in rule.right.nodes if node.name not in gone)
    return replace(rule, right=Fragment(nodes, tuple(edges), rule.right.externals))
