"""The conjunction of two grammars (Chiang and Riley 2020, section 4): derivations that both have, weights multiplied.

Two rules conjoin when

1. their external nodes have the same names and domains, in order;
2. they have as many nonterminal edges, and the first of one attaches to the same nodes as the first of the other, and
   so on, in the order in which they are written;
3. nodes of one name have one domain, and are not observed as different values;
4. the second rule names no template (`Rule.template`), or the first rule by its name.

The result has the nodes of both, the factors of both, and pairs of nonterminals. Two grammars conjoin when some pair of
their rules does; domains and factors of one name must be the same. What both papers ask, equal sets of nodes, is a
special case: here a node that only factors touch may be in one of the two alone.
"""

from __future__ import annotations

from functools import lru_cache

from rankfold.errors import DomainError
from rankfold.fgg.dependencies import derivable
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Domain, Edge, Fragment, Label, Node, Rule
from rankfold.fgg.rewrite.query import Query, QueryShape
from rankfold.fgg.rewrite.query_grammar import (
    observed_domain,
    query_grammar,
    query_structure,
    query_values,
    slots_of_rule,
)
from rankfold.fgg.rewrite.spans import SpanHRG, find_spans


def conjoin(first: Grammar, second: Grammar | Query) -> Grammar:
    """The grammar of the derivations both have; the module says when two grammars conjoin.

    A query takes the shape of `first` by itself. Where nothing is derived in common the result has no rules and its
    sum is 0. Structures are cached: another batch of sentences of a length costs no more than its words.
    """
    if isinstance(second, Query) and (found := _span_grammar(first, second)) is not None:
        return found
    other = query_grammar(first, second) if isinstance(second, Query) else second
    structure = _conjoin_structures(first.hrg.plain, other.hrg.plain)
    for name in first.factors.keys() & other.factors.keys():
        mine, its = (g.written.get(name, g.factors[name]) for g in (first, other))
        if mine is not its:
            raise DomainError(
                f"Both grammars have a factor {name!r}, with different tensors.\n"
                "  Rename one, or attach the same tensor to both; where both rules name it, it is multiplied twice."
            )
    for name in first.observed.keys() & other.observed.keys():
        if first.observed[name] is not other.observed[name]:
            raise DomainError(f"Both grammars have observed values {name!r}: a string is observed once.")
    kept = {label.name for label in structure.labels}
    factors = {name: factor for name, factor in {**first.factors, **other.factors}.items() if name in kept}
    written = {name: x for name, x in {**first.written, **other.written}.items() if name in kept}
    return Grammar(structure, factors, {**first.observed, **other.observed}, written)


def _span_grammar(g: Grammar, query: Query) -> Grammar | None:
    """The grammar conjoined with a plain sentence, as a pattern of spans; None where it has none."""
    hrg, shape = g.hrg.plain, query.shape
    if g.observed or query.words is None or any(hrg.known_size(domain.name) is None for domain in hrg.domains):
        return None
    structure = span_structure(hrg, shape)
    if structure is None:
        return None
    observed, evidence = query_values(g, query, structure.domain_read, structure.terminals.keys() - g.hrg._label.keys())
    factors = {name: x for name, x in g.factors.items() if name in structure.terminals} | evidence
    written = {name: x for name, x in g.written.items() if name in structure.terminals} | evidence
    return Grammar(structure, factors, observed, written)


@lru_cache(maxsize=256)
def span_structure(hrg: HRG, shape: QueryShape) -> SpanHRG | None:
    """A structure conjoined with a sentence, as a pattern of spans; None where it has none."""
    domain = observed_domain(hrg, shape.domain)
    slots = tuple(tuple((s.name, s.is_symbol) for s in slots_of_rule(hrg, rule, domain)) for rule in hrg.rules)
    spans = find_spans(hrg, shape, slots)
    if spans is None:
        return None
    return SpanHRG(hrg, shape, domain, spans, lambda: _conjoin_structures(hrg, query_structure(hrg, shape)))


