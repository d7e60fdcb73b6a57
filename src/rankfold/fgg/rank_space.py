"""The rank-space transformation (section 4): every state node is summed out once and for all, ranks take the states' place.

In a fragment of a B-FGG (Definition 6) a child's state meets the factor of its parent, its side; in the child's own rules it is the
external node and meets another, their head. The product of the two, summed over the state, is the same wherever the rules are used:

    X(n) -> u(n, q) v(l, q) w(r, q) X(l) X(r)        X[v](p)  -> h(p, q) X'(q)          h = v^T u
    X(n) -> e(n, x)                                  X[v](p)  -> j(p, x)                j = v^T e
                                                     X'(q)    -> X[v](q) X[w](q)

`X'` is the inside weight over ranks (alpha of section 4.2), `X[v]` the same as a child of side v (cached there as left and right alpha).
Read next: `fgg/cost.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankfold.errors import UnsupportedError
from rankfold.fgg.derived import Expression, derive
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Node, Rule
from rankfold.fgg.schedule import productive_rules


@dataclass(frozen=True)
class Side:
    """What a child's state meets above it: factors, the state's axis first; `through` are nonterminals it was passed on by."""

    expression: Expression
    domains: tuple[str, ...]  # of the axes that stay
    through: tuple[str, ...] = ()


def rank_space(g: Grammar) -> Grammar:
    """The same sums over ranks in place of states: every state node is marginalised, derived factors are made once and shared.

    For B-FGGs (Definition 6): every rule has exactly one external node, which touches no nonterminal; rules of nonterminals without nodes,
    as the start symbol, are exempt. Factors that tie two states to each other must be given by ranks first (`decompose`); a factor between
    a nonterminal's state and its only child's (a change of symbols, an inclusion in a union) is passed on. Works on a grammar before or
    after its query. Derivations stay one to one; what is best or counted would be ranks, so `best` and counting refuse.
    Cost: for every pair of a side and a head their product, a state times both their ranks; differentiable.
    Source: Yang, Liu, Tu 2022, section 4.
    """
    return _Builder(g).grammar()


class _Builder:
    def __init__(self, g: Grammar) -> None:
        self.g, self.hrg = g, g.hrg
        self.used = productive_rules(g.hrg)
        for rule in (rule for own in self.used.values() for rule in own):
            expect_b_fragment(g, rule)
        self.labels: dict[str, Label] = {}
        self.rules: list[Rule] = []
        self.names: dict[object, str] = {}
        self.taken = {label.name for label in g.labels}
        self.sources: dict[str, Factor] = {}
        self.batched = {label.name for label in g.labels if label.is_batched}
        self.factors: dict[str, Factor] = {}
        self.waiting: list[tuple[str, Side | Expression | None]] = []

    def grammar(self) -> Grammar:
        """Write the rules of everything the start symbol comes to need."""
        self.want(self.hrg.start, None)
        done = 0
        while done < len(self.waiting):
            name, what = self.waiting[done]
            done += 1
            if isinstance(what, Side):
                self.as_child(name, what)
            else:
                self.inner(name, what)
        ranks = {domain for label in self.labels.values() if not label.is_terminal for domain in label.type}
        domains = tuple(replace(d, is_rank=True) if d.name in ranks else d for d in self.g.domains)
        return Grammar.of(
            domains, tuple(self.labels.values()), tuple(self.rules), self.hrg.start, self.factors, self.g.observed
        )

    def want(self, name: str, what: Side | Expression | None, type_: tuple[str, ...] = ()) -> str:
        """The label of a nonterminal as a child of a side, over the ranks of a head (an expression), or as it is."""
        key = (name, what.expression if isinstance(what, Side) else what, isinstance(what, Side))
        if key not in self.names:
            old = self.hrg.label(name)
            suffix = "" if what is None else f"[{self.text(what.expression)}]" if isinstance(what, Side) else "'"
            new = name if what is None else self.fresh(f"{name}{suffix}")
            # The n-th head of a nonterminal is written with n primes, the same for all instances of the nonterminal.
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

    def inner(self, name: str, head: Expression | None) -> None:
        """The rules of a nonterminal over the ranks of one head, or of one without nodes."""
        label = self.names[name, head, False]
        for rule in self.used[name]:
            if head is None:
                self.write(rule, label, (), self.body(rule, ()))
            elif self.has_children(rule) and self.head(rule)[0] == head:
                rest = self.head(rule)[1]
                self.write(rule, label, rest, self.body(rule, self.heads(rule)), "'")

    def as_child(self, name: str, side: Side) -> None:
        """The rules of a nonterminal seen through a side: its heads' ranks, or what its leaves give."""
        label = self.names[name, side.expression, True]
        written: set[Expression] = set()
        for rule in self.used[name]:
            below = self.child_of_head(rule)
            if below is not None:
                self.pass_on(rule, side, label, below)
                continue
            head, rest = self.head(rule)
            nodes = self.side_nodes(rule, side)
            above = tuple(node.name for node in nodes)
            factor = self.derived(side, rule, above, rest)
            ranks = [name for name in rest if not self.is_observed(rule, name)]
            if len(ranks) == len(rest) == 1 and self.has_children(rule):
                if head in written:
                    continue
                written.add(head)
                rank = rule.right.node(rest[0])
                child = self.want(name, head, (rank.domain,))
                fragment = Fragment((*nodes, rank), (factor, Edge(child, rest)), above)
                self.add(Rule(self.fresh(f"{label}->{child}"), label, fragment, self.template(rule, label, name, child)))
            else:
                edges = self.body(rule, self.heads(rule), replaced=factor)
                self.write(rule, label, above, edges, label[len(name) :], nodes)

    def pass_on(self, rule: Rule, side: Side, label: str, below: Edge) -> None:
        """A rule whose external node is tied to its child's state: the child is seen through both factors."""
        origin = self.hrg.label(rule.left).origin or rule.left
        if origin in side.through:
            heads = ", ".join(repr(edge.label) for edge in self.heads(rule))
            raise UnsupportedError(
                f"Rule {rule.name!r} has no rank between the state of {rule.left!r} and that of {below.label!r}: {heads} ties them, "
                f"and {origin!r} comes back below.\n  Give that factor by its parts: decompose(g, {{label: (u, v)}})."
            )
        (state,) = rule.right.externals
        nodes = self.side_nodes(rule, side)
        above = tuple(node.name for node in nodes)
        (child_state,) = below.nodes
        inputs = [*self.side_inputs(side, state, above), *((edge.label, edge.nodes) for edge in self.heads(rule))]
        passed = Side(Expression.of(inputs, (child_state, *above)), side.domains, (*side.through, origin))
        child = self.want(below.label, passed, side.domains)
        edges = tuple(
            Edge(child, above) if edge is below else edge
            for edge in self.body(rule, self.heads(rule), kept=below)
        )
        self.write(rule, label, above, edges, label[len(rule.left) :], nodes)

    def derived(self, side: Side, rule: Rule, above: tuple[str, ...], rest: tuple[str, ...]) -> Edge:
        """The factor of a side and a rule's head, their state summed out: one edge."""
        (state,) = rule.right.externals
        inputs = [*self.side_inputs(side, state, above), *((edge.label, edge.nodes) for edge in self.heads(rule))]
        expression = Expression.of(inputs, (*above, *rest))
        if expression not in self.names:
            type_ = (*side.domains, *(rule.right.node(name).domain for name in rest))
            for label, _ in expression.inputs:
                self.source(label)
            factor, is_batched = derive(expression, self.sources, self.batched)
            label = self.fresh(expression.name)
            self.names[expression] = label
            self.labels[label] = Label(label, type_, is_terminal=True, is_batched=is_batched)
            self.factors[label] = factor
        return Edge(self.names[expression], (*above, *rest))

    def source(self, label: str) -> None:
        if label not in self.sources:
            found = self.g.factors.get(label)
            self.sources[label] = self.g.factor(label) if found is None else found

    def side_inputs(self, side: Side, state: str, above: tuple[str, ...]) -> list[tuple[str, tuple[object, ...]]]:
        """The factors of a side with the names of this rule's state and of the ranks above it."""
        outside = dict(zip(side.expression.output, (state, *above), strict=True))
        return [
            (label, tuple(outside.get(axis, ("summed", axis)) for axis in axes)) for label, axes in side.expression.inputs
        ]

    def side_nodes(self, rule: Rule, side: Side) -> tuple[Node, ...]:
        """Nodes for the ranks above, with names that the rule does not use."""
        taken = {node.name for node in rule.right.nodes}
        found: list[Node] = []
        for domain in side.domains:
            name, k = "p", 1
            while name in taken:
                name, k = f"p{k}", k + 1
            taken.add(name)
            found.append(Node(name, domain))
        return tuple(found)

    def heads(self, rule: Rule) -> tuple[Edge, ...]:
        """The factors that touch the external node."""
        return tuple(e for e in self.hrg.terminal_edges(rule) if set(e.nodes) & set(rule.right.externals))

    def head(self, rule: Rule) -> tuple[Expression, tuple[str, ...]]:
        """What the external node meets in a rule, state first, and the other nodes it ties it to."""
        rest = tuple(dict.fromkeys(x for e in self.heads(rule) for x in e.nodes if x not in rule.right.externals))
        return Expression.of([(e.label, e.nodes) for e in self.heads(rule)], (*rule.right.externals, *rest)), rest

    def states(self, rule: Rule) -> dict[str, Edge]:
        """The children's states, each with its nonterminal."""
        return {name: edge for edge in self.hrg.nonterminal_edges(rule) for name in edge.nodes}

    def has_children(self, rule: Rule) -> bool:
        return bool(self.hrg.nonterminal_edges(rule))

    def is_observed(self, rule: Rule, name: str) -> bool:
        node = rule.right.node(name)
        return node.observed is not None or self.hrg.domain(node.domain).is_observed

    def child_of_head(self, rule: Rule) -> Edge | None:
        """The child whose state is tied to the external node by a factor, if there is one."""
        states = self.states(rule)
        tied = [name for name in self.head(rule)[1] if name in states]
        if not tied:
            return None
        above = [e for e in self.hrg.terminal_edges(rule) if tied[0] in e.nodes]
        if len(tied) > 1 or len(self.head(rule)[1]) > 1 or any(e not in self.heads(rule) for e in above):
            labels = ", ".join(repr(e.label) for e in self.heads(rule))
            raise UnsupportedError(
                f"Rule {rule.name!r} ties its external node {rule.right.externals[0]!r} to the states {', '.join(tied)} of its children by "
                f"{labels}, without a rank between them.\n"
                "  Give that factor by its parts first: decompose(g, {label: (u, v, w)}); several factors on a state: merge(g) before."
            )
        return states[tied[0]]

    def body(
        self, rule: Rule, gone: tuple[Edge, ...], *, replaced: Edge | None = None, kept: Edge | None = None
    ) -> tuple[Edge, ...]:
        """The rule's edges: factors on states go to the children, which are seen through them; `replaced` stands for `gone`."""
        states = self.states(rule)
        found: list[Edge] = []
        for edge in rule.right.edges:
            if edge in gone:
                if replaced is not None:
                    found.append(replaced)
                    replaced = None
            elif edge is kept:
                found.append(edge)
            elif not self.hrg.label(edge.label).is_terminal:
                found.append(self.child(rule, edge))
            elif not set(edge.nodes) & set(states):
                self.source(edge.label)
                self.labels[edge.label] = self.hrg.label(edge.label)
                if edge.label in self.g.factors:
                    self.factors[edge.label] = self.g.factors[edge.label]
                found.append(edge)
        return tuple(found) if replaced is None else (replaced, *found)

    def child(self, rule: Rule, edge: Edge) -> Edge:
        """A child as it is seen through the factors on its state."""
        if not edge.nodes:
            return Edge(self.want(edge.label, None))
        (state,) = edge.nodes
        above = [e for e in self.hrg.terminal_edges(rule) if state in e.nodes]
        rest = tuple(dict.fromkeys(name for e in above for name in e.nodes if name != state))
        self.expect_side(rule, state, above, rest)
        domains = tuple(rule.right.node(name).domain for name in rest)
        side = Side(Expression.of([(e.label, e.nodes) for e in above], (state, *rest)), domains)
        return Edge(self.want(edge.label, side, domains), rest)

    def expect_side(self, rule: Rule, state: str, above: list[Edge], rest: tuple[str, ...]) -> None:
        labels = ", ".join(repr(e.label) for e in above) or "nothing"
        where = f"State {state!r} of rule {rule.name!r}"
        if sum(state in edge.nodes for edge in self.hrg.nonterminal_edges(rule)) > 1:
            raise UnsupportedError(f"{where} belongs to several nonterminals, so it has no ranks of its own on either side.")
        if not above:
            raise UnsupportedError(f"{where} touches no factor, so there is no rank to take its place.")
        others = [name for name in rest if name in self.states(rule)]
        if others:
            raise UnsupportedError(
                f"{where} is tied to the state {others[0]!r} by {labels}, without a rank between them.\n"
                "  Give that factor by its parts, one node each: decompose(g, {label: (u, v, w)})."
            )
        if len(rest) > 1 or any(self.is_observed(rule, name) for name in rest):
            raise UnsupportedError(
                f"{where} touches {labels}, which tie it to {len(rest)} other nodes ({', '.join(rest)}), but a state of a child meets one "
                "rank.\n  Merge the factors (merge(g)) and give the result by its parts: decompose(g, {label: (u, v, w)})."
            )

    def write(
        self,
        rule: Rule,
        left: str,
        externals: tuple[str, ...],
        edges: tuple[Edge, ...],
        suffix: str = "",
        extra: tuple[Node, ...] = (),
    ) -> None:
        """Add a rule of these edges, with the nodes they name; nodes that are left alone are kept, they are summed over."""
        states = {*rule.right.externals, *self.states(rule)}
        nodes = (*extra, *(node for node in rule.right.nodes if node.name not in states))
        template = None if rule.template is None else f"{rule.template}{suffix}"
        self.add(Rule(self.fresh(f"{rule.name}{suffix}"), left, Fragment(nodes, edges, externals), template))

    def template(self, rule: Rule, label: str, name: str, child: str) -> str | None:
        if rule.template is None:
            return None
        origin = self.hrg.label(name).origin or name
        return f"{origin}{label[len(name) :]}->{origin}{child[len(name) :]}"

    def add(self, rule: Rule) -> None:
        self.rules.append(rule)


def expect_b_fragment(g: Grammar, rule: Rule) -> None:
    """Raise unless a rule's right side is a B-hypergraph fragment (Definition 6), or its left side has no nodes."""
    externals = rule.right.externals
    if not externals:
        return
    refusal = f"Rule {rule.name!r} is not a rule of a B-FGG (Definition 6), so the grammar has no rank space: "
    if len(externals) > 1:
        raise UnsupportedError(
            f"{refusal}it has {len(externals)} external nodes ({', '.join(externals)}), and one is needed.\n"
            "  Join the nodes' domains to one, or sum the grammar as it is."
        )
    for edge in g.hrg.nonterminal_edges(rule):
        if externals[0] in edge.nodes:
            raise UnsupportedError(
                f"{refusal}its external node {externals[0]!r} touches the nonterminal {edge.label!r}.\n"
                "  Put a factor between the two nodes."
            )
