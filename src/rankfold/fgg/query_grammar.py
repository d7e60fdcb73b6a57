"""The grammar of a query beside a grammar: for each of its rules, the ways to share a path of the automaton out to
the slots.

The slots of a rule are its nonterminals and the symbols it emits, in the order in which its edges name them. A
nonterminal `X[i,j]` derives what the automaton reads from state i to state j. Only items that are part of a whole
derivation are made. Read next: `conjoin.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError
from rankfold.fgg.grammar import Factor, Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Node, Rule
from rankfold.fgg.names import suggestion
from rankfold.fgg.query import Arc, Bracket, Query, QueryShape, Word

Item = tuple[str, int, int]


class Slot(NamedTuple):
    """A place of a rule that reads symbols: a nonterminal (its label) or an emitted symbol (its node)."""

    name: str
    is_symbol: bool


def query_grammar(grammar: Grammar, query: Query) -> Grammar:
    """The query as a grammar that conjoins with `grammar`; its structure is cached by the two shapes."""
    structure = query_structure(grammar.hrg, query.shape)
    domain = observed_domain(grammar.hrg, query.shape.domain)
    observed, factors = _numbers(grammar, query, domain)
    known = {label.name for label in structure.labels}
    return Grammar(structure, {name: factor for name, factor in factors.items() if name in known}, observed)


@lru_cache(maxsize=256)
def query_structure(hrg: HRG, shape: QueryShape) -> HRG:
    """The structure of the query's grammar: cost linear in its rules, O(n^(k + 1)) for rules of k slots and n words."""
    return _Builder(hrg, shape).build()


def observed_domain(hrg: HRG, name: str | None) -> str:
    """The domain whose nodes the query fixes."""
    found = [domain.name for domain in hrg.domains if domain.is_observed]
    if name is not None:
        if name not in found:
            raise DomainError(f"There is no observed domain {name!r}. {suggestion(name, found)}")
        return name
    if len(found) != 1:
        raise DomainError(
            f"The grammar has {len(found)} observed domains ({', '.join(found) or 'none'}), so say which.\n"
            "  Declare one (observed V = 100), or pass domain=... to the query."
        )
    return found[0]


def evidence_label(domain: str, arc: Arc) -> Label:
    """The factor that says which symbols an arc takes."""
    return Label(f"arc[{domain},{arc.source},{arc.target}]", (domain,), is_terminal=True, is_batched=arc.is_batched)


