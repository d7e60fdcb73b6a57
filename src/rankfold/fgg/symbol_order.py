"""The order of a string's symbols in a rule whose factors become one: a query reads them as the edges name them.

Read next: `fgg/rank_space.py`, `fgg/query_structure.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Edge, Rule

Symbol = Callable[[str], str]


def in_order(
    hrg: HRG, rule: Rule, edges: Sequence[Edge], gone: Collection[Edge], made: Edge, symbol: Symbol
) -> tuple[Edge, ...]:
    """A rule's edges with `made` in place of those that are gone, its symbols and nonterminals named as before.

    `edges` are those of the rule, nonterminals perhaps under other labels. Where no place of `made` keeps the order (it
    names symbols on both sides of something), each symbol of an edge that is gone is named before it, at its old place,
    by a factor of ones: `symbol` gives the label for a domain.
    """
    wanted = _slots(hrg, rule, edges, made)
    others = [edge for edge in edges if edge not in gone]
    first = next((k for k, edge in enumerate(edges) if edge in gone), 0)
    for k in sorted(range(len(others) + 1), key=lambda k: abs(k - first)):
        found = (*others[:k], made, *others[k:])
        if _slots(hrg, rule, found, made) == wanted:
            return found
    named: list[Edge] = []
    for edge in edges:
        if edge not in gone:
            named.append(edge)
            continue
        for name in _symbols(hrg, rule, edge):
            one = Edge(symbol(rule.right.node(name).domain), (name,))
            named += [] if one in named else [one]
    return (*named, made)


def _slots(hrg: HRG, rule: Rule, edges: Sequence[Edge], made: Edge) -> list[str]:
    """Symbols still to be observed, by node, and nonterminals (""), in the order in which the edges name them."""
    terminal = {label.name for label in hrg.labels if label.is_terminal}
    found: list[str] = []
    for edge in edges:
        symbols = _symbols(hrg, rule, edge)
        if edge is not made and edge.label not in terminal:
            found.append("")
        found += [name for name in symbols if name not in found]
    return found


def _symbols(hrg: HRG, rule: Rule, edge: Edge) -> list[str]:
    nodes = [node for node in rule.right.nodes if not isinstance(node.observed, tuple)]  # a constant is a symbol too
    own = {node.name for node in nodes if hrg.domain(node.domain).is_observed}
    return [name for name in dict.fromkeys(edge.nodes) if name in own]
