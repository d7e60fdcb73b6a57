"""Several factors of a fragment as one: `merge` (step 1 of section 4.1), and `recompose`, the way back from ranks.

    X(t) -> trans(t, u) emit(u, x) X(u)      X(t) -> trans[emit](t, u, x) X(u)

Queries read the symbols of a rule in the order in which its edges name them; rewriting keeps that order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from rankfold.errors import UnsupportedError
from rankfold.fgg.factors import Expression, Factor, derive
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG, is_inclusion
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Names, Rule
from rankfold.fgg.rewrite.conjoin import span_structure
from rankfold.fgg.rewrite.spans import SpanHRG


def merge(g: Grammar, rules: Collection[str] | None = None) -> Grammar:
    """The same grammar with one factor in place of all factors that share nodes, in these rules (None: in all).

    The merged factor is the product over all their nodes, `first[others]` by name, computed when it is needed,
    differentiable; a decomposition of it (`decompose`) replaces it before it ever is. Equal merged factors share a
    label. Raises where a merged factor would name the symbols of a string in another order. Cost, once a pass: the size
    of the merged tensor.
    """
    for name in rules or ():
        g.hrg.rule(name)
    derived = DerivedFactors(g, needs_tensors=False)

    def rewrite(rule: Rule) -> Rule:
        free = {node.name for node in rule.right.nodes if node.observed is None}
        return _join(derived, rule, free, set()) if rules is None or rule.name in rules else rule

    return derived.grammar(map(rewrite, g.rules))


def recompose(g: Grammar, what: str) -> Grammar:
    """The grammar without rank nodes; raises where nonterminals are over ranks: `what` would be of ranks there.

    A maximum or a count does not pass through the sum over ranks, so `best` and counting ask the grammar without them.
    Cost: the full tensors, once a pass. A grammar without ranks is returned as it is.
    """
    ranks = {domain.name for domain in g.domains if domain.is_rank}
    if not ranks:
        return g
    if isinstance(g.hrg, SpanHRG) and (found := _recompose_template(g, g.hrg, what)) is not None:
        return found
    for label in g.labels:
        if not label.is_terminal and ranks & set(label.type):
            raise UnsupportedError(
                f"This grammar is in rank space: {label.name!r} is over ranks, and {what} would be of ranks.\n"
                "  Ask the grammar it was made of."
            )
    derived = DerivedFactors(g)

    def rewrite(rule: Rule) -> Rule:
        own = {node.name for node in rule.right.nodes if node.domain in ranks}
        return _join(derived, rule, own, own)

    return derived.grammar(map(rewrite, g.rules))


def _recompose_template(g: Grammar, hrg: SpanHRG, what: str) -> Grammar | None:
    """The same of the grammar before its query, conjoined again."""
    ends = {name: x for name, x in g.written.items() if name not in hrg.first._label}
    own = {name: x for name, x in g.factors.items() if name not in ends}
    before = Grammar(hrg.first, own, {}, {name: x for name, x in g.written.items() if name in own})
    found = recompose(before, what)
    structure = span_structure(found.hrg, hrg.shape)
    if structure is None:
        return None
    factors = {name: x for name, x in found.factors.items() if name in structure.terminals}
    written = {name: x for name, x in found.written.items() if name in structure.terminals}
    return Grammar(structure, factors | ends, g.observed, written | ends)


class DerivedFactors:
    """The factors that rewriting derives from those of a grammar: equal expressions share a label.

    `taken` are all names that new ones must differ from. Without `needs_tensors` a factor derived of one without a
    tensor has none either.
    """

    def __init__(self, g: Grammar, *, needs_tensors: bool = True) -> None:
        self.g, self.needs_tensors = g, needs_tensors
        self.taken = Names(label.name for label in g.labels)
        self.labels: dict[str, Label] = {}
        self.factors: dict[str, Factor] = {}
        self._batched = {label.name for label in g.labels if label.is_batched}
        self._names: dict[Expression, str] = {}
        self._sources: dict[str, Factor | None] = {}

    def source(self, label: str) -> Factor | None:
        """A factor of the grammar; inclusions are made once."""
        if label not in self._sources:
            found = self.g.factors.get(label)
            if found is None and (self.needs_tensors or is_inclusion(label)):
                found = self.g.factor(label)
            self._sources[label] = found
        return self._sources[label]

    def derive(self, expression: Expression, domains: tuple[str, ...]) -> str:
        """The label of the factor that an expression gives, over these domains."""
        if expression not in self._names:
            name = self._names[expression] = self.taken.fresh(expression.name)
            found = {label: self.source(label) for label, _ in expression.inputs}
            sources = {label: source for label, source in found.items() if source is not None}
            is_batched = not self._batched.isdisjoint(found)
            self.labels[name] = Label(name, domains, is_terminal=True, is_batched=is_batched)
            if len(sources) == len(found):
                self.factors[name] = derive(expression, sources, self._batched)
        return self._names[expression]

    def grammar(self, rules: Iterable[Rule]) -> Grammar:
        """The grammar of these rules, with the labels and factors they use, old and new."""
        own = tuple(rules)
        used = {edge.label for rule in own for edge in rule.right.edges} | {rule.left for rule in own} | {self.g.start}
        labels = (label for label in (*self.g.labels, *self.labels.values()) if label.name in used)
        factors = {name: x for name, x in {**self.g.factors, **self.factors}.items() if name in used}
        return Grammar.of(self.g.domains, tuple(labels), own, self.g.start, factors, self.g.observed)


def _join(derived: DerivedFactors, rule: Rule, shared: set[str], summed: set[str]) -> Rule:
    """The rule with one factor, where the first was, for each set of factors joined by shared nodes; some summed."""
    hrg, edges = derived.g.hrg, rule.right.edges
    groups: list[list[int]] = []  # of places
    for k, edge in enumerate(edges):
        if hrg.label(edge.label).is_terminal:
            mine = shared.intersection(edge.nodes)
            near = [own for own in groups if any(not mine.isdisjoint(edges[j].nodes) for j in own)]
            groups = [own for own in groups if own not in near] + [sorted([k, *(j for own in near for j in own)])]
    made: dict[int, Edge] = {}
    gone: set[int] = set()
    for group in groups:
        if len(group) > 1 or not summed.isdisjoint(edges[group[0]].nodes):
            nodes = tuple(dict.fromkeys(name for k in group for name in edges[k].nodes if name not in summed))
            expression = Expression.of([(edges[k].label, edges[k].nodes) for k in group], nodes)
            label = derived.derive(expression, tuple(rule.right.node(name).domain for name in nodes))
            made[group[0]] = Edge(label, nodes)
            gone.update(group)
    if not made:
        return rule
    own = tuple(made.get(k, edge) for k, edge in enumerate(edges) if k in made or k not in gone)
    if reading_order(hrg, rule, own, made.values()) != reading_order(hrg, rule, edges):
        raise UnsupportedError(
            f"As one factor, those of rule {rule.name!r} would name its symbols in another order than before.\n"
            "  Write the factors that emit next to each other, or do this after the query."
        )
    inner = tuple(node for node in rule.right.nodes if node.name not in summed)
    return replace(rule, right=Fragment(inner, own, rule.right.externals))


def reading_order(hrg: HRG, rule: Rule, edges: Iterable[Edge], new: Iterable[Edge] = ()) -> list[str]:
    """Symbols still to be observed, by node, and nonterminals (""), in the order in which the edges name them.

    `new`: factors that the rule has not got itself; nonterminals may be under other labels.
    """
    factors = {edge.label for edge in (*hrg.terminal_edges(rule), *new)}
    found: list[str] = []
    for edge in edges:
        if edge.label not in factors:
            found.append("")
        found += [name for name in _symbols(hrg, rule, edge) if name not in found]
    return found


def put_in_order(
    hrg: HRG, rule: Rule, edges: Sequence[Edge], gone: Collection[Edge], made: Edge, symbol: Callable[[str], str]
) -> tuple[Edge, ...]:
    """A rule's edges with `made` in place of the removed ones, its symbols and nonterminals named as before.

    `edges` are those of the rule, nonterminals perhaps under other labels. Where no place of `made` keeps the order (it
    names symbols on both sides of something), each symbol of an edge that is gone is named before it, at its old place,
    by a factor of ones: `symbol` gives the label for a domain.
    """
    wanted = reading_order(hrg, rule, edges)
    others = [edge for edge in edges if edge not in gone]
    first = next((k for k, edge in enumerate(edges) if edge in gone), 0)
    for k in sorted(range(len(others) + 1), key=lambda k: abs(k - first)):
        found = (*others[:k], made, *others[k:])
        if reading_order(hrg, rule, found, [made]) == wanted:
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


def _symbols(hrg: HRG, rule: Rule, edge: Edge) -> list[str]:
    nodes = [node for node in rule.right.nodes if not isinstance(node.observed, tuple)]  # a constant is a symbol too
    own = {node.name for node in nodes if hrg.domain(node.domain).is_observed}
    return [name for name in dict.fromkeys(edge.nodes) if name in own]
