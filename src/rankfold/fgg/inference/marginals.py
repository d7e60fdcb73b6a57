"""Posteriors by gradient: how often each nonterminal, rule, node and factor is used, over all derivations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, may_look
from rankfold.fgg.contraction import LOGS
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.inference.schedule import schedule
from rankfold.fgg.inference.solve import log_z_of, solve, weights_of

# The gradient of a weight near the smallest number of its dtype, 10^-45 or 10^-324, is beyond the largest, by less.
LESS = 2.0**60


class Marginals(NamedTuple):
    """Expected numbers of uses under the distribution of derivations.

    Where the grammar has a batch, all but `factors` lead with "b", one for each sentence. Counts of factors are summed
    over the sentences and have the factor's own shape: only a batched factor's lead with "b". After a query most are
    probabilities: a nonterminal of the query is used once or not at all.
    """

    log_z: Tensor  # "" or "b"   float64
    nonterminals: Mapping[str, Tensor]  # by label: over the values of its nodes
    rules: Mapping[str, Tensor]  # by rule: ""
    nodes: Mapping[tuple[str, str], Tensor]  # by rule and node, those asked for: over the node's values
    factors: Mapping[str, Tensor]  # by label: of every entry, in the factor's own shape (expected counts)


def marginals(g: Grammar, nodes: Iterable[tuple[str, str]] = ()) -> Marginals:
    """The posteriors of all nonterminals, rules and factors, and of these nodes, given as (rule, node).

        E[uses of X at x] = psi_X[x] d log Z / d psi_X[x]

    Cost: one sum and its gradient; with nodes a little more. Differentiable where a factor wants a gradient. All 0
    where nothing has weight. Source: Eisner 2016, inside-outside by back-propagation.
    """
    asked, g = tuple(nodes), g.plain()
    _expect_nodes(g, asked)
    plan = schedule(g.hrg)
    weights = weights_of(g, plan)
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in weights.values())
    if not tracked:
        weights = {label: x.detach().requires_grad_() for label, x in weights.items()}
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
            out = torch.where(x == 0, 0.0, use)
        return out if tracked else out.detach()

    def first(x: Tensor) -> Tensor:
        return x if g.batch is not None else x[0]

    def nonterminals() -> Iterator[tuple[str, Tensor]]:
        own = {label.name for label in g.labels}
        for table, names in run.schedule.tables.items():
            for block, begin in zip(run.blocks[table], run.begins[table], strict=True):
                every = uses(block, is_log=run.arithmetic is LOGS)
                yield from ((name, first(x)) for name, x in zip(names[begin:], every, strict=False) if name in own)

    def rules(node: str | None) -> Iterator[tuple[str, Tensor]]:
        for group in run.schedule.groups():
            tap = run.taps.get((id(group), node))
            if tap is not None:
                yield from ((rule, first(x)) for rule, x in zip(group.rules, uses(tap, is_log=True), strict=True))

    return Marginals(
        first(log_z if tracked else log_z.detach()),
        dict(nonterminals()),
        dict(rules(None)),
        {
            (rule, node): x
            for node in dict.fromkeys(node for _, node in asked)
            for rule, x in rules(node)
            if (rule, node) in asked
        },
        {label: uses(x, is_log=False) for label, x in weights.items() if label},
    )


def _expect_nodes(g: Grammar, asked: tuple[tuple[str, str], ...]) -> None:
    for rule, node in asked:
        nodes = {own.name: own for own in g.hrg.rule(rule).right.nodes}
        if node not in nodes:
            raise DomainError(f"Rule {rule!r} has no node {node!r}; it has {', '.join(nodes)}.")
        if nodes[node].observed is not None:
            raise DomainError(f"Node {node!r} of rule {rule!r} is observed: its value is known.")
