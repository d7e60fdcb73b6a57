"""A query as a grammar whose rules take the shape of another grammar's rules, so that the two conjoin.

The slots of a rule are its nonterminals and the symbols it emits, in the order in which its edges name them; a
constant of the observed domain is a symbol too. The query's rules share the paths of its automaton out to these slots.
A nonterminal `X[i,j]` derives the strings read from state i to state j; only items of whole derivations are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError, may_look
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Edge, Fragment, Label, Node, Rule, fresh_name, suggestion
from rankfold.fgg.rewrite.query import Arc, Query, QueryShape, Word, end_domain, end_label

Labels = frozenset[str]
_NONE: Labels = frozenset()


def query_grammar(grammar: Grammar, query: Query) -> Grammar:
    """The query as a grammar that conjoins with `grammar`; its structure is cached by the two shapes."""
    structure = query_structure(grammar.hrg, query.shape)
    domain = observed_domain(grammar.hrg, query.shape.domain)
    known = {label.name for label in structure.labels}
    observed, evidence = query_values(grammar, query, domain, known)
    return Grammar(structure, evidence, observed, evidence)


def query_values(
    grammar: Grammar, query: Query, domain: str, known: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The words of a query, and those of its factors that are known."""
    observed: dict[str, Tensor] = {}
    ids = None
    if query.words is not None:
        ids = _word_ids(grammar, query, domain)
        # A position without an observed node is never looked at; any valid id will do there.
        missing = any(arc.seen is None or arc.allowed for arc in query.shape.arcs)
        observed[domain] = torch.where(ids == -1, 0, ids) if missing else ids
    evidence = {name: x for name, x in _evidence(grammar, query, domain, ids).items() if name in known}
    evidence |= _constants(grammar, domain, known)
    if query.lengths is not None and (name := end_label(domain).name) in known:
        ends = torch.arange(query.shape.num_states, device=grammar.device)
        evidence[name] = (ends == query.lengths.to(grammar.device)[:, None]).to(grammar.dtype)
    return observed, evidence


def _word_ids(grammar: Grammar, query: Query, domain: str) -> Tensor:  # "n" or "b n"
    """The words of a query's sentences; -1 where one is missing."""
    words = query.words
    if not isinstance(words, Tensor):
        assert words is not None
        words = _padded(words, _numbering(grammar, domain), is_batch=query.is_batch)
    ids = words.to(device=grammar.device, dtype=torch.int64)
    if query.lengths is not None:  # what lies beyond is never used; any valid id will do
        inside = torch.arange(ids.shape[1], device=ids.device) < query.lengths.to(ids.device)[:, None]
        ids = torch.where(inside, ids, 0)
    return ids if query.is_batch else ids.reshape(-1)


