"""One rule by itself: its tensors at one sentence, some nodes held at a value, and their product summed over the rest.

For what goes through a grammar rule by rule: derivations and fixed points. Read next: `fgg/derivations.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rankfold.fgg.contraction import Arithmetic, contract, plan_contraction
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.operands import Operand, distinct


def observed_values(g: Grammar, rule: Rule, sentence: int) -> dict[str, int]:
    """The values of a rule's observed nodes."""
    found = {}
    for node in rule.right.nodes:
        if isinstance(node.observed, int):
            found[node.name] = node.observed
        elif node.observed is not None:
            table, position = node.observed
            own = g.observed[table]
            found[node.name] = int(own[sentence, position] if own.ndim == 2 else own[position])
    return found


def rule_sum(
    g: Grammar,
    rule: Rule,
    output: Sequence[str],
    values: Mapping[str, int],
    factors: Mapping[str, Tensor],
    children: Mapping[str, Tensor],
    sentence: int,
    arithmetic: Arithmetic,
) -> Tensor:  # over the nodes of the output
    """The product of a rule's factors and children, summed over all nodes but the output and those that `values` holds.

    `factors` and `children` are tensors in the arithmetic; children of one sentence, by label.
    """
    axis_of = {node.name: k for k, node in enumerate(rule.right.nodes)}
    operands: list[Operand] = []
    for edge in rule.right.edges:
        if edge.label in factors:
            x = factors[edge.label]
            x = x[min(sentence, len(x) - 1)] if g.label(edge.label).is_batched else x
        else:
            x = children[edge.label]
        free = [axis_of[name] for name in edge.nodes if name not in values]
        operands.append(distinct(x[tuple(values.get(name, slice(None)) for name in edge.nodes)], free))
    like = next(iter(factors.values()))
    touched = {axis for operand in operands for axis in operand.axes}
    for node in rule.right.nodes:
        if node.name not in values and axis_of[node.name] not in touched:
            operands.append(Operand(arithmetic.one(like, (g.size(node.domain),)), (axis_of[node.name],)))
    if not operands:
        return arithmetic.one(like, ())
    sizes = {axis: n for own in operands for axis, n in zip(own.axes, own.tensor.shape, strict=True)}
    plan = plan_contraction([own.axes for own in operands], tuple(axis_of[x] for x in output), sizes)
    return contract(plan, [operand.tensor for operand in operands], arithmetic)


def log_weight_at(
    g: Grammar, rule: Rule, values: Mapping[str, int], log_factors: Mapping[str, Tensor], sentence: int
) -> float:
    """The logarithm of the product of a rule's own factors at these values of its nodes."""
    total = torch.zeros((), dtype=torch.float64)
    for edge in g.hrg.terminal_edges(rule):
        x = log_factors[edge.label]
        x = x[min(sentence, len(x) - 1)] if g.label(edge.label).is_batched else x
        total = total + x[tuple(values[name] for name in edge.nodes)].cpu()
    return float(total)
