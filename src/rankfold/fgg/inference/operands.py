"""The tensors that rules multiply: factors, sliced at observed values, and the tables of their children.

Axes are numbers: 0 the parents, 1 their rules (splits), 2 the sentences of a batch, 3 + k the k-th node of the
fragment. At the end one rule by itself, for questions that go through a grammar rule by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from rankfold.fgg.contraction import Axes, Semiring, contract, plan_contraction
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Rule
from rankfold.fgg.inference.schedule import Group

PARENT, SPLIT, SENTENCE, FIRST_NODE = 0, 1, 2, 3
T = TypeVar("T")


class Operand(NamedTuple):
    """A tensor and the numbers of its axes."""

    tensor: Tensor
    axes: Axes


def node_axes(group: Group) -> dict[str, int]:
    """The axis of every node."""
    return memoise(group, "axes", lambda: {node.name: FIRST_NODE + k for k, node in enumerate(group.nodes)})


def distinct_axes(axes: Sequence[int]) -> tuple[list[tuple[int, int]], Axes]:
    """Where an edge attaches to one node more than once: the pairs of which to take diagonals, and the axes left."""
    left, pairs = list(axes), []
    for axis in dict.fromkeys(axes):
        while left.count(axis) > 1:
            i = left.index(axis)
            j = left.index(axis, i + 1)
            pairs.append((i, j))
            left = [*(a for k, a in enumerate(left) if k not in (i, j)), axis]
    return pairs, tuple(left)


def diagonal(x: Tensor, axes: Sequence[int]) -> Operand:
    """The operand of these axes, of which none comes twice."""
    if len(set(axes)) == len(axes):
        return Operand(x, tuple(axes))
    pairs, left = distinct_axes(axes)
    for i, j in pairs:
        x = torch.diagonal(x, dim1=i, dim2=j)
    return Operand(x, left)


def by_rule(
    x: Tensor, group: Group, rest: Sequence[int]
) -> Operand:  # "p*s ..." -> "p s ...", or "p ..." for one split
    """A tensor with an entry for every rule of the group, as parents and splits."""
    parents = len(group.rows)
    if group.splits == 1:
        return Operand(x, (PARENT, *rest))
    return Operand(x.reshape(parents, group.splits, *x.shape[1:]), (PARENT, SPLIT, *rest))


class Gather(NamedTuple):
    """Which blocks of a table hold the rows a group reads, and where in them; None: just as they lie."""

    blocks: tuple[int, ...]
    index_of: Tensor | slice | None


def gather(group: Group, k: int, begins: Sequence[int], blocks: Sequence[Tensor], device: torch.device) -> Gather:
    """How to find the k-th child of every rule in the blocks of its table, which begin at these rows."""

    def make() -> Gather:
        rows = group.children[k][2]
        sizes = np.diff([*begins, begins[-1] + blocks[-1].shape[0]])
        block_of = np.searchsorted(begins, rows, side="right") - 1
        is_used = np.bincount(block_of, minlength=len(sizes)) > 0
        used, starts = tuple(np.flatnonzero(is_used).tolist()), np.cumsum(sizes * is_used) - sizes
        found = rows - np.array(begins)[block_of] + starts[block_of]
        first = int(found[0])
        if not np.array_equal(found, np.arange(first, first + len(found))):
            return Gather(used, torch.from_numpy(found).to(device))
        return Gather(used, None if len(found) == sizes[is_used].sum() else slice(first, first + len(found)))

    return memoise(group, ("gather", k, device), make)


def memoise(group: Group, key: object, make: Callable[[], T]) -> T:
    """The result of `make`, computed once: it depends on the structure alone."""
    if key not in group.made:
        group.made[key] = make()
    return cast(T, group.made[key])


def sentences_of(group: Group, device: torch.device) -> Tensor:  # "p*s"
    """Of packed sentences that of every rule of the group."""
    assert group.sentences is not None
    own = np.repeat(group.sentences, group.splits)
    return memoise(group, ("sentences", device), lambda: torch.from_numpy(own).to(device))


def values_of(
    group: Group, node: str, observed: Mapping[str, Tensor], device: torch.device
) -> Tensor:  # "p*s" or "p*s b"
    """The observed value of a node in every rule of the group."""
    cells = group.observed[node]
    first = cells[0]
    if isinstance(first, int):
        constant: Tensor = memoise(group, ("constant", node, device), lambda: torch.tensor(cells, device=device))
        return constant
    positions: Tensor = memoise(
        group,
        ("cells", node, device),
        lambda: torch.tensor([cast(tuple[str, int], c)[1] for c in cells], device=device),
    )
    table = observed[first[0]]
    if group.sentences is not None and table.ndim == 2:
        return table[sentences_of(group, device), positions]
    return table.index_select(-1, positions).mT if table.ndim == 2 else table.index_select(-1, positions)


def slice_observed(
    x: Tensor, group: Group, nodes: Sequence[str], values: Mapping[str, Tensor], *, is_batched: bool
) -> Operand:  # x "[b] ..."
    """A factor as one operand of the group: taken at its observed nodes, one slice for every rule (and sentence)."""
    axis_of = node_axes(group)
    lead = int(is_batched)
    seen = [k for k, node in enumerate(nodes) if node in values]
    if not seen:
        return diagonal(x, [*[SENTENCE] * lead, *(axis_of[node] for node in nodes)])
    rest = [k for k in range(len(nodes)) if k not in seen]
    flat_index: Tensor | None = None
    for k in seen:
        own = values[nodes[k]]
        if flat_index is None:
            flat_index = own
        else:
            if own.ndim != flat_index.ndim:
                own, flat_index = (y if y.ndim == 2 else y[:, None] for y in (own, flat_index))
            flat_index = flat_index * x.shape[lead + k] + own
    assert flat_index is not None
    moved = x.permute([*range(lead), *(lead + k for k in seen), *(lead + k for k in rest)])
    inner = moved.shape[lead + len(seen) :]
    table = moved.reshape(*moved.shape[:lead], -1, *inner)
    if is_batched:
        num = table.shape[1]
        if group.sentences is not None:
            flat_index = flat_index + num * sentences_of(group, x.device)
        else:
            index = flat_index if flat_index.ndim == 2 else flat_index[:, None]
            flat_index = index + num * torch.arange(len(table), device=index.device)
        table = table.flatten(0, 1)
    picked = table.index_select(0, flat_index.reshape(-1)).reshape(*flat_index.shape, *inner)
    axes = [SENTENCE] * (flat_index.ndim - 1) + [axis_of[nodes[k]] for k in rest]
    found = by_rule(picked, group, axes)
    return diagonal(*found)


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
    arithmetic: Semiring,
) -> Tensor:  # over the nodes of the output
    """The product of a rule's factors and children, summed over all nodes but the output and the nodes in `values`.

    `factors` and `children` are tensors in the arithmetic; children of one sentence, by label.
    """
    axis_of = {node.name: k for k, node in enumerate(rule.right.nodes)}
    operands: list[Operand] = []
    for edge in rule.right.edges:
        x = _at_sentence(g, edge.label, factors, sentence) if edge.label in factors else children[edge.label]
        free = [axis_of[name] for name in edge.nodes if name not in values]
        operands.append(diagonal(x[tuple(values.get(name, slice(None)) for name in edge.nodes)], free))
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


def _at_sentence(g: Grammar, label: str, factors: Mapping[str, Tensor], sentence: int) -> Tensor:
    x = factors[label]
    return x[min(sentence, len(x) - 1)] if g.label(label).is_batched else x
