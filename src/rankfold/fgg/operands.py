"""The tensors that a group of rules multiplies: its factors, sliced where they see observed values, and what its
children gave.

Axes are numbers: 0 the parents, 1 their rules (splits), 2 the sentences of a batch, 3 + k the k-th node of the
fragment. Read next: `fgg/run.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from rankfold.fgg.contraction import Axes
from rankfold.fgg.schedule import Group

PARENT, SPLIT, SENTENCE, FIRST_NODE = 0, 1, 2, 3
T = TypeVar("T")


class Operand(NamedTuple):
    """A tensor and the numbers of its axes."""

    tensor: Tensor
    axes: Axes


def node_axes(group: Group) -> dict[str, int]:
    """The axis of every node."""
    return kept(group, "axes", lambda: {node.name: FIRST_NODE + k for k, node in enumerate(group.nodes)})


def distinct(x: Tensor, axes: Sequence[int]) -> Operand:
    """The diagonal where an edge attaches to one node more than once."""
    if len(set(axes)) == len(axes):
        return Operand(x, tuple(axes))
    left = list(axes)
    for axis in dict.fromkeys(axes):
        while left.count(axis) > 1:
            i = left.index(axis)
            j = left.index(axis, i + 1)
            x = torch.diagonal(x, dim1=i, dim2=j)
            left = [*(a for k, a in enumerate(left) if k not in (i, j)), axis]
    return Operand(x, tuple(left))


def by_rule(
    x: Tensor, group: Group, rest: Sequence[int]
) -> Operand:  # "p*s ..." -> "p s ...", or "p ..." for one split
    """What has an entry for every rule of the group, as parents and splits."""
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
        used = sorted({bisect_right(begins, row) - 1 for row in rows})
        starts, total = {}, 0
        for block in used:
            starts[block] = total - begins[block]
            total += len(blocks[block])
        found = [row + starts[bisect_right(begins, row) - 1] for row in rows]
        if found == list(range(total)):
            return Gather(tuple(used), None)
        if found == list(range(found[0], found[0] + len(found))):
            return Gather(tuple(used), slice(found[0], found[0] + len(found)))
        return Gather(tuple(used), torch.tensor(found, device=device))

    return kept(group, ("gather", k, device), make)


def kept(group: Group, key: object, make: Callable[[], T]) -> T:
    """What `make` gave the first time: it depends on the structure alone."""
    if key not in group.made:
        group.made[key] = make()
    return cast(T, group.made[key])


def values_of(
    group: Group, node: str, observed: Mapping[str, Tensor], device: torch.device
) -> Tensor:  # "p*s" or "p*s b"
    """The observed value of a node in every rule of the group."""
    cells = group.observed[node]
    first = cells[0]
    if isinstance(first, int):
        constant: Tensor = kept(group, ("constant", node, device), lambda: torch.tensor(cells, device=device))
        return constant
    positions: Tensor = kept(
        group,
        ("cells", node, device),
        lambda: torch.tensor([cast(tuple[str, int], c)[1] for c in cells], device=device),
    )
    table = observed[first[0]]
    return table.index_select(-1, positions).mT if table.ndim == 2 else table.index_select(-1, positions)


def sliced(
    x: Tensor, group: Group, nodes: Sequence[str], values: Mapping[str, Tensor], *, is_batched: bool
) -> Operand:  # x "[b] ..."
    """A factor as one operand of the group: taken at its observed nodes, one slice for every rule (and sentence)."""
    axis_of = node_axes(group)
    lead = int(is_batched)
    seen = [k for k, node in enumerate(nodes) if node in values]
    if not seen:
        return distinct(x, [*[SENTENCE] * lead, *(axis_of[node] for node in nodes)])
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
        index = flat_index if flat_index.ndim == 2 else flat_index[:, None]
        index = index + num * torch.arange(len(table), device=index.device)
        table, flat_index = table.flatten(0, 1), index
    picked = table.index_select(0, flat_index.reshape(-1)).reshape(*flat_index.shape, *inner)
    axes = [SENTENCE] * (flat_index.ndim - 1) + [axis_of[nodes[k]] for k in rest]
    found = by_rule(picked, group, axes)
    return distinct(*found)
