"""The rank-space transformation (section 4): state nodes are summed out once and for all, ranks take their place.

In a fragment of a B-FGG (Definition 6) a child's state meets factors of its parent, its side; in the child's own rules
it is the external node and meets others, their head. The product of a side and a head, summed over the state, is the
same wherever the rules are used:

    X(n) -> u(n, q) v(l, q) w(r, q) X(l) X(r)        X[v](p) -> h(p, q) X'(q)          h = v^T u
    X(n) -> e(n, x)                                  X[v](p) -> j(p, x)                j = v^T e
                                                     X'(q)   -> X[v](q) X[w](q)

`X'` is the inside weight over ranks (alpha of section 4.2), `X[v]` the same seen as a child of side v, which the paper
caches as left and right alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rankfold.errors import UnsupportedError
from rankfold.fgg.dependencies import productive_rules
from rankfold.fgg.factors import Expression
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG, is_inclusion
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Names, Node, Rule
from rankfold.fgg.rewrite.decompose import fresh_node
from rankfold.fgg.rewrite.merge import DerivedFactors, put_in_order

DECOMPOSE = "decompose(g, {label: (u, v, w)})"


def rank_space(g: Grammar) -> Grammar:
    """The same sums over ranks in place of states: state nodes are summed out, derived factors made once.

    For B-FGGs (Definition 6): every rule has exactly one external node, which touches no nonterminal; the start symbol,
    which has none, is exempt. Factors that tie two states to each other must be given by ranks first (`decompose`); a
    factor between a nonterminal's state and its only child's (a change of symbols, a part of a union) is passed on.
    Works on a grammar before or after its query: symbols keep their order. Derivations stay one to one, but
    maxima and counts would be over ranks, so `best` and counting refuse. Cost: for each pair of a side and a head their
    product, a state times both their ranks; differentiable. Source: Yang, Liu, Tu 2022, section 4.
    """
    return _Builder(g).grammar()


@dataclass(frozen=True)
class _Side:
    """The factors on a child's state above it, state first; `through` are the nonterminals it was passed on by."""

    expression: Expression
    domains: tuple[str, ...]  # of the axes that stay
    through: tuple[str, ...] = ()


