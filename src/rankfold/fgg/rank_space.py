"""The rank-space transformation (section 4): state nodes are summed out once and for all, ranks take their place.

In a fragment of a B-FGG (Definition 6) a child's state meets factors of its parent, its side; in the child's own rules
it is the external node and meets others, their head. The product of a side and a head, summed over the state, is the
same wherever the rules are used:

    X(n) -> u(n, q) v(l, q) w(r, q) X(l) X(r)        X[v](p) -> h(p, q) X'(q)          h = v^T u
    X(n) -> e(n, x)                                  X[v](p) -> j(p, x)                j = v^T e
                                                     X'(q)   -> X[v](q) X[w](q)

`X'` is the inside weight over ranks (alpha of section 4.2), `X[v]` the same seen as a child of side v, which the paper
caches as left and right alpha. Read next: `fgg/cost.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rankfold.errors import UnsupportedError
from rankfold.fgg.decompose import fresh_node
from rankfold.fgg.dependencies import productive_rules
from rankfold.fgg.derived import Expression, derive
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Node, Rule
from rankfold.fgg.state_nodes import attached, child_of_head, expect_b_fragment, head, heads, is_observed, side, states
from rankfold.fgg.symbol_order import in_order


def rank_space(g: Grammar) -> Grammar:
    """The same sums over ranks in place of states: state nodes are marginalised, what is derived is made once.

    For B-FGGs (Definition 6): every rule has exactly one external node, which touches no nonterminal; the start symbol,
    which has none, is exempt. Factors that tie two states to each other must be given by ranks first (`decompose`); a
    factor between a nonterminal's state and its only child's (a change of symbols, a part of a union) is passed on.
    Works on a grammar before or after its query: symbols keep their order. Derivations stay one to one; what is best
    or counted would be ranks, so `best` and counting refuse. Cost: for each pair of a side and a head their product, a
    state times both their ranks; differentiable. Source: Yang, Liu, Tu 2022, section 4.
    """
    return _Builder(g).grammar()


@dataclass(frozen=True)
class _Side:
    """What a child's state meets above it, state first; `through` are the nonterminals it was passed on by."""

    expression: Expression
    domains: tuple[str, ...]  # of the axes that stay
    through: tuple[str, ...] = ()


