"""Posteriors by gradient: how often each nonterminal, rule, node and factor is used, over all derivations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, may_look
from rankfold.fgg.contraction import LOGS
from rankfold.fgg.dependencies import cycle, productive_rules
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Names, Rule
from rankfold.fgg.inference.fixed_point import fixed_point
from rankfold.fgg.inference.schedule import Schedule, schedule
from rankfold.fgg.inference.solve import log_z_of, solve, tensors_of, weights_of
from rankfold.fgg.rewrite.query import end_label
from rankfold.numerics.log_space import log_weights

# The gradient of a weight near the smallest number of its dtype, 10^-45 or 10^-324, is beyond the largest, by less.
LESS = 2.0**60


class Marginals(NamedTuple):
    """Expected numbers of uses under the distribution of derivations.

    Where the grammar has a batch, all but `factors` lead with "b", one for each sentence. Counts of factors are summed
    over the sentences and have the factor's own shape: only a batched factor's lead with "b". After a query most are
    probabilities: a nonterminal of the query is used once or not at all. `spans["X"][i, j]` is that of an X over the
    words i to j - 1 (in general between these states of the query).
    """

    log_z: Tensor  # "" or "b"   float64
    nonterminals: Mapping[str, Tensor]  # by label: over the values of its nodes
    rules: Mapping[str, Tensor]  # by rule: ""
    nodes: Mapping[tuple[str, str], Tensor]  # by rule and node, those asked for: over the node's values
    factors: Mapping[str, Tensor]  # by label: of every entry, in the factor's own shape (expected counts)
    spans: Mapping[str, Tensor]  # after a query, by nonterminal of the grammar: "t+1 t+1 ...", begin, end, values


def marginals(g: Grammar, nodes: Iterable[tuple[str, str]] = ()) -> Marginals:
    """The posteriors of all nonterminals, rules and factors, and of these nodes, given as (rule, node).

        E[uses of X at x] = psi_X[x] d log Z / d psi_X[x]

    Cost: one sum and its gradient; with nodes a little more. Differentiable where a factor wants a gradient. All 0
    where nothing has weight. Of a recursive grammar uses may be more than one, and are not differentiable
    again. Source: Eisner 2016, inside-outside by back-propagation.
    """
    asked = tuple(nodes)
    if asked:
        g = g.plain()
        _expect_nodes(g, asked)
    if cycle(g.hrg):
        return _of_fixed_point(g, asked)
    plan = schedule(g.hrg)
    weights = weights_of(g, plan)
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in weights.values())
    weights = {k: x if tracked and x.requires_grad else x.detach().requires_grad_() for k, x in weights.items()}
    with torch.enable_grad():
        run = solve(g, (("*", None), *asked), weights=weights)
        log_z = log_z_of(run)
        blocks = [block for own in run.blocks.values() for block in own]
        sources = [*blocks, *run.taps.values(), *weights.values()]
        wanted = [x for x in sources if x.requires_grad]
        total = torch.where(log_z > float("-inf"), log_z, 0.0).sum()
        found: tuple[Tensor, ...] = ()
        smaller: tuple[Tensor, ...] = ()

        def gradients(by: float) -> tuple[Tensor, ...]:
            return torch.autograd.grad(
                total, wanted, torch.full_like(total, by), retain_graph=True, create_graph=tracked, allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip

        if total.requires_grad:
            found = gradients(1.0)
            if may_look(total) and not all(bool(torch.isfinite(x).all()) for x in found):
                smaller = gradients(1 / LESS)
        grads = {id(x): grad for x, grad in zip(wanted, found, strict=False)}
        less = {id(x): grad for x, grad in zip(wanted, smaller, strict=False)}

    def uses(x: Tensor, *, is_log: bool) -> Tensor:
        grad = grads.get(id(x))
        if grad is None or is_log:
            out = torch.zeros_like(x) if grad is None else grad
        else:
            # A weight of 0 is never used, however large its gradient; nor is a gradient that overflows the use.
            use = grad * x if id(x) not in less else torch.where(grad.isfinite(), grad * x, less[id(x)] * x * LESS)
            out = torch.where((x == 0) & ~use.isfinite(), 0.0, use)
        return out if tracked else out.detach()

    def first(x: Tensor) -> Tensor:
        return x if g.batch is not None else x[0]

    is_log = run.arithmetic is LOGS
    plan = run.schedule
    of_rows = {
        table: [uses(block, is_log=is_log) for block in run.blocks[table]]
        for table in run.blocks
        if not (table in plan.spans and plan.spans[table].is_added)
    }

    def nonterminals() -> Iterator[tuple[str, Tensor]]:
        for table, blocks in of_rows.items():
            names = plan.names(table)
            for block, begin in zip(blocks, run.begins[table], strict=True):
                yield from zip(names[begin:], map(first, block), strict=False)

    def rules(node: str | None) -> Iterator[tuple[str, Tensor]]:
        for group in plan.groups():
            tap = run.taps.get((id(group), node))
            if tap is not None:
                yield from zip(group.names(), map(first, uses(tap, is_log=True)), strict=True)

    own = None if plan.spans else {label.name for label in g.labels}
    return Marginals(
        first(log_z if tracked else log_z.detach()),
        _Named(lambda: {name: x for name, x in nonterminals() if own is None or name in own}),
        _Named(lambda: dict(rules(None))),
        {
            (rule, node): x
            for node in dict.fromkeys(node for _, node in asked)
            for rule, x in rules(node)
            if (rule, node) in asked
        },
        {label: uses(x, is_log=False) for label, x in weights.items() if label},
        _Named(lambda: _by_span(g, _parts(g, plan, {table: torch.cat(x) for table, x in of_rows.items()}))),
    )


class _Named(Mapping[str, Tensor]):
    """Tensors by name, named when the first is asked for: a long sentence has tens of thousands of rules."""

    def __init__(self, make: Callable[[], dict[str, Tensor]]) -> None:
        self._make = make

    @cached_property
    def _found(self) -> dict[str, Tensor]:
        return self._make()

    def __getitem__(self, name: str) -> Tensor:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return repr(self._found)


_Part = tuple[str, Tensor, list[tuple[int, int]]]  # a nonterminal of the grammar, its uses "row b ...", their spans


def _open_start(g: Grammar, origin: str, uses: Tensor) -> Iterator[_Part]:  # uses "b"
    """The start symbol of sentences of unequal lengths: a span that ends where each sentence does."""
    for domain in g.domains:
        ends = g.factors.get(end_label(domain.name).name)
        if isinstance(ends, Tensor):
            here = (uses[:, None] * ends).mT
            yield origin, here, [(0, j) for j in range(len(here))]


def _parts(g: Grammar, plan: Schedule, rows: Mapping[str, Tensor]) -> Iterator[_Part]:  # rows "row b ..."
    """The uses of the nonterminals of a query, table by table."""
    for table, x in rows.items():
        if table in plan.spans:
            own = plan.spans[table]
            for row in x[[k for k, width in enumerate(own.widths.tolist()) if not width]]:
                yield from _open_start(g, own.label, row)
            pairs = list(zip(own.begins.tolist(), (own.begins + own.widths).tolist(), strict=True))
            chosen = [k for k, width in enumerate(own.widths.tolist()) if width]
            parts = {own.label: [(k, pairs[k]) for k in chosen]} if chosen else {}
        else:
            parts = {}
            for k, name in enumerate(plan.tables[table]):
                label = plan.hrg.label(name)
                if label.span is None and label.origin is not None and name == plan.start:
                    yield from _open_start(g, label.origin, x[k])
                if label.span is not None:
                    parts.setdefault(label.origin or name, []).append((k, label.span))
        for origin, found in parts.items():
            index = torch.tensor([k for k, _ in found], device=x.device)
            yield origin, x[index], [span for _, span in found]


def _by_span(g: Grammar, parts: Iterable[_Part]) -> dict[str, Tensor]:
    """The uses of the nonterminals of a query by the states between which they derive words."""
    found: dict[str, list[tuple[Tensor, list[tuple[int, int]]]]] = {}
    for name, x, spans in parts:
        found.setdefault(name, []).append((x, spans))
    size = 1 + max((max(pair) for own in found.values() for _, pairs in own for pair in pairs), default=-1)
    out: dict[str, Tensor] = {}
    for name, own in found.items():
        first = own[0][0]
        total = first.new_zeros((size * size, *first.shape[1:]))
        for x, pairs in own:
            total = total.index_add(0, torch.tensor([i * size + j for i, j in pairs], device=x.device), x)
        by_sentence = total.transpose(0, 1).reshape(-1, size, size, *first.shape[2:])
        out[name] = by_sentence if g.batch is not None else by_sentence[0]
    return out


def _expect_nodes(g: Grammar, asked: tuple[tuple[str, str], ...]) -> None:
    for rule, node in asked:
        nodes = {own.name: own for own in g.hrg.rule(rule).right.nodes}
        if node not in nodes:
            raise DomainError(f"Rule {rule!r} has no node {node!r}; it has {', '.join(nodes)}.")
        if nodes[node].observed is not None:
            raise DomainError(f"Node {node!r} of rule {rule!r} is observed: its value is known.")


def _of_fixed_point(g: Grammar, asked: tuple[tuple[str, str], ...]) -> Marginals:
    """The posteriors of a recursive grammar: every use is multiplied by a factor of ones, whose gradients they are."""
    taps = _Taps(g, asked)
    tapped = taps.grammar()
    labels = dict.fromkeys(edge.label for rule in tapped.rules for edge in tapped.hrg.terminal_edges(rule))
    with torch.enable_grad():
        weights = {name: x.detach().double().requires_grad_() for name, x in tensors_of(tapped, labels).items()}
        value, scale = fixed_point(tapped, weights)
        log_z = (log_weights(value) + scale).detach()
        total = torch.where(value > 0, log_weights(value), 0.0).sum()
        grads = torch.autograd.grad(total, list(weights.values()), allow_unused=True, materialize_grads=True)
    uses = {
        name: torch.where(x == 0, 0.0, x * grad).detach().to(g.dtype)
        for (name, x), grad in zip(weights.items(), grads, strict=True)
    }

    def first(x: Tensor) -> Tensor:
        return x if g.batch is not None else x[0]

    spans: list[_Part] = [
        (label.origin or name, uses[tap][None], [label.span])
        for name, tap in taps.nonterminals.items()
        if (label := g.label(name)).span is not None
    ]
    start = g.label(g.start)
    if start.span is None and start.origin is not None:
        spans += _open_start(g, start.origin, uses[taps.nonterminals[g.start]])
    return Marginals(
        first(log_z),
        {name: first(uses[tap]) for name, tap in taps.nonterminals.items()},
        {name: first(uses[tap]) for name, tap in taps.rules.items()},
        {pair: first(uses[tap]) for pair, tap in taps.nodes.items()},
        {name: x for name, x in uses.items() if name in g.hrg._label},
        _by_span(g, spans),
    )


class _Taps:
    """A grammar with a factor of ones at every nonterminal, rule and node whose uses are counted."""

    def __init__(self, g: Grammar, asked: tuple[tuple[str, str], ...]) -> None:
        self.g = g
        self.taken = Names(label.name for label in g.labels)
        self.labels: list[Label] = []
        self.nonterminals: dict[str, str] = {}
        self.rules: dict[str, str] = {}
        self.nodes: dict[tuple[str, str], str] = {}
        own = productive_rules(g.hrg)
        self.nonterminals = {name: self.tap(f"use[{name}]", g.label(name).type) for name in own}
        self.tapped: list[Rule] = []
        for rule in (rule for rules in own.values() for rule in rules):
            self.rules[rule.name] = self.tap(f"use[{rule.name}]", ())
            edges = [Edge(self.rules[rule.name]), Edge(self.nonterminals[rule.left], rule.right.externals)]
            for name, node in asked:
                if name == rule.name:
                    self.nodes[name, node] = self.tap(f"use[{name},{node}]", (rule.right.node(node).domain,))
                    edges.append(Edge(self.nodes[name, node], (node,)))
            right = Fragment(rule.right.nodes, (*rule.right.edges, *edges), rule.right.externals)
            self.tapped.append(Rule(rule.name, rule.left, right, rule.template))

    def tap(self, name: str, type_: tuple[str, ...]) -> str:
        """A new factor with a table for each sentence."""
        self.labels.append(Label(self.taken.fresh(name), type_, is_terminal=True, is_batched=True))
        return self.labels[-1].name

    def grammar(self) -> Grammar:
        """The grammar with the factors of ones."""
        g = self.g
        ones = {
            label.name: torch.ones((g.batch or 1, *map(g.size, label.type)), dtype=g.dtype, device=g.device)
            for label in self.labels
        }
        labels = (*g.labels, *self.labels)
        return Grammar.of(g.domains, labels, tuple(self.tapped), g.start, {**g.factors, **ones}, g.observed)