class _Builder:
    def __init__(self, hrg: HRG, shape: QueryShape) -> None:
        self.hrg, self.shape = hrg, shape
        self.domain = observed_domain(hrg, shape.domain)
        self.slots = {rule.name: slots_of(hrg, rule, self.domain) for rule in hrg.rules}
        self.steps: dict[int, list[Arc]] = {}
        for arc in shape.arcs:
            self.steps.setdefault(arc.source, []).append(arc)
        self.brackets = sorted(shape.brackets, key=str)
        self.ends: dict[tuple[str, int], set[int]] = {}
        for bracket in self.brackets:
            if len(bracket) == 3 and bracket[2] not in {x.name for x in hrg.labels if not x.is_terminal}:
                raise DomainError(f"Bracket {bracket} names {bracket[2]!r}, which is not a nonterminal of the grammar.")

    def build(self) -> HRG:
        self.find_ends()
        start, roots = (
            self.hrg.start,
            [q for q in self.shape.finals if q in self.ends.get((self.hrg.start, self.shape.initial), ())],
        )
        initial = self.shape.initial
        root = f"{start}[{initial},{self.shape.finals[0]}]" if len(self.shape.finals) == 1 else f"{start}[{initial},*]"
        labels = {root: Label(root, (), False, origin=start, span=(initial, self.shape.finals[-1]))}
        rules: list[Rule] = []
        done: set[Item] = set()
        ahead: list[Item] = []
        for final in roots:
            ahead += self.write((start, initial, final), root, rules, labels)
        if len(self.shape.finals) == 1:
            done.add((start, initial, self.shape.finals[0]))
        while ahead:
            item = ahead.pop()
            if item not in done:
                done.add(item)
                ahead += self.write(item, self.label(item, labels), rules, labels)
        return HRG(self.hrg.domains, tuple(labels.values()), tuple(rules), root)

    def label(self, item: Item, labels: dict[str, Label]) -> str:
        name = f"{item[0]}[{item[1]},{item[2]}]"
        if name not in labels:
            labels[name] = Label(name, self.hrg.label(item[0]).type, False, origin=item[0], span=(item[1], item[2]))
        return name

    def find_ends(self) -> None:
        """For each nonterminal and state, the states in which what it derives from there may end; a least fixed
        point."""
        forward = all(arc.source < arc.target for arc in self.shape.arcs)
        changed = True
        while changed:
            changed = False
            for state in reversed(range(self.shape.num_states)):
                while self.extend(state):
                    changed = True
            # Where arcs only go up, what begins at a state needs nothing that begins before it: one pass is enough.
            changed = changed and not forward

    def extend(self, state: int) -> bool:
        changed = False
        for rule in self.hrg.rules:
            found = self.ends.setdefault((rule.left, state), set())
            new = {path[-1] for path in self.paths(rule, state)} - found
            found |= new
            changed = changed or bool(new)
        return changed

    def paths(self, rule: Rule, state: int) -> Iterator[tuple[int, ...]]:
        """The states before, between and after the slots of a rule that begins in `state`, brackets obeyed."""
        slots = self.slots[rule.name]

        def walk(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(path) > len(slots):
                if all(self.obeys(rule, slots, path, bracket) for bracket in self.brackets):
                    yield path
                return
            slot = slots[len(path) - 1]
            if slot.is_symbol:
                targets = [arc.target for arc in self.steps.get(path[-1], ())]
            else:
                targets = sorted(self.ends.get((slot.name, path[-1]), ()))
            for target in targets:
                yield from walk((*path, target))

        return walk((state,))

    def obeys(self, rule: Rule, slots: tuple[Slot, ...], path: tuple[int, ...], bracket: Bracket) -> bool:
        """Whether this use of a rule leaves room for the bracket: it is outside, met here, or inside one of the
        slots."""
        i, j = bracket[:2]
        label = bracket[2] if len(bracket) == 3 else None
        if not (path[0] <= i and j <= path[-1]) or ((path[0], path[-1]) == (i, j) and label in (None, rule.left)):
            return True
        return any(
            path[k] <= i and j <= path[k + 1] and not (slot.is_symbol and label is not None)
            for k, slot in enumerate(slots)
        )

    def write(self, item: Item, left: str, rules: list[Rule], labels: dict[str, Label]) -> list[Item]:
        """Add the rules of an item; returns the items they name."""
        named = []
        for rule in self.hrg.rules_of(item[0]):
            for path in self.paths(rule, item[1]):
                if path[-1] == item[2]:
                    made, items = self.instance(rule, path, left, labels)
                    rules.append(made)
                    named += items
        return named

    def instance(
        self, rule: Rule, path: tuple[int, ...], left: str, labels: dict[str, Label]
    ) -> tuple[Rule, list[Item]]:
        """The query's rule for one path, and the items it names."""
        edges, nodes, items = [], {}, []
        for external in rule.right.externals:
            nodes[external] = rule.right.node(external)
        whole = iter(self.hrg.nonterminal_edges(rule))
        for k, slot in enumerate(self.slots[rule.name]):
            if slot.is_symbol:
                arc = next(arc for arc in self.steps[path[k]] if arc.target == path[k + 1])
                cell = (self.domain, arc.seen) if arc.seen is not None and not arc.allowed else None
                nodes[slot.name] = Node(slot.name, self.domain, cell)
                if arc.allowed:
                    label = evidence_label(self.domain, arc)
                    labels.setdefault(label.name, label)
                    edges.append(Edge(label.name, (slot.name,)))
            else:
                edge = next(whole)
                item = (slot.name, path[k], path[k + 1])
                items.append(item)
                edges.append(Edge(self.label(item, labels), edge.nodes))
                nodes |= {name: rule.right.node(name) for name in edge.nodes}
        name = f"{rule.name}[{','.join(map(str, path))}]"
        fragment = Fragment(tuple(nodes.values()), tuple(edges), rule.right.externals)
        return Rule(name, left, fragment, template=rule.name), items


def slots_of(hrg: HRG, rule: Rule, domain: str) -> tuple[Slot, ...]:
    """The slots of a rule: nonterminals, and unobserved nodes of the observed domain, as its edges name them."""
    slots: list[Slot] = []
    for edge in rule.right.edges:
        symbols = [
            name
            for name in dict.fromkeys(edge.nodes)
            if rule.right.node(name).domain == domain and rule.right.node(name).observed is None
        ]
        whole = not hrg.label(edge.label).is_terminal
        if symbols and (whole or set(symbols) & set(rule.right.externals)):
            raise UnsupportedError(
                f"Node {symbols[0]!r} of rule {rule.name!r} has the observed domain {domain!r}, but is shared by rules.\n"
                "  A symbol belongs to one rule: pass it on by a node of a second domain and a factor that ties them."
            )
        if whole:
            slots.append(Slot(edge.label, False))
        slots += [Slot(name, True) for name in symbols if Slot(name, True) not in slots]
    return tuple(slots)


def _numbers(grammar: Grammar, query: Query, domain: str) -> tuple[dict[str, Tensor], dict[str, Factor]]:
    """The observed table and the evidence factors of a query."""
    values = {value: index for index, value in enumerate(grammar.domain(domain).values)}

    def number(word: Word | None) -> int:
        if not isinstance(word, str):
            return -1 if word is None else word
        if not values:
            raise DomainError(
                f"Domain {domain!r} does not name its values, so {word!r} is unknown.\n  Give ids instead."
            )
        if word not in values:
            raise DomainError(f"Domain {domain!r} has no value {word!r}. {suggestion(word, values)}")
        return values[word]

    observed: dict[str, Tensor] = {}
    factors: dict[str, Factor] = {}
    ids = None
    if query.words is not None:
        ids = (
            query.words
            if isinstance(query.words, Tensor)
            else torch.tensor([[number(w) for w in r] for r in query.words])
        )
        ids = ids.to(device=grammar.device, dtype=torch.int64)
        ids = ids if query.is_batch else ids.reshape(-1)
        # A position without an observed node is never looked at; any valid id will do there.
        observed[domain] = ids.clamp(min=0) if bool((ids == -1).any()) else ids
    size = grammar.size(domain) if any(arc.allowed for arc in query.shape.arcs) else 0
    given = iter(query.allowed)
    for arc in query.shape.arcs:
        if not arc.allowed:
            continue
        if arc.seen is not None and ids is not None:
            column = ids[:, arc.seen]
            hit = torch.arange(size, device=ids.device) == column[:, None]
            weights = (hit | (column == -1)[:, None]).to(grammar.dtype)
        else:
            chosen = [number(word) for word in next(given)]
            if max(chosen) >= size or min(chosen) < 0:
                raise DomainError(f"An arc reads {max(chosen)}, but domain {domain!r} has the values 0 to {size - 1}.")
            weights = torch.zeros(size, dtype=grammar.dtype, device=grammar.device)
            weights[chosen] = 1
        factors[evidence_label(domain, arc).name] = weights
    return observed, factors