class _Builder:
    def __init__(self, g: Grammar) -> None:
        self.g, self.hrg = g, g.hrg
        rules = productive_rules(g.hrg)
        for rule in (rule for own in rules.values() for rule in own):
            reason = _why_not_b_fragment(g.hrg, rule)
            if reason is not None:
                raise UnsupportedError(
                    f"The grammar is no B-FGG (Definition 6), so it has no rank space: {reason}.\n"
                    "  Join the domains of several nodes to one, put a factor between node and nonterminal, or sum it "
                    "as it is."
                )
        self.used = {name: [_StateNodes(g.hrg, rule) for rule in own] for name, own in rules.items()}
        self.made = DerivedFactors(g)
        self.labels, self.factors, self.fresh = self.made.labels, self.made.factors, self.made.taken.fresh
        self.rules: list[Rule] = []
        self.names: dict[object, str] = {}
        self.side_names = Names()
        self.waiting: list[tuple[str, _Side | Expression | None]] = []

    def grammar(self) -> Grammar:
        """Write the rules of everything the start symbol comes to need."""
        self.want(self.hrg.start, None)
        for name, what in self.waiting:  # grows on the way
            if isinstance(what, _Side):
                self.as_child(name, what)
            else:
                self.inner(name, what)
        ranks = {domain for label in self.labels.values() if not label.is_terminal for domain in label.type}
        domains = tuple(replace(d, is_rank=True) if d.name in ranks else d for d in self.g.domains)
        labels = tuple(self.labels.values())
        return Grammar.of(domains, labels, tuple(self.rules), self.hrg.start, self.factors, self.g.observed)

    def want(self, name: str, what: _Side | Expression | None, type_: tuple[str, ...] = ()) -> str:
        """The label of a nonterminal as a child of a side, over the ranks of a head (an expression), or as it is."""
        key = (name, what.expression if isinstance(what, _Side) else what, isinstance(what, _Side))
        if key not in self.names:
            old = self.hrg.label(name)
            suffix = f"[{self.text(what.expression)}]" if isinstance(what, _Side) else "'"
            new = name if what is None else self.fresh(f"{name}{suffix}")
            origin = None if old.origin is None else f"{old.origin}{new[len(name) :]}"
            self.names[key] = new
            self.labels[new] = Label(new, type_, is_terminal=False, origin=origin, span=old.span)
            self.waiting.append((name, what))
        return self.names[key]

    def text(self, expression: Expression) -> str:
        """A side's name, the same for equal sides and for no others."""
        key = ("side", expression)
        if key not in self.names:
            name = ",".join(label.replace("[", "(").replace("]", ")") for label, _ in expression.inputs)
            self.names[key] = self.side_names.fresh(name)
        return self.names[key]

    def inner(self, name: str, of: Expression | None) -> None:
        """The rules of a nonterminal over the ranks of one head, or of the start symbol."""
        label = self.names[name, of, False]
        for own in self.used[name]:
            if of is None:
                self.write(own, label, (), self.body(own, ()))
            elif own.has_ranks and own.head == of:
                self.write(own, label, own.rest, self.body(own, own.heads), "'")

    def as_child(self, name: str, seen: _Side) -> None:
        """The rules of a nonterminal seen through a side: over its heads' ranks, or at its leaves."""
        label = self.names[name, seen.expression, True]
        written: set[Expression] = set()
        for own in self.used[name]:
            rule = own.rule
            below = own.child_of_head()
            nodes = self.nodes_above(rule, seen)
            above = tuple(node.name for node in nodes)
            if below is not None:
                self.pass_on(own, seen, label, below, nodes)
            elif not own.has_ranks:
                made = self.derive(seen, own, above)
                edges = self.body(own, own.heads, in_place=True)
                edges = put_in_order(self.hrg, rule, edges, own.heads, made, self.symbol)
                self.write(own, label, above, edges, label[len(name) :], nodes)
            elif own.head not in written:
                written.add(own.head)
                rank = rule.right.node(own.rest[0])
                child = self.want(name, own.head, (rank.domain,))
                edges = (self.derive(seen, own, above), Edge(child, own.rest))
                origin = self.hrg.label(name).origin or name
                template = None if rule.template is None else f"{origin}{label[len(name) :]}->{child[len(name) :]}"
                fragment = Fragment((*nodes, rank), edges, above)
                self.rules.append(Rule(self.fresh(f"{label}->{child}"), label, fragment, template))

    def pass_on(self, own: _StateNodes, seen: _Side, label: str, below: Edge, nodes: tuple[Node, ...]) -> None:
        """A rule whose external node is tied to its child's state: the child is seen through both factors."""
        rule = own.rule
        origin = self.hrg.label(rule.left).origin or rule.left
        if origin in seen.through:
            raise UnsupportedError(
                f"Rule {rule.name!r} has no rank between the state of {rule.left!r} and that of {below.label!r}, and "
                f"{origin!r} comes back below: {_names(own.heads)} ties state to state.\n"
                "  Give that factor by its parts: decompose(g, {label: (u, v)})."
            )
        above = tuple(node.name for node in nodes)
        inputs = [*self.inputs_of(seen, rule, above), *((edge.label, edge.nodes) for edge in own.heads)]
        passed = _Side(Expression.of(inputs, (*below.nodes, *above)), seen.domains, (*seen.through, origin))
        child = Edge(self.want(below.label, passed, seen.domains), above)
        edges = tuple(child if edge is below else edge for edge in self.body(own, own.heads, kept=below))
        self.write(own, label, above, edges, label[len(rule.left) :], nodes)

    def derive(self, seen: _Side, own: _StateNodes, above: tuple[str, ...]) -> Edge:
        """The factor of a side and a rule's head, their state summed out: one edge."""
        heads = ((edge.label, edge.nodes) for edge in own.heads)
        expression = Expression.of([*self.inputs_of(seen, own.rule, above), *heads], (*above, *own.rest))
        domains = (*seen.domains, *(own.rule.right.node(name).domain for name in own.rest))
        return Edge(self.made.derive(expression, domains), (*above, *own.rest))

    def inputs_of(self, seen: _Side, rule: Rule, above: tuple[str, ...]) -> list[tuple[str, tuple[object, ...]]]:
        """The factors of a side with the names of this rule's state and of the ranks above it."""
        outside = dict(zip(seen.expression.output, (*rule.right.externals, *above), strict=True))
        return [
            (label, tuple(outside.get(axis, ("summed", axis)) for axis in axes))
            for label, axes in seen.expression.inputs
        ]

    def nodes_above(self, rule: Rule, seen: _Side) -> tuple[Node, ...]:
        """Nodes for the ranks above, with names that the rule does not use."""
        found: tuple[Node, ...] = ()
        for domain in seen.domains:
            found = (*found, Node(fresh_node("p", (*rule.right.nodes, *found)), domain))
        return found

    def body(
        self, own: _StateNodes, gone: tuple[Edge, ...], *, kept: Edge | None = None, in_place: bool = False
    ) -> tuple[Edge, ...]:
        """The rule's edges, with or without the removed ones; children seen through the factors on their states."""
        sides = [edge for state in own.children for edge in own.factors_at(state)[0]]
        found: list[Edge] = []
        for edge in own.rule.right.edges:
            if edge is kept or (edge in gone and in_place):
                found.append(edge)
            elif not self.hrg.label(edge.label).is_terminal:
                found.append(self.child(own, edge))
            elif edge not in sides and edge not in gone:
                self.labels[edge.label] = self.hrg.label(edge.label)
                source = self.made.source(edge.label)
                assert source is not None
                self.factors[edge.label] = source
                found.append(edge)
        return tuple(found)

    def symbol(self, domain: str) -> str:
        """The label of a factor of ones, which names a symbol where a query is to read it."""
        if ("symbol", domain) not in self.names:
            label = self.names["symbol", domain] = self.fresh(f"symbol[{domain}]")
            self.labels[label] = Label(label, (domain,), is_terminal=True)
            self.factors[label] = torch.ones(self.g.size(domain), dtype=self.g.dtype, device=self.g.device)
        return self.names["symbol", domain]

    def child(self, own: _StateNodes, edge: Edge) -> Edge:
        """A child as it is seen through the factors on its state."""
        (state,) = edge.nodes
        expression, rest = own.side(state)
        domains = tuple(own.rule.right.node(name).domain for name in rest)
        return Edge(self.want(edge.label, _Side(expression, domains), domains), rest)

    def write(
        self,
        own: _StateNodes,
        left: str,
        externals: tuple[str, ...],
        edges: tuple[Edge, ...],
        suffix: str = "",
        above: tuple[Node, ...] = (),
    ) -> None:
        """Add a rule of these edges, with the nodes they name; nodes that no edge touched before are summed still."""
        rule = own.rule
        gone = own.every.union(*(edge.nodes for state in own.every for edge in own.factors_at(state)[0]))
        named = {name for edge in edges for name in edge.nodes}
        nodes = (*above, *(x for x in rule.right.nodes if x.name in named or x.name not in gone))
        template = None if rule.template is None else f"{rule.template}{suffix}"
        self.rules.append(Rule(self.fresh(f"{rule.name}{suffix}"), left, Fragment(nodes, edges, externals), template))


