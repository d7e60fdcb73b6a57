"""A grammar conjoined with a sentence, as the pattern of its spans: whole sets of rules as numbers, no rule by itself.

Which widths a nonterminal derives does not depend on where its words begin. So the rules that one rule becomes for all
spans of a width are one grid, begins by splits. Rules and nonterminals are written out where someone asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Domain, Label, Rule
from rankfold.fgg.rewrite.query import QueryShape

Numbers = NDArray[np.int64]
Slots = tuple[tuple[str, bool], ...]  # name, and whether it is a symbol of the string


@dataclass(frozen=True)
class Grid:
    """The rules that one rule becomes for the spans of a width: "p" begins, "p s" states before each of its slots."""

    rule: Rule
    width: int
    begins: Numbers  # "p"
    states: tuple[Numbers, ...]  # of each slot the state before it, "p s", and at last the state behind them all


@dataclass(frozen=True)
class Spans:
    """All grids in an order in which children come first, and the items of each nonterminal, by width and begin."""

    grids: tuple[Grid, ...]
    items: Mapping[str, Numbers]  # "n n"   by begin and width the number of an item, -1 where there is none
    slots: Mapping[str, Slots]

    def count(self, name: str) -> int:
        """How many items a nonterminal has."""
        return int(self.items[name].max()) + 1


class SpanHRG(HRG):
    """The structure of a grammar and a sentence; `plain` has its rules one by one."""

    has_spans = True

    def __init__(self, first: HRG, shape: QueryShape, domain: str, spans: Spans, make: Callable[[], HRG]) -> None:
        used = {edge.label for grid in spans.grids for edge in grid.rule.right.edges}
        own: dict[str, Any] = {"first": first, "shape": shape, "domain_read": domain, "spans": spans, "_make": make}
        own["terminals"] = {x.name: x for x in first.labels if x.is_terminal and x.name in used}
        own["start"] = f"{first.start}[{shape.initial},{shape.finals[0]}]"
        for name, value in own.items():
            object.__setattr__(self, name, value)

    first: HRG
    shape: QueryShape
    domain_read: str
    spans: Spans
    terminals: Mapping[str, Label]
    _make: Callable[[], HRG]

    @cached_property
    def plain(self) -> HRG:
        """The same structure, its rules written out."""
        return self._make()

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains, in order."""
        return self.first.domains

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels, written out."""
        return self.plain.labels

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, written out."""
        return self.plain.rules

    @cached_property
    def _label(self) -> Mapping[str, Label]:
        return _Labels(self)

    @cached_property
    def cells(self) -> Mapping[str, tuple[int, frozenset[str]]]:
        """The table of words, and how many positions it must have."""
        return {self.domain_read: (len(self.shape.arcs), frozenset([self.domain_read]))}

    def with_domains(self, sizes: Mapping[str, int]) -> HRG:
        """The same structure, rules written out, with these sizes of domains."""
        return self.plain.with_domains(sizes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpanHRG):
            return NotImplemented
        return self.shape == other.shape and self.first == other.first

    def __hash__(self) -> int:
        return hash((self.first, self.shape))


class _Labels(dict[str, Label]):
    """The labels by name: factors at once, nonterminals where one is asked for."""

    def __init__(self, hrg: SpanHRG) -> None:
        super().__init__(hrg.terminals)
        self._hrg = hrg

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._hrg.plain._label

    def __missing__(self, name: str) -> Label:
        return self._hrg.plain._label[name]