class _Builder:
    def __init__(self, g: Grammar) -> None:
        self.g, self.hrg = g, g.hrg
        self.used = productive_rules(g.hrg)
        for rule in (rule for own in self.used.values() for rule in own):
            expect_b_fragment(g.hrg, rule)
        self.labels: dict[str, Label] = {}
        self.rules: list[Rule] = []
        self.names: dict[object, str] = {}
        self.taken = {label.name for label in g.labels}
        self.batched = {label.name for label in g.labels if label.is_batched}
        self.factors: dict[str, Factor] = {}
        self.sources: dict[str, Factor] = {}
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

    def fresh(self, name: str) -> str:
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def text(self, expression: Expression) -> str:
        """A side's name, the same for equal sides and for no others."""
        key = ("side", expression)
        if key not in self.names:
            name = ",".join(label.replace("[", "(").replace("]", ")") for label, _ in expression.inputs)
            while name in self.names:
                name += "'"
            self.names[key] = self.names[name] = name
        return self.names[key]

    def inner(self, name: str, of: Expression | None) -> None:
        """The rules of a nonterminal over the ranks of one head, or of the start symbol."""
        label = self.names[name, of, False]
        for rule in self.used[name]:
            if of is None:
                self.write(rule, label, (), self.body(rule, ()))
            elif self.has_ranks(rule) and head(self.hrg, rule)[0] == of:
                self.write(rule, label, head(self.hrg, rule)[1], self.body(rule, heads(self.hrg, rule)), "'")

    def has_ranks(self, rule: Rule) -> bool:
        """Whether a rule has children below one rank, which then has a nonterminal of its own."""
        rest = head(self.hrg, rule)[1]
        return len(rest) == 1 and not is_observed(self.hrg, rule, rest[0]) and bool(self.hrg.nonterminal_edges(rule))

    def as_child(self, name: str, seen: _Side) -> None:
        """The rules of a nonterminal seen through a side: its heads' ranks, or what its leaves give."""
        label = self.names[name, seen.expression, True]
        written: set[Expression] = set()
        for rule in self.used[name]:
            below = child_of_head(self.hrg, rule)
            nodes = self.nodes_above(rule, seen)
            above = tuple(node.name for node in nodes)
            if below is not None:
                self.pass_on(rule, seen, label, below, nodes)
                continue
            own, rest = head(self.hrg, rule)
            if not self.has_ranks(rule):
                made = self.derived(seen, rule, above, rest)
                gone = heads(self.hrg, rule)
                edges = in_order(self.hrg, rule, self.body(rule, gone, in_place=True), gone, made, self.symbol)
                self.write(rule, label, above, edges, label[len(name) :], nodes)
            elif own not in written:
                written.add(own)
                rank = rule.right.node(rest[0])
                child = self.want(name, own, (rank.domain,))
                edges = (self.derived(seen, rule, above, rest), Edge(child, rest))
                origin = self.hrg.label(name).origin or name
                template = None if rule.template is None else f"{origin}{label[len(name) :]}->{child[len(name) :]}"
                fragment = Fragment((*nodes, rank), edges, above)
                self.rules.append(Rule(self.fresh(f"{label}->{child}"), label, fragment, template))

    def pass_on(self, rule: Rule, seen: _Side, label: str, below: Edge, nodes: tuple[Node, ...]) -> None:
        """A rule whose external node is tied to its child's state: the child is seen through both factors."""
        origin = self.hrg.label(rule.left).origin or rule.left
        own = heads(self.hrg, rule)
        if origin in seen.through:
            raise UnsupportedError(
                f"Rule {rule.name!r} has no rank between the state of {rule.left!r} and that of {below.label!r}, and "
                f"{origin!r} comes back below: {', '.join(repr(edge.label) for edge in own)} ties state to state.\n"
                "  Give that factor by its parts: decompose(g, {label: (u, v)})."
            )
        above = tuple(node.name for node in nodes)
        inputs = [*self.inputs_of(seen, rule, above), *((edge.label, edge.nodes) for edge in own)]
        passed = _Side(Expression.of(inputs, (*below.nodes, *above)), seen.domains, (*seen.through, origin))
        child = Edge(self.want(below.label, passed, seen.domains), above)
        edges = tuple(child if edge is below else edge for edge in self.body(rule, own, kept=below))
        self.write(rule, label, above, edges, label[len(rule.left) :], nodes)

    def derived(self, seen: _Side, rule: Rule, above: tuple[str, ...], rest: tuple[str, ...]) -> Edge:
        """The factor of a side and a rule's head, their state summed out: one edge."""
        own = ((edge.label, edge.nodes) for edge in heads(self.hrg, rule))
        expression = Expression.of([*self.inputs_of(seen, rule, above), *own], (*above, *rest))
        if expression not in self.names:
            type_ = (*seen.domains, *(rule.right.node(name).domain for name in rest))
            sources = {label: self.source(label) for label, _ in expression.inputs}
            factor, is_batched = derive(expression, sources, self.batched)
            label = self.names[expression] = self.fresh(expression.name)
            self.labels[label] = Label(label, type_, is_terminal=True, is_batched=is_batched)
            self.factors[label] = factor
        return Edge(self.names[expression], (*above, *rest))

    def source(self, label: str) -> Factor:
        if label not in self.sources:
            found = self.g.factors.get(label)
            self.sources[label] = self.g.factor(label) if found is None else found
        return self.sources[label]

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
        self, rule: Rule, gone: tuple[Edge, ...], *, kept: Edge | None = None, in_place: bool = False
    ) -> tuple[Edge, ...]:
        """The rule's edges, without what is gone or with it: children seen through the factors on their states."""
        sides = [edge for state in states(self.hrg, rule) for edge in attached(self.hrg, rule, state)[0]]
        found: list[Edge] = []
        for edge in rule.right.edges:
            if edge is kept or (edge in gone and in_place):
                found.append(edge)
            elif not self.hrg.label(edge.label).is_terminal:
                found.append(self.child(rule, edge))
            elif edge not in sides and edge not in gone:
                self.labels[edge.label] = self.hrg.label(edge.label)
                self.factors[edge.label] = self.source(edge.label)
                found.append(edge)
        return tuple(found)

    def symbol(self, domain: str) -> str:
        """The label of a factor of ones, which names a symbol where a query is to read it."""
        if ("symbol", domain) not in self.names:
            label = self.names["symbol", domain] = self.fresh(f"symbol[{domain}]")
            self.labels[label] = Label(label, (domain,), is_terminal=True)
            self.factors[label] = torch.ones(self.g.size(domain), dtype=self.g.dtype, device=self.g.device)
        return self.names["symbol", domain]

    def child(self, rule: Rule, edge: Edge) -> Edge:
        """A child as it is seen through the factors on its state."""
        (state,) = edge.nodes
        expression, rest = side(self.hrg, rule, state)
        domains = tuple(rule.right.node(name).domain for name in rest)
        return Edge(self.want(edge.label, _Side(expression, domains), domains), rest)

    def write(
        self,
        rule: Rule,
        left: str,
        externals: tuple[str, ...],
        edges: tuple[Edge, ...],
        suffix: str = "",
        above: tuple[Node, ...] = (),
    ) -> None:
        """Add a rule of these edges, with the nodes they name; nodes that no edge touched before are summed still."""
        own = {*rule.right.externals, *states(self.hrg, rule)}
        gone = own.union(*(edge.nodes for state in own for edge in attached(self.hrg, rule, state)[0]))
        named = {name for edge in edges for name in edge.nodes}
        nodes = (*above, *(x for x in rule.right.nodes if x.name in named or x.name not in gone))
        template = None if rule.template is None else f"{rule.template}{suffix}"
        self.rules.append(Rule(self.fresh(f"{rule.name}{suffix}"), left, Fragment(nodes, edges, externals), template))