@lru_cache(maxsize=256)
def _conjoin_structures(first: HRG, second: HRG) -> HRG:
    """The conjunction of two structures; linear in the pairs of rules that conjoin."""
    domains = _join_domains(first, second)
    terminals = _join_terminals(first, second)
    by_shape: dict[object, list[Rule]] = {}
    for rule in second.rules:
        by_shape.setdefault(_shape(second, rule), []).append(rule)
    rules: list[Rule] = []
    labels: dict[str, Label] = {}

    def pair(one: str, two: str) -> str:
        name = _pair_name(first.label(one), second.label(two))
        if name not in labels:
            labels[name] = Label(name, first.label(one).type, False, origin=one, span=second.label(two).span)
        return name

    start = pair(first.start, second.start)
    for one in first.rules:
        for two in by_shape.get(_shape(first, one), ()):
            if two.template not in (None, one.name):
                continue
            nodes = _join_nodes(one, two)
            if nodes is None:
                continue
            names = iter(
                pair(a.label, b.label)
                for a, b in zip(first.nonterminal_edges(one), second.nonterminal_edges(two), strict=True)
            )
            edges = [
                edge if first.label(edge.label).is_terminal else Edge(next(names), edge.nodes)
                for edge in one.right.edges
            ]
            fragment = Fragment(nodes, (*edges, *second.terminal_edges(two)), one.right.externals)
            name = two.name if two.template == one.name else f"{one.name}[{two.name}]"
            rules.append(Rule(name, pair(one.left, two.left), fragment, template=one.name))
    if not rules and second.rules:
        raise DomainError(
            f"The grammars do not conjoin: {_reason(first, second)}\n"
            "  Rules conjoin when external nodes and nonterminals' nodes have the same names and domains, in order."
        )
    return derivable(HRG(domains, (*terminals, *labels.values()), tuple(rules), start))


def _pair_name(one: Label, two: Label) -> str:
    """The name of a pair of nonterminals: the second's own if it was made for the first, else `X[Y]`."""
    return two.name if two.origin == one.name else f"{one.name}[{two.name}]"


def _shape(hrg: HRG, rule: Rule) -> object:
    """The key that two rules share if they conjoin: external nodes, nodes of nonterminals, and their domains."""

    def types(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return tuple((name, rule.right.node(name).domain) for name in names)

    return types(rule.right.externals), tuple(types(edge.nodes) for edge in hrg.nonterminal_edges(rule))


def _join_nodes(one: Rule, two: Rule) -> tuple[Node, ...] | None:
    """The nodes of both, or None where a node has two domains or two values."""
    nodes = {node.name: node for node in one.right.nodes}
    for node in two.right.nodes:
        other = nodes.get(node.name)
        if other is None or other.observed is None:
            if other is not None and other.domain != node.domain:
                return None
            nodes[node.name] = node
        elif other.domain != node.domain or node.observed not in (None, other.observed):
            return None
    return tuple(nodes.values())


def _join_domains(first: HRG, second: HRG) -> tuple[Domain, ...]:
    found = {domain.name: domain for domain in first.domains}
    for domain in second.domains:
        other = found.setdefault(domain.name, domain)
        if other.size is None and domain.size is not None:
            found[domain.name] = domain
        elif domain.parts != other.parts or (domain.size is not None and domain.size != other.size):
            raise DomainError(
                f"The grammars have different domains {domain.name!r}: of {first.known_size(domain.name)} and "
                f"{second.known_size(domain.name)} values.\n  Rename one of them."
            )
    return tuple(found.values())


def _join_terminals(first: HRG, second: HRG) -> tuple[Label, ...]:
    found = {label.name: label for label in first.labels if label.is_terminal}
    for label in second.labels:
        if label.is_terminal and found.setdefault(label.name, label) != label:
            raise DomainError(
                f"The grammars have different factors {label.name!r}: over ({', '.join(found[label.name].type)}) and "
                f"({', '.join(label.type)}).\n  Rename one of them."
            )
    return tuple(found.values())


def _reason(first: HRG, second: HRG) -> str:
    """Why the first two rules do not conjoin."""
    one, two = first.rules[0], second.rules[0]
    if two.template not in (None, one.name):
        return f"rule {two.name!r} was made for a rule {two.template!r}, which the first grammar has not got."
    if one.right.externals != two.right.externals:
        return (
            f"rule {one.name!r} has external nodes {one.right.externals}, rule {two.name!r} has {two.right.externals}."
        )
    a = [edge.nodes for edge in first.nonterminal_edges(one)]
    b = [edge.nodes for edge in second.nonterminal_edges(two)]
    if a != b:
        return f"the nonterminals of rule {one.name!r} attach to {a}, those of rule {two.name!r} to {b}."
    return f"nodes of one name in the rules {one.name!r} and {two.name!r} have different domains or values."