class _StateNodes:
    """The state nodes of a rule, its external node and the nodes of its nonterminals, and the factors they meet.

    Ranks are all other nodes that are not observed. The external node meets the head, with `rest` the other nodes it is
    tied to; the children's states meet sides.
    """

    def __init__(self, hrg: HRG, rule: Rule) -> None:
        self.hrg, self.rule = hrg, rule
        self.children = {name: edge for edge in hrg.nonterminal_edges(rule) for name in edge.nodes}
        self.every = {*rule.right.externals, *self.children}
        self.heads: tuple[Edge, ...] = ()
        self.rest: tuple[str, ...] = ()
        if rule.right.externals:
            self.heads, self.rest = self.factors_at(rule.right.externals[0])
        self.head = _product(self.heads, (*rule.right.externals, *self.rest))
        # Whether there are children below one rank, which then has a nonterminal of its own.
        self.has_ranks = len(self.rest) == 1 and not self.is_symbol(self.rest[0]) and bool(self.children)

    def factors_at(self, state: str) -> tuple[tuple[Edge, ...], tuple[str, ...]]:
        """The factors on a state, and the other nodes they tie it to.

        A node that is the state itself as a value of a union, or of one of its parts, is not another; nor is one that
        nothing else touches, which is summed with the state, unless it is a symbol.
        """
        own, terminal = [state], self.hrg.terminal_edges(self.rule)
        for name in own:
            for edge in terminal:
                if name in edge.nodes and is_inclusion(edge.label):
                    own += [x for x in edge.nodes if x not in own and x not in self.every]
        edges = tuple(edge for edge in terminal if not set(edge.nodes).isdisjoint(own))
        elsewhere = self.every.union(*(edge.nodes for edge in self.rule.right.edges if edge not in edges))
        others = dict.fromkeys(x for edge in edges for x in edge.nodes if x not in own)
        return edges, tuple(x for x in others if x in elsewhere or self.is_symbol(x))

    def is_symbol(self, name: str) -> bool:
        """Whether a node is a symbol of a string, fixed or to be fixed by a query."""
        node = self.rule.right.node(name)
        return node.observed is not None or self.hrg.domain(node.domain).is_observed

    def child_of_head(self) -> Edge | None:
        """The only child whose state a factor ties to the external node; raises where more is tied to it."""
        tied = [name for name in self.rest if name in self.children]
        if not tied:
            return None
        if len(self.rest) > 1 or any(edge not in self.heads for edge in self.factors_at(tied[0])[0]):
            raise UnsupportedError(
                f"Rule {self.rule.name!r} ties its external node {self.rule.right.externals[0]!r} to the states "
                f"{', '.join(tied)} of its children by {_names(self.heads)}, without a rank between them.\n"
                f"  Give that factor by its parts first: {DECOMPOSE}; several factors on one state: merge(g) before."
            )
        return self.children[tied[0]]

    def side(self, state: str) -> tuple[Expression, tuple[str, ...]]:
        """The product that a child's state meets, state first, and the one rank it ties it to; raises if more."""
        above, rest = self.factors_at(state)
        where = f"State {state!r} of rule {self.rule.name!r}"
        if sum(state in edge.nodes for edge in self.hrg.nonterminal_edges(self.rule)) > 1:
            raise UnsupportedError(f"{where} belongs to several nonterminals, so neither has ranks of its own there.")
        if not above:
            raise UnsupportedError(f"{where} touches no factor, so there is no rank to take its place.")
        others = [name for name in rest if name in self.children]
        if others:
            raise UnsupportedError(
                f"{where} is tied to the state {others[0]!r} by {_names(above)}, without a rank between them.\n"
                f"  Give that factor by its parts, one node each: {DECOMPOSE}."
            )
        if len(rest) > 1 or any(map(self.is_symbol, rest)):
            raise UnsupportedError(
                f"{where} touches {_names(above)}, which tie it to {', '.join(rest)}, but a child's state meets one "
                f"rank.\n  Merge the factors (merge(g)) and give the result by its parts: {DECOMPOSE}."
            )
        return _product(above, (state, *rest)), rest


