"""The state nodes of a rule and what they touch: its external node meets a head, its children's states meet sides.

State nodes are the external node and the nodes of nonterminals; ranks are all others that are not observed.
Read next: `fgg/rank_space.py`.
"""

from __future__ import annotations

from rankfold.errors import UnsupportedError
from rankfold.fgg.b_fgg import why_not_b_fragment
from rankfold.fgg.derived import Expression
from rankfold.fgg.hrg import HRG, is_inclusion
from rankfold.fgg.hypergraph import Edge, Rule

DECOMPOSE = "decompose(g, {label: (u, v, w)})"


def states(hrg: HRG, rule: Rule) -> dict[str, Edge]:
    """The children's states, each with its nonterminal."""
    return {name: edge for edge in hrg.nonterminal_edges(rule) for name in edge.nodes}


def attached(hrg: HRG, rule: Rule, state: str) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
    """The factors on a state, and the other nodes they tie it to.

    A node that is the state itself as a value of a union, or of one of its parts, is not another; nor is one that
    nothing else touches, which is summed with the state, unless it is a symbol.
    """
    own, apart = [state], {*rule.right.externals, *states(hrg, rule)}
    for name in own:
        for edge in hrg.terminal_edges(rule):
            if name in edge.nodes and is_inclusion(edge.label):
                own += [x for x in edge.nodes if x not in own and x not in apart]
    edges = tuple(edge for edge in hrg.terminal_edges(rule) if set(edge.nodes) & set(own))
    elsewhere = apart.union(*(edge.nodes for edge in rule.right.edges if edge not in edges))
    others = dict.fromkeys(x for edge in edges for x in edge.nodes if x not in own)
    return edges, tuple(x for x in others if x in elsewhere or is_observed(hrg, rule, x))


def heads(hrg: HRG, rule: Rule) -> tuple[Edge, ...]:
    """The factors on the external node."""
    return attached(hrg, rule, rule.right.externals[0])[0]


def head(hrg: HRG, rule: Rule) -> tuple[Expression, tuple[str, ...]]:
    """What the external node meets in a rule, state first, and the other nodes it ties it to."""
    edges, rest = attached(hrg, rule, rule.right.externals[0])
    return Expression.of([(e.label, e.nodes) for e in edges], (*rule.right.externals, *rest)), rest


def is_observed(hrg: HRG, rule: Rule, name: str) -> bool:
    """Whether a node is a symbol of a string, fixed or to be fixed by a query."""
    node = rule.right.node(name)
    return node.observed is not None or hrg.domain(node.domain).is_observed


def child_of_head(hrg: HRG, rule: Rule) -> Edge | None:
    """The only child whose state a factor ties to the external node; raises where more is tied to it."""
    below = states(hrg, rule)
    rest = head(hrg, rule)[1]
    tied = [name for name in rest if name in below]
    if not tied:
        return None
    above = attached(hrg, rule, tied[0])[0]
    if len(rest) > 1 or any(edge not in heads(hrg, rule) for edge in above):
        labels = ", ".join(repr(edge.label) for edge in heads(hrg, rule))
        raise UnsupportedError(
            f"Rule {rule.name!r} ties its external node {rule.right.externals[0]!r} to the states {', '.join(tied)} of "
            f"its children by {labels}, without a rank between them.\n"
            f"  Give that factor by its parts first: {DECOMPOSE}; several factors on one state: merge(g) before."
        )
    return below[tied[0]]


def side(hrg: HRG, rule: Rule, state: str) -> tuple[Expression, tuple[str, ...]]:
    """What a child's state meets in a rule, state first, and the one rank it ties it to; raises if there are more."""
    above, rest = attached(hrg, rule, state)
    labels = ", ".join(repr(edge.label) for edge in above)
    where = f"State {state!r} of rule {rule.name!r}"
    if sum(state in edge.nodes for edge in hrg.nonterminal_edges(rule)) > 1:
        raise UnsupportedError(f"{where} belongs to several nonterminals, so neither has ranks of its own there.")
    if not above:
        raise UnsupportedError(f"{where} touches no factor, so there is no rank to take its place.")
    others = [name for name in rest if name in states(hrg, rule)]
    if others:
        raise UnsupportedError(
            f"{where} is tied to the state {others[0]!r} by {labels}, without a rank between them.\n"
            f"  Give that factor by its parts, one node each: {DECOMPOSE}."
        )
    if len(rest) > 1 or any(is_observed(hrg, rule, name) for name in rest):
        raise UnsupportedError(
            f"{where} touches {labels}, which tie it to {', '.join(rest)}, but a child's state meets one rank.\n"
            f"  Merge the factors (merge(g)) and give the result by its parts: {DECOMPOSE}."
        )
    return Expression.of([(e.label, e.nodes) for e in above], (state, *rest)), rest


def expect_b_fragment(hrg: HRG, rule: Rule) -> None:
    """Raise unless a rule's right side is a B-hypergraph fragment (Definition 6), or its left side the start symbol."""
    reason = why_not_b_fragment(hrg, rule)
    if reason is not None:
        raise UnsupportedError(
            f"The grammar is no B-FGG (Definition 6), so it has no rank space: {reason}.\n"
            "  Join the domains of several nodes to one, put a factor between node and nonterminal, or sum it as it is."
        )
