"""From statements to a grammar: names are looked up, domains inferred, parts of unions tied by inclusions.

The domain of a node is written at it, or follows from a label it touches; the domains of a label are declared,
written at the left side of its rules, or follow from nodes. Where a node of a union meets a label that wants one of
its parts (or the other way round), a second node and an inclusion factor are put between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankfold.errors import DataError, ShapeError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG, expect_unions, inclusion_label, is_inclusion, is_part, size_of
from rankfold.fgg.hypergraph import Cell, Domain, Edge, Fragment, Label, Node, Rule, fresh_name, suggestion
from rankfold.fgg.language.syntax import Argument, Atom, LabelLine, RuleLine, Statements, Token, text_error


def elaborate(lines: Statements) -> Grammar:
    """The grammar of these statements."""
    return _Elaboration(lines).grammar()


@dataclass
class _LabelDraft:
    """A label so far: its first token and the domain of each position so far."""

    at: Token
    is_terminal: bool
    type: list[str | None]
    is_batched: bool = False


@dataclass
class _RuleDraft:
    """A rule with its nodes by name: the argument that wrote each first, its domain so far, its observed value."""

    line: RuleLine
    first: dict[str, Argument] = field(default_factory=dict)
    domain: dict[str, str | None] = field(default_factory=dict)
    observed: dict[str, int | str | Cell] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    atoms: list[tuple[Atom, list[str]]] = field(default_factory=list)
    externals: list[str] = field(default_factory=list)


class _Elaboration:
    def __init__(self, lines: Statements) -> None:
        self.lines = lines
        self.domains: dict[str, Domain] = {}
        self.labels: dict[str, _LabelDraft] = {}

    def grammar(self) -> Grammar:
        for line in self.lines.domains:
            if line.name.text in self.domains:
                raise text_error(line.name, f"domain {line.name.text!r} is declared twice.")
            parts = tuple(part.text for part in line.parts)
            self.domains[line.name.text] = Domain(
                line.name.text, line.size, parts, line.values, line.kind == "observed", line.kind == "rank"
            )
        for line in self.lines.domains:
            for part in line.parts:
                self.known_domain(part)
                self.expect_smaller(line.name.text, part)
        if self.lines.domains:
            with _errors_at(self.lines.domains[0].name):
                expect_unions({domain.name: domain.parts for domain in self.domains.values()})
        for declared in self.lines.labels:
            self.declare(declared)
        if not self.lines.rules and self.lines.start is None:
            assert self.lines.end is not None
            raise text_error(self.lines.end, "the text has no rule. A rule reads X(n) -> rule(n, l, r) Y(l) Y(r).")
        for rule in self.lines.rules:
            self.note_left(rule)
        drafts = [self.draft(rule) for rule in self.lines.rules]
        _infer_domains(drafts, self.labels, self.domains)
        rules: dict[str, Rule] = {}
        for draft, automatic in zip(
            drafts, automatic_names(draft.line.left.label.text for draft in drafts), strict=True
        ):
            name = draft.line.name.text if draft.line.name else automatic
            if name in rules:
                raise text_error(draft.line.name or draft.line.left.label, f"there is a rule {name!r} before.")
            rules[name] = self.rule(draft, name)
        labels = tuple(
            Label(name, tuple(map(str, label.type)), label.is_terminal, label.is_batched)
            for name, label in self.labels.items()
        )
        start = self.lines.start or self.lines.rules[0].left.label
        if start.text not in self.labels:
            raise text_error(start, f"there is no label {start.text!r}. {suggestion(start.text, self.labels)}")
        self.expect_start(start)
        hrg = HRG(tuple(self.domains.values()), labels, tuple(rules.values()), start.text)
        return _attach_literals(Grammar(hrg), self.lines)

    def expect_start(self, at: Token) -> None:
        label = self.labels[at.text]
        if label.is_terminal or label.type:
            what = "is a factor" if label.is_terminal else f"attaches to {len(label.type)} nodes"
            raise text_error(
                at,
                f"the start symbol {at.text!r} {what}, expected a nonterminal without nodes; "
                f"add a rule such as S() -> root(x) {at.text}(x) and start with S.",
            )

    def expect_smaller(self, union: str, part: Token) -> None:
        """Raise if a declared union is a part of itself, or has a part twice."""
        if self.domains[union].parts.count(part.text) > 1:
            raise text_error(part, f"domain {part.text!r} is repeated; each part of a union appears once.")
        seen, ahead = set[str](), [part.text]
        while ahead:
            name = ahead.pop()
            if name == union:
                raise text_error(part, f"domain {union!r} would be a part of itself.")
            if name not in seen and name in self.domains:
                seen.add(name)
                ahead += self.domains[name].parts

    def known_domain(self, at: Token) -> str:
        """The domain a token names; a union of known domains is made where it is named first."""
        if at.text not in self.domains:
            parts = at.text.split("+")
            for part in parts:
                if part not in self.domains or len(parts) == 1:
                    raise text_error(at, f"there is no domain {part!r}. {suggestion(part, self.domains)}")
            if len(set(parts)) < len(parts):
                raise text_error(at, f"the union {at.text!r} repeats a part; each appears once.")
            self.domains[at.text] = Domain(at.text, parts=tuple(parts))
        return at.text

    def declare(self, line: LabelLine) -> None:
        name = line.name.text
        if name in self.labels:
            raise text_error(line.name, f"label {name!r} is declared twice.")
        types: list[str | None] = [self.known_domain(at) for at in line.type]
        self.labels[name] = _LabelDraft(line.name, line.is_terminal, types, line.is_batched)

    def note_left(self, line: RuleLine) -> None:
        """Note a nonterminal and the domains that its left side names."""
        at = line.left.label
        if at.text not in self.labels:
            if not at.text[0].isupper():
                raise text_error(
                    at,
                    f"expected a nonterminal on the left side, found {at.text!r}; nonterminals begin with a capital "
                    "letter or are declared by `symbol`.",
                )
            self.labels[at.text] = _LabelDraft(at, False, [None] * len(line.left.arguments))
        label = self.labels[at.text]
        if label.is_terminal:
            raise text_error(at, f"expected a nonterminal on the left side, but {at.text!r} is a factor.")
        self.arity(line.left, label)
        for position, argument in enumerate(line.left.arguments):
            if argument.domain is not None:
                domain = self.known_domain(argument.domain)
                if label.type[position] not in (None, domain):
                    raise text_error(
                        argument.domain,
                        f"{at.text!r} has domain {label.type[position]!r} here by an earlier line, found {domain!r}.",
                    )
                label.type[position] = domain

    def arity(self, atom: Atom, label: _LabelDraft) -> None:
        if len(atom.arguments) != len(label.type):
            raise text_error(
                atom.label,
                f"{atom.label.text!r} attaches to {len(label.type)} nodes (line {label.at.line}), found "
                f"{len(atom.arguments)}.",
            )

    def note_right(self, atom: Atom) -> _LabelDraft:
        name = atom.label.text
        if name not in self.labels:
            if name[0].isupper():
                raise text_error(
                    atom.label,
                    f"there is no rule for the nonterminal {name!r}. "
                    f"{suggestion(name, [n for n, label in self.labels.items() if not label.is_terminal])}",
                )
            types: list[str | None] = [None] * len(atom.arguments)
            if is_inclusion(name):
                types = [self.known_domain(atom.label._replace(text=part)) for part in name[3:-1].split(",")]
            self.labels[name] = _LabelDraft(atom.label, True, types)
        self.arity(atom, self.labels[name])
        return self.labels[name]

    def draft(self, line: RuleLine) -> _RuleDraft:
        written = frozenset(str(a.name) for atom in (line.left, *line.right) for a in atom.arguments)
        draft = _RuleDraft(line, written=written)
        draft.externals = [self.note_node(draft, argument) for argument in line.left.arguments]
        for argument in line.left.arguments:
            if argument.observed is not None:
                raise text_error(argument.at, "expected a node: the nodes of the left side are not observed.")
        if len(set(draft.externals)) < len(draft.externals):
            raise text_error(line.left.label, "expected distinct nodes on the left side.")
        for atom in line.right:
            self.note_right(atom)
            draft.atoms.append((atom, [self.note_node(draft, argument) for argument in atom.arguments]))
        return draft

    def note_node(self, draft: _RuleDraft, argument: Argument) -> str:
        """Note a node by its name (a bare constant gets one), its domain and its value."""
        name = argument.name
        if name is None:
            name = fresh_name("c", draft.first.keys() | draft.written)
        domain = None if argument.domain is None else self.known_domain(argument.domain)
        if name not in draft.first:
            draft.first[name], draft.domain[name] = argument, domain
        elif domain is not None:
            if draft.domain[name] not in (None, domain):
                raise text_error(
                    argument.at, f"node {name!r} has domain {draft.domain[name]!r} before, found {domain!r}."
                )
            draft.domain[name] = domain
        value = argument.observed
        if value is not None and draft.observed.setdefault(name, value) != value:
            raise text_error(argument.at, f"node {name!r} is observed twice, as different values.")
        return name

    def rule(self, draft: _RuleDraft, name: str) -> Rule:
        nodes = {node: Node(node, str(domain), self.value(draft, node)) for node, domain in draft.domain.items()}
        edges: list[Edge] = []
        for external, wanted in zip(draft.externals, self.labels[draft.line.left.label.text].type, strict=True):
            if nodes[external].domain != wanted:
                at = draft.first[external].at
                raise text_error(at, f"node {external!r} has domain {nodes[external].domain!r}, expected {wanted!r}.")
        for atom, names in draft.atoms:
            attached = []
            for position, node in enumerate(names):
                wanted, found = str(self.labels[atom.label.text].type[position]), nodes[node].domain
                at = atom.arguments[position].at
                if found != wanted:
                    node = self.bridge(at, atom, nodes, node, wanted, edges)
                if nodes[node].observed is not None and not self.labels[atom.label.text].is_terminal:
                    raise text_error(at, f"the nonterminal {atom.label.text!r} touches a value; only factors do.")
                attached.append(node)
            edges.append(Edge(atom.label.text, tuple(attached)))
        fragment = Fragment(tuple(nodes.values()), tuple(edges), tuple(draft.externals))
        return Rule(name, draft.line.left.label.text, fragment)

    def bridge(self, at: Token, atom: Atom, nodes: dict[str, Node], node: str, wanted: str, edges: list[Edge]) -> str:
        """A new node of the wanted domain, tied to the given one by an inclusion."""
        found = nodes[node].domain
        if not (is_part(self.domains, wanted, found) or is_part(self.domains, found, wanted)):
            raise text_error(
                at,
                f"node {node!r} has domain {found!r}, but {atom.label.text!r} wants {wanted!r}; no union joins them.",
            )
        new = fresh_name(node, nodes)
        nodes[new] = Node(new, wanted)
        part, union = (wanted, found) if is_part(self.domains, wanted, found) else (found, wanted)
        label = inclusion_label(part, union)
        self.labels.setdefault(label.name, _LabelDraft(at, True, list(label.type)))
        edges.append(Edge(label.name, (new, node) if part == wanted else (node, new)))
        return new

    def value(self, draft: _RuleDraft, node: str) -> int | Cell | None:
        """The observed value of a node; a named value becomes its number."""
        observed = draft.observed.get(node)
        at, domain = draft.first[node].at, self.domains[str(draft.domain[node])]
        if isinstance(observed, int):
            size = size_of(self.domains, domain.name)
            if size is not None and observed >= size:
                raise text_error(at, f"domain {domain.name!r} has the values 0 to {size - 1}, found {observed}.")
        if not isinstance(observed, str):
            return observed
        if observed not in domain.values:
            raise text_error(
                at, f"domain {domain.name!r} has no value {observed!r}. {suggestion(observed, domain.values)}"
            )
        return domain.values.index(observed)


def automatic_names(lefts: Iterable[str]) -> Iterator[str]:
    """The names of rules without one, given their left sides: `X.1`, `X.2`, ..."""
    counts = Counter[str]()
    for left in lefts:
        counts[left] += 1
        yield f"{left}.{counts[left]}"


def _infer_domains(drafts: list[_RuleDraft], labels: Mapping[str, _LabelDraft], domains: Mapping[str, Domain]) -> None:
    """Fill in the domains of all nodes and labels; raises at a node whose domain nothing tells.

    Written domains spread from labels to the nodes they touch and from nodes to labels, until nothing changes. A node
    that touches a union and some of its parts is of the union.
    """
    places = [_places(draft, labels) for draft in drafts]
    changed = True
    while changed:
        told = [_to_nodes(*pair, domains) for pair in zip(drafts, places, strict=True)]
        changed = any(told) or any(_to_a_label(*pair) for pair in zip(drafts, places, strict=True))
    for draft in drafts:
        for name, domain in draft.domain.items():
            if domain is None:
                at = draft.first[name].at
                constant = at.text != name
                here = "" if constant else f"write it here, as in {name}: N, or "
                raise text_error(
                    at, f"the domain of {at.text!r} is not known; {here}declare its factor, as in factor f: N."
                )


_Places = list[tuple[_LabelDraft, int, str]]


def _places(draft: _RuleDraft, labels: Mapping[str, _LabelDraft]) -> _Places:
    """Each place where a label meets a node of the rule: label, position and node, the left side's first."""
    atoms = [(draft.line.left, draft.externals), *draft.atoms]
    return [(labels[atom.label.text], position, name) for atom, names in atoms for position, name in enumerate(names)]