def _padded(
    rows: tuple[tuple[Word | None, ...], ...], number: Callable[[Word], int], *, is_batch: bool
) -> Tensor:  # "b n"
    """The ids of sentences, as long as the longest; an error names the sentence of a batch."""
    found = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for k, row in enumerate(rows):
        try:
            ids = [-1 if word is None else number(word) for word in row]
        except DomainError as error:
            raise DomainError(f"Sentence {k}: {error}") if is_batch else error from None
        found[k, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return found


def _numbering(grammar: Grammar, domain: str) -> Callable[[Word], int]:
    """The id of a word, which may be an id already."""
    values = {value: index for index, value in enumerate(grammar.domain(domain).values)}

    def number(word: Word) -> int:
        if not isinstance(word, str):
            if not 0 <= word < 2**63:
                raise DomainError(
                    f"Word {word} is no id: ids are whole numbers from 0, in 64 bits.\n"
                    "  A missing word is None in lists, -1 in tensors."
                )
            return word
        if not values:
            raise DomainError(
                f"Domain {domain!r} does not name its values, so {word!r} is unknown.\n  Give ids instead."
            )
        if word not in values:
            raise DomainError(f"Domain {domain!r} has no value {word!r}. {suggestion(word, values)}")
        return values[word]

    return number


def _evidence(grammar: Grammar, query: Query, domain: str, ids: Tensor | None) -> dict[str, Tensor]:
    """The factors that say which words the arcs take, by label."""
    found: dict[str, Tensor] = {}
    allowed, number = iter(query.allowed), _numbering(grammar, domain)
    for arc in query.shape.arcs:
        if not arc.allowed:
            continue
        size = grammar.size(domain)
        if arc.seen is not None and ids is not None:
            column = ids[:, arc.seen]
            if may_look(column) and bool(((column < -1) | (column >= size)).any()):
                raise DomainError(
                    f"Position {arc.seen} holds {column.tolist()}, but domain {domain!r} has values 0 to {size - 1}."
                )
            hit = torch.arange(size, device=ids.device) == column[:, None]
            weights = (hit | (column == -1)[:, None]).to(grammar.dtype)
        else:
            chosen = [number(word) for word in next(allowed)]
            if max(chosen) >= size or min(chosen) < 0:
                raise DomainError(f"An arc reads {max(chosen)}, but domain {domain!r} has the values 0 to {size - 1}.")
            if len(set(chosen)) < len(chosen):
                raise DomainError(
                    f"The arcs from {arc.source} to {arc.target} read a word twice, by name and by number."
                )
            weights = torch.zeros(size, dtype=grammar.dtype, device=grammar.device)
            weights[chosen] = 1
        found[_evidence_label(grammar.hrg, domain, arc).name] = weights
    return found


def _constants(grammar: Grammar, domain: str, known: Collection[str]) -> dict[str, Tensor]:
    """The factors of the constants that the rules have for words."""
    found: dict[str, Tensor] = {}
    for rule in grammar.rules:
        for node in rule.right.nodes:
            if node.domain == domain and isinstance(node.observed, int):
                name = _constant_label(domain, node.observed).name
                if name in known and name not in found:
                    ids = torch.arange(grammar.size(domain), device=grammar.device)
                    found[name] = (ids == node.observed).to(grammar.dtype)
    return found


class _Slot(NamedTuple):
    """A place of a rule that reads symbols: a nonterminal (its label) or an emitted symbol (its node)."""

    name: str
    is_symbol: bool


class _Item(NamedTuple):
    """A nonterminal that derives the strings read between two states; `open`: labels its brackets still ask for.

    Required labels of one span are met along a chain of rules that read nothing else, each item closing its own.
    """

    name: str
    source: int
    target: int
    open: Labels = _NONE


class _Path(NamedTuple):
    """One use of a rule: the states around its slots, the item of each nonterminal, and the labels open below it."""

    states: tuple[int, ...]
    items: tuple[_Item, ...]
    open: Labels


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


def _evidence_label(hrg: HRG, domain: str, arc: Arc) -> Label:
    """The factor that says which symbols an arc takes; its name is none that the grammar has from another query."""
    name = f"{_evidence_stem(hrg, domain)}[{domain},{arc.source},{arc.target}]"
    return Label(name, (domain,), is_terminal=True, is_batched=arc.is_batched)


@lru_cache(maxsize=256)
def _evidence_stem(hrg: HRG, domain: str) -> str:
    stem = "arc"
    while any(label.name.startswith(f"{stem}[{domain},") for label in hrg.labels):
        stem += "'"
    return stem


def _constant_label(domain: str, value: int) -> Label:
    """The factor that is 1 at a symbol that a rule writes as a constant, and else 0."""
    return Label(f"word[{domain},{value}]", (domain,), is_terminal=True)


class _Builder:
    def __init__(self, hrg: HRG, shape: QueryShape) -> None:
        self.hrg, self.shape = hrg, shape
        self.domain = observed_domain(hrg, shape.domain)
        self.slots = {rule.name: slots_of_rule(hrg, rule, self.domain) for rule in hrg.rules}
        self.steps: dict[int, list[Arc]] = {}
        for arc in shape.arcs:
            self.steps.setdefault(arc.source, []).append(arc)
        self.found: dict[tuple[str, int], dict[_Item, None]] = {}
        self.labels: dict[str, Label] = {}
        self.rules: list[Rule] = []
        nonterminals = {label.name for label in hrg.labels if not label.is_terminal}
        self.required: dict[tuple[int, int], Labels] = {}
        for bracket in shape.brackets:
            i, j = bracket[:2]
            label = bracket[2] if len(bracket) == 3 else None
            if label is not None and label not in nonterminals:
                raise DomainError(f"Bracket {bracket} names {label!r}, which is not a nonterminal of the grammar.")
            self.required[i, j] = self.required.get((i, j), _NONE) | ({label} if label is not None else _NONE)

    def required_labels(self, source: int, target: int) -> Labels:
        """The labels that brackets of exactly this span ask for."""
        return self.required.get((source, target), _NONE)

    def build(self) -> HRG:
        self.find_items()
        start, initial, finals = self.hrg.start, self.shape.initial, self.shape.finals
        roots = [_Item(start, initial, final, self.required_labels(initial, final)) for final in finals]
        root = self.label(roots[0])
        is_many = len(finals) > 1 or self.shape.is_ragged
        if is_many:
            root = f"{start}[{initial},*]"
            self.labels = {root: Label(root, (), False, origin=start)}
        if self.shape.is_ragged:
            self.labels[end_label(self.domain).name] = end_label(self.domain)
        done: set[_Item] = set() if is_many else {roots[0]}
        ahead: list[_Item] = []
        for item in roots:
            if item in self.found.get((start, initial), ()):
                ahead += self.write(item, root, ends=self.shape.is_ragged)
        while ahead:
            item = ahead.pop()
            if item not in done:
                done.add(item)
                ahead += self.write(item, self.label(item))
        domains = (*self.hrg.domains, *end_domain(self.domain, self.shape))
        return HRG(domains, tuple(self.labels.values()), tuple(self.rules), root)

    def label(self, item: _Item) -> str:
        span = (item.source, item.target)
        note = "" if item.open == self.required_labels(*span) else ";" + "+".join(sorted(item.open))
        name = f"{item.name}[{item.source},{item.target}{note}]"
        if name not in self.labels:
            self.labels[name] = Label(name, self.hrg.label(item.name).type, False, origin=item.name, span=span)
        return name

    def find_items(self) -> None:
        """All items that derive something, by nonterminal and first state; a least fixed point."""
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
            found = self.found.setdefault((rule.left, state), {})
            known = len(found)
            for path in list(self.paths(rule, state)):
                found[_Item(rule.left, state, path.states[-1], path.open)] = None
                if rule.left in self.required_labels(state, path.states[-1]):
                    found[_Item(rule.left, state, path.states[-1], path.open | {rule.left})] = None
            changed = changed or len(found) > known
        return changed

    def paths(self, rule: Rule, state: int, target: int | None = None) -> Iterator[_Path]:
        """The uses of a rule that begins in `state` (and ends in `target`), brackets obeyed."""
        slots = self.slots[rule.name]

        def walk(states: tuple[int, ...], items: tuple[_Item, ...]) -> Iterator[_Path]:
            if len(states) > len(slots):
                if target in (None, states[-1]):
                    below = self.open_below(slots, states, items)
                    if below is not None:
                        yield _Path(states, items, below)
                return
            slot = slots[len(states) - 1]
            if slot.is_symbol:
                for arc in self.steps.get(states[-1], ()):
                    yield from walk((*states, arc.target), items)
            else:
                for item in self.found.get((slot.name, states[-1]), ()):
                    yield from walk((*states, item.target), (*items, item))

        return walk((state,), ())

    def open_below(self, slots: tuple[_Slot, ...], states: tuple[int, ...], items: tuple[_Item, ...]) -> Labels | None:
        """The labels this use leaves open for its own span, or None where it breaks a bracket.

        A bracket within the span, but not equal to it, must lie within a slot; a symbol is one only without a label.
        """
        span = (states[0], states[-1])
        if not self.required:
            return _NONE
        for (i, j), labels in self.required.items():
            if span[0] <= i and j <= span[1] and (i, j) != span:
                inside = [k for k in range(len(slots)) if states[k] <= i and j <= states[k + 1]]
                if not any(not (slots[k].is_symbol and labels) for k in inside):
                    return None
        below = _NONE
        for item in items:
            if (item.source, item.target) == span and span[0] < span[1]:
                below = item.open
            elif item.open != self.required_labels(item.source, item.target):
                return None
        return below

    def write(self, item: _Item, left: str, *, ends: bool = False) -> list[_Item]:
        """Add the rules of an item; returns the items they name. `ends`: where the whole sentence may end."""
        named: list[_Item] = []
        for rule in self.hrg.rules_of(item.name):
            for path in self.paths(rule, item.source, item.target):
                if path.open == item.open - {item.name}:
                    self.rules.append(self.instance(rule, path, left, item, ends=ends))
                    named += path.items
        return named

    def instance(self, rule: Rule, path: _Path, left: str, item: _Item, *, ends: bool) -> Rule:
        """The query's rule for one use of a rule; `ends`: for the sentences of a batch that end with it."""
        nodes = {external: rule.right.node(external) for external in rule.right.externals}
        edges = []
        inner = iter(zip(self.hrg.nonterminal_edges(rule), path.items, strict=True))
        for k, slot in enumerate(self.slots[rule.name]):
            if slot.is_symbol:
                arc = next(arc for arc in self.steps[path.states[k]] if arc.target == path.states[k + 1])
                node, evidence = self.read(rule, slot.name, arc, nodes)
                nodes[node.name] = node
                if evidence is not None:
                    self.labels.setdefault(evidence.name, evidence)
                    edges.append(Edge(evidence.name, (node.name,)))
            else:
                edge, below = next(inner)
                edges.append(Edge(self.label(below), edge.nodes))
                nodes |= {name: rule.right.node(name) for name in edge.nodes}
        if ends:
            label = end_label(self.domain)
            node = end_node(rule, label.type[0], item.target, nodes)
            nodes[node.name] = node
            edges.append(Edge(label.name, (node.name,)))
        plain = f"{item.name}[{item.source},{item.target}]"
        note = "" if left == plain else left[len(item.name) :]
        name = f"{rule.name}[{','.join(map(str, path.states))}]{note}"
        fragment = Fragment(tuple(nodes.values()), tuple(edges), rule.right.externals)
        return Rule(name, left, fragment, template=rule.name)

    def read(self, rule: Rule, name: str, arc: Arc, made: Collection[str]) -> tuple[Node, Label | None]:
        """A node for the symbol that an arc reads at a node of a rule, and the factor at it, if any.

        A constant is compared with a word of the sentence at a second node; what an arc allows is sliced there.
        """
        constant = rule.right.node(name).observed
        assert not isinstance(constant, tuple)
        if arc.allowed or arc.seen is None:
            label = _evidence_label(self.hrg, self.domain, arc) if arc.allowed else None
            return Node(name, self.domain, constant), label
        cell = (self.domain, arc.seen)
        if constant is None:
            return Node(name, self.domain, cell), None
        other = fresh_name(name, {node.name for node in rule.right.nodes}.union(made))
        return Node(other, self.domain, cell), _constant_label(self.domain, constant)


def end_node(rule: Rule, domain: str, state: int, made: Collection[str] = ()) -> Node:
    """The node at which a sentence ends in a state."""
    taken = {node.name for node in rule.right.nodes}.union(made)
    return Node(fresh_name("end", taken), domain, state)


def slots_of_rule(hrg: HRG, rule: Rule, domain: str) -> tuple[_Slot, ...]:
    """The slots of a rule: nonterminals, and nodes of the observed domain, as its edges name them."""
    slots: list[_Slot] = []
    for edge in rule.right.edges:
        symbols = [name for name in dict.fromkeys(edge.nodes) if rule.right.node(name).domain == domain]
        for name in symbols:
            if isinstance(rule.right.node(name).observed, tuple):
                raise UnsupportedError(
                    f"Node {name!r} of rule {rule.name!r} is a word of a sentence already: {domain!r} is observed.\n"
                    "  Conjoin with the sentence last, after all automata: conjoin(conjoin(g, automaton), sentence)."
                )
        whole = not hrg.label(edge.label).is_terminal
        if symbols and (whole or set(symbols) & set(rule.right.externals)):
            raise UnsupportedError(
                f"Node {symbols[0]!r} of rule {rule.name!r} has the observed domain {domain!r}, but rules share it.\n"
                "  A symbol belongs to one rule: pass it on by a node of a second domain and a factor that ties them."
            )
        if whole:
            slots.append(_Slot(edge.label, False))
        slots += [_Slot(name, True) for name in symbols if _Slot(name, True) not in slots]
    return tuple(slots)
