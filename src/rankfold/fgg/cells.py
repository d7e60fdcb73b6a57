"""Derived factors at the words of a query alone, where those are fewer than the vocabulary: what is made for a sentence
does not grow with words that it has not got.

Read next: `fgg/run.py`, which reads such a factor by cell in place of by word.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from rankfold.fgg.factors import Derived
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.schedule import Group, schedule


def cell_places(g: Grammar) -> dict[str, dict[int, str]]:
    """The derived factors of an acyclic grammar to be made at cells: the places of such nodes, with their table.

    A place is one if every use of the factor reads the same table there, and that has fewer cells than the node has
    values. Factors with a batch of their own are made whole.
    """
    found: dict[str, dict[int, str]] = {}
    for label, tables in _tables_read(g.hrg).items():
        own = g.label(label)
        if isinstance(g.factors.get(label), Derived) and not own.is_batched:
            few = {k: x for k, x in tables.items() if x in g.observed and num_cells(g, x) < g.size(own.type[k])}
            found |= {label: few} if few else {}
    return found


@lru_cache(maxsize=64)
def _tables_read(hrg: HRG) -> dict[str, dict[int, str]]:
    """For each factor the places at which all its uses read one table."""
    found: dict[str, dict[int, str]] = {}
    for group in schedule(hrg).groups():
        for label, nodes in group.factors:
            here = {k: table for k, name in enumerate(nodes) if (table := _table(group, name)) is not None}
            old = found.get(label, here)
            found[label] = {k: table for k, table in here.items() if old.get(k) == table}
    return {label: tables for label, tables in found.items() if tables}


def num_cells(g: Grammar, table: str) -> int:
    """The words of all sentences."""
    return g.observed[table].numel()


def words_at(g: Grammar) -> dict[str, dict[int, Tensor]]:
    """For each derived factor to be made at cells, by place, the words of all cells: one entry each, in order."""
    found = cell_places(g)
    return {label: {k: g.observed[x].reshape(-1) for k, x in places.items()} for label, places in found.items()}


def cell_numbers(table: Tensor) -> Tensor:
    """The table whose entries are the numbers of its cells."""
    return torch.arange(table.numel(), device=table.device).reshape(table.shape)


def _table(group: Group, node: str) -> str | None:
    """The table a node's value is read from in all rules of a group."""
    cell = group.observed.get(node, (None,))[0]
    return cell[0] if isinstance(cell, tuple) else None