def _to_nodes(draft: _RuleDraft, places: _Places, domains: Mapping[str, Domain]) -> bool:
    changed = False
    for name, domain in draft.domain.items():
        if domain is not None:
            continue
        known = [found for label, i, node in places if node == name and (found := label.type[i]) is not None]
        if known:
            unions = [d for d in known if all(d == other or is_part(domains, other, d) for other in known)]
            draft.domain[name] = known[0] if name in draft.externals or not unions else unions[0]
            changed = True
    return changed


def _to_a_label(draft: _RuleDraft, places: _Places) -> bool:
    """Give one label the domain of a node; one at a time, so that nodes take it before other labels do."""
    for label, position, name in places:
        if label.type[position] is None and draft.domain[name] is not None:
            label.type[position] = draft.domain[name]
            return True
    return False


def _attach_literals(grammar: Grammar, lines: Statements) -> Grammar:
    """The grammar with the numbers of its text: weights of factors, in float64, and observed values."""
    for line in lines.labels:
        if line.weights is not None:
            with _errors_at(line.name):
                weights = {**grammar.written, line.name.text: _weights(line)}
                grammar = Grammar(grammar.hrg, grammar.factors, grammar.observed, weights)
    for given in lines.given:
        name = given.name.text
        if name in grammar.observed:
            raise text_error(given.name, f"the observed {name!r} are given twice.")
        with _errors_at(given.name):
            grammar = grammar.with_observed({name: _to_tensor(given.values, repr(name), torch.int64)})
    return grammar


def _weights(line: LabelLine) -> Tensor:
    name = line.name.text
    found = _to_tensor(line.weights, f"factor {name!r}", torch.float64)
    if found.ndim != len(line.type) + line.is_batched:
        raise ShapeError(
            f"factor {name!r} is written with shape {tuple(found.shape)}, but attaches to {len(line.type)} nodes."
        )
    return found


def _to_tensor(rows: object, what: str, dtype: torch.dtype) -> Tensor:
    try:
        return torch.tensor(rows, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise DataError(f"the rows of {what} are not equally long.") from wrong


@contextmanager
def _errors_at(at: Token) -> Iterator[None]:
    """Errors within name the place of a token."""
    try:
        yield
    except ValueError as wrong:
        raise type(wrong)(f"line {at.line}, column {at.column}: {wrong}") from wrong