def find_spans(hrg: HRG, shape: QueryShape, slots: tuple[Slots, ...]) -> Spans | None:
    """The pattern of a plain sentence; None where rules are to be written out one by one.

    That is where the query has brackets, missing words or several ends, where a rule has a constant word or more than
    two nonterminals, or where a nonterminal may derive nothing or itself over the same words. Cost: a few array
    operations for every rule and width.
    """
    n = len(shape.arcs)
    plain = tuple((k, k + 1, k) for k in range(n))
    if shape.brackets or shape.finals != (n,) or shape.initial:
        return None
    if tuple((arc.source, arc.target, -1 if arc.allowed else arc.seen) for arc in shape.arcs) != plain:
        return None
    slots_of = {rule.name: own for rule, own in zip(hrg.rules, slots, strict=True)}
    for rule in hrg.rules:
        own = slots_of[rule.name]
        if not own or sum(not is_symbol for _, is_symbol in own) > 2:
            return None
        if any(rule.right.node(name).observed is not None for name, is_symbol in own if is_symbol):
            return None
    order = _order(hrg, slots_of)
    if order is None:
        return None
    rules = [rule for name in order for rule in hrg.rules_of(name)]
    can = {name: np.zeros(n + 1, dtype=bool) for name in order}
    lefts: dict[tuple[str, int], Numbers] = {}  # widths of the first nonterminal, by rule and width
    for width in range(1, n + 1):
        for rule in rules:
            lefts[rule.name, width] = found = _lefts(slots_of[rule.name], width, can)
            can[rule.left][width] |= len(found) > 0
    need = {name: np.zeros((n + 1, n + 1), dtype=bool) for name in order}  # by begin and width
    need[hrg.start][0, n] = can[hrg.start][n]
    grids = []
    for width in range(n, 0, -1):
        for rule in reversed(rules):
            begins, left = np.flatnonzero(need[rule.left][:, width]), lefts[rule.name, width]
            if len(begins) and len(left):
                own = slots_of[rule.name]
                grids.append(Grid(rule, width, begins, _states(own, begins, left, width)))
                for k, (name, is_symbol) in enumerate(own):
                    if not is_symbol:
                        here, then = grids[-1].states[k : k + 2]
                        need[name][here, then - here] = True
    items = {}
    for name, here in need.items():
        number = np.cumsum(here.T).reshape(here.T.shape).T - 1  # width after width, begins in order
        items[name] = np.where(here, number, -1)
    return Spans(tuple(reversed(grids)), items, slots_of) if grids else None


def _lefts(slots: Slots, width: int, can: Mapping[str, NDArray[np.bool_]]) -> Numbers:  # "s"
    """The widths that a rule's first nonterminal may have in a span; one entry, 0, for a rule without any."""
    names = [name for name, is_symbol in slots if not is_symbol]
    rest = width - (len(slots) - len(names))
    if not names:
        return np.zeros(int(rest == 0), dtype=np.int64)
    if rest < len(names):
        return np.zeros(0, dtype=np.int64)
    if len(names) == 1:
        return np.array([rest] if can[names[0]][rest] else [], dtype=np.int64)
    return np.flatnonzero(can[names[0]][1:rest] & can[names[1]][rest - 1 : 0 : -1]) + 1


def _states(slots: Slots, begins: Numbers, left: Numbers, width: int) -> tuple[Numbers, ...]:  # "p s" each
    rest = width - sum(is_symbol for _, is_symbol in slots)
    state = begins[:, None] + np.zeros_like(left)
    found, widths = [state], [left, rest - left]
    for _, is_symbol in slots:
        state = state + (1 if is_symbol else widths.pop(0))
        found.append(state)
    return tuple(found)


def _order(hrg: HRG, slots_of: Mapping[str, Slots]) -> list[str] | None:
    """The nonterminals, each after those that may derive all its words; None where one may derive itself so."""
    below = {label.name: set[str]() for label in hrg.labels if not label.is_terminal}
    for rule in hrg.rules:
        if len(slots_of[rule.name]) == 1:
            below[rule.left] |= {name for name, is_symbol in slots_of[rule.name] if not is_symbol}
    found: list[str] = []
    while len(found) < len(below):
        ready = [name for name in below if name not in found and below[name] <= set(found)]
        if not ready:
            return None
        found += ready
    return found
