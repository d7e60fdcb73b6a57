"""A grammar conjoined with a sentence, as the pattern of its spans: whole sets of rules as numbers, no rule by itself.

The rules that one rule becomes for all spans of a width are a few grids, begins by splits: one, unless brackets leave
some begins fewer splits. Rules and nonterminals are written out where someone asks for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Domain, Label, Rule
from rankfold.fgg.rewrite.query import QueryShape, end_domain, end_label

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Slots = tuple[tuple[str, bool], ...]  # name, and whether it is a symbol of the string


@dataclass(frozen=True)
class Grid:
    """Uses of one rule: "p" parents, which begin there, with "s" uses each, "p s" states before each of its slots.

    `width` is that of the parents' spans; 0: the one parent is the start symbol of a batch, whatever its end.
    """

    rule: Rule
    width: int
    begins: Numbers  # "p"
    states: tuple[Numbers, ...]  # of each slot the state before it, "p s", and at last the state behind them all

    def names(self) -> Iterator[str]:
        """The names of the rules, written out."""
        for states in zip(*(own.reshape(-1).tolist() for own in self.states), strict=True):
            yield self._name(states)

    def name(self, use: int) -> str:
        """The name of one of them."""
        return self._name([int(own.flat[use]) for own in self.states])

    def _name(self, states: Sequence[int]) -> str:
        return f"{self.rule.name}[{','.join(map(str, states))}]{'' if self.width else '[0,*]'}"


@dataclass(frozen=True)
class Spans:
    """All grids in an order in which children come first, and the items of each nonterminal, by width and begin."""

    grids: tuple[Grid, ...]
    items: Mapping[str, Numbers]  # "n n"   by begin and width the number of an item, -1 where there is none
    slots: Mapping[str, Slots]

    def count(self, name: str) -> int:
        """How many items a nonterminal has."""
        return int(self.items[name].max()) + 1

    def begins_and_widths(self, name: str) -> tuple[Numbers, Numbers]:  # "k" twice
        """The spans of a nonterminal's items, in their order."""
        widths, begins = np.nonzero(self.items[name].T >= 0)
        return begins, widths


class SpanHRG(HRG):
    """The structure of a grammar and a sentence, or sentences; `plain` has its rules one by one."""

    has_spans = True

    def __init__(self, first: HRG, shape: QueryShape, domain: str, spans: Spans, make: Callable[[], HRG]) -> None:
        used = {edge.label for grid in spans.grids for edge in grid.rule.right.edges}
        own: dict[str, Any] = {"first": first, "shape": shape, "domain_read": domain, "spans": spans, "_make": make}
        own["terminals"] = {x.name: x for x in first.labels if x.is_terminal and x.name in used}
        if shape.is_ragged:
            own["terminals"] |= {end_label(domain).name: end_label(domain)}
        own["start"] = f"{first.start}[{shape.initial},{'*' if shape.is_ragged else shape.finals[0]}]"
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

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """The domains, in order."""
        return (*self.first.domains, *end_domain(self.domain_read, self.shape))

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
    """The pattern of a sentence; None where rules are to be written out one by one.

    That is where the query misses words, names labels of brackets or is no sentence, where a rule has a constant word
    or more than two nonterminals, or where a nonterminal may derive nothing or itself over the same words. Cost: a few
    array operations for every rule and width.
    """
    n = len(shape.arcs)
    plain = tuple((k, k + 1, k) for k in range(n))
    if any(len(bracket) > 2 for bracket in shape.brackets) or shape.initial:
        return None
    if shape.finals != (tuple(range(n + 1)) if shape.is_ragged else (n,)):
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
    can = {name: np.zeros((n + 1, n + 1), dtype=bool) for name in order}  # by begin and width
    uses: dict[tuple[str, int], tuple[Mask, tuple[Numbers, ...]]] = {}
    for width in range(1, n + 1):
        for rule in rules:
            uses[rule.name, width] = found = _uses(slots_of[rule.name], width, n, can, shape)
            can[rule.left][: n - width + 1, width] |= found[0].any(1)
    need = {name: np.zeros((n + 1, n + 1), dtype=bool) for name in order}
    grids: list[Grid] = []

    def add(grid: Grid) -> None:
        grids.append(grid)
        for k, (name, is_symbol) in enumerate(slots_of[grid.rule.name]):
            if not is_symbol:
                here, then = grid.states[k : k + 2]
                need[name][here, then - here] = True

    if shape.is_ragged:
        for rule in reversed(hrg.rules_of(hrg.start)):
            every = [uses[rule.name, width] for width in range(1, n + 1)]
            flat = [np.concatenate(x)[None] for x in zip(*([y[0][m[0]] for y in own] for m, own in every), strict=True)]
            if flat and flat[0].size:
                add(Grid(rule, 0, np.zeros(1, dtype=np.int64), tuple(flat)))
    else:
        need[hrg.start][0, n] = can[hrg.start][0, n]
    for width in range(n, 0, -1):
        for rule in reversed(rules):
            begins = np.flatnonzero(need[rule.left][:, width])
            valid, states = uses[rule.name, width]
            for chosen, mask in by_count(begins, valid):
                picked = tuple(own[chosen][mask].reshape(len(chosen), -1) for own in states)
                add(Grid(rule, width, chosen, picked))
    items = {}
    for name, here in need.items():
        number = np.cumsum(here.T).reshape(here.T.shape).T - 1  # width after width, begins in order
        items[name] = np.where(here, number, -1)
    return Spans(tuple(reversed(grids)), items, slots_of) if grids else None


def by_count(begins: Numbers, valid: Mask) -> Iterator[tuple[Numbers, Mask]]:
    """The parents that have any use, those with equally many at a time, with the mask of their uses."""
    own = valid[begins]
    counts = own.sum(1)
    for count in sorted(set(counts.tolist()) - {0}, reverse=True):
        yield begins[counts == count], own[counts == count]


def _uses(
    slots: Slots, width: int, n: int, can: Mapping[str, Mask], shape: QueryShape
) -> tuple[Mask, tuple[Numbers, ...]]:  # "p s" each
    """The uses of a rule for all spans of a width: which are valid, and the states around its slots."""
    names = [name for name, is_symbol in slots if not is_symbol]
    rest = width - (len(slots) - len(names))
    begins = np.arange(n - width + 1)
    left = np.arange(1, rest) if len(names) == 2 else np.full(int(rest >= len(names)), rest)
    if not names and rest:
        left = left[:0]
    states = _states(slots, begins, left, width)
    valid = np.ones((len(begins), len(left)), dtype=bool)
    for k, (name, is_symbol) in enumerate(slots):
        if not is_symbol and valid.size:
            valid &= can[name][states[k], states[k + 1] - states[k]]
    for bracket in shape.brackets:
        valid &= _obeys(states, bracket[0], bracket[1])
    return valid, states


def _obeys(states: tuple[Numbers, ...], i: int, j: int) -> Mask:  # "p s"
    """Whether a bracket that lies within a use's span, and is not that span, lies within one of its slots."""
    first, last = states[0], states[-1]
    free: Mask = (first > i) | (last < j) | ((first == i) & (last == j))
    for here, then in itertools.pairwise(states):
        free |= (here <= i) & (then >= j)
    return free


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