def _product(edges: tuple[Edge, ...], output: tuple[str, ...]) -> Expression:
    return Expression.of([(edge.label, edge.nodes) for edge in edges], output)


def _names(edges: tuple[Edge, ...]) -> str:
    return ", ".join(repr(edge.label) for edge in edges)


def _why_not_b_fragment(hrg: HRG, rule: Rule) -> str | None:
    """Why the right side of a rule is no B-hypergraph fragment, or None if it is one (Definition 6).

    It has exactly one external node, and no nonterminal edge touches it. Rules of the start symbol, which have no
    external node, are exempt.
    """
    externals = rule.right.externals
    if rule.left == hrg.start:
        return None
    if len(externals) != 1:
        return f"rule {rule.name!r} has {len(externals)} external nodes ({', '.join(externals) or 'none'}), not one"
    for edge in hrg.nonterminal_edges(rule):
        if externals[0] in edge.nodes:
            return (
                f"the external node {externals[0]!r} of rule {rule.name!r} is touched by the nonterminal {edge.label!r}"
            )
    return None


def why_not_b_fgg(grammar: Grammar) -> str | None:
    """Why a grammar is no B-FGG, naming the rule, or None if it is one: all its right sides are B-fragments."""
    reasons = (_why_not_b_fragment(grammar.hrg, rule) for rule in grammar.rules)
    return next((reason for reason in reasons if reason is not None), None)
