"""A hyperedge replacement graph grammar (Definition 4), validated once, with its domains (Omega of Definition 2).

This is the structure of a grammar without its numbers: hashable, so that schedules and conjunctions are cached by it.
A label `in[N,N+P]`, an inclusion, ties a node of a union of domains to a node of one of its parts and needs no tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError
from rankfold.fgg.hypergraph import Domain, Edge, Label, Node, Rule, expect_known, expect_unique

ENTRIES = 2**63
NESTED = 64  # unions of unions: they are walked by recursion
_INCLUSION = re.compile(r"in\[([^,\]]+),([^,\]]+)\]")


@dataclass(frozen=True, eq=True)
class HRG:
    """Definition 4: labels (terminal and nonterminal), rules and a start symbol; a start symbol attaches to no node.

    Raises on repeated or unknown names, wrong arity, a node whose domain is not the one its edge's label wants, and
    external nodes that do not exist or do not fit the left side.
    """

    domains: tuple[Domain, ...]
    labels: tuple[Label, ...]
    rules: tuple[Rule, ...]
    start: str

    def __post_init__(self) -> None:
        _check_domains(self)
        for label in self.labels:
            for name in label.type:
                expect_known(name, self._domain, f"the type of label {label.name!r}", "domain")
            sizes = [self.known_size(name) or 1 for name in label.type]
            if math.prod(sizes) >= ENTRIES:
                raise ShapeError(
                    f"Label {label.name!r} has {' x '.join(map(str, sizes))} values, more than 64 bits count.\n"
                    "  Check the sizes of its domains."
                )
            if label.is_batched and not label.is_terminal:
                raise DomainError(f"Nonterminal {label.name!r} is batched, but only factors have a batch axis.")
        expect_known(self.start, self._label, "the start symbol", "label")
        start = self._label[self.start]
        if start.is_terminal or start.arity:
            what = "is a terminal" if start.is_terminal else f"attaches to {start.arity} nodes"
            raise DomainError(
                f"The start symbol {self.start!r} {what}, but must be a nonterminal without nodes.\n"
                f"  Add a rule such as S() -> root(x) {self.start}(x) and start with S."
            )
        expect_unique((rule.name for rule in self.rules), "rule")
        for rule in self.rules:
            _check_rule(self, rule)

    has_spans: ClassVar[bool] = False  # whether it is held as a pattern of spans

    @property
    def plain(self) -> HRG:
        """The structure with its rules one by one."""
        return self

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.domains, self.labels, self.rules, self.start))

    @cached_property
    def _domain(self) -> Mapping[str, Domain]:
        expect_unique((domain.name for domain in self.domains), "domain")
        return {domain.name: domain for domain in self.domains}

    @cached_property
    def _label(self) -> Mapping[str, Label]:
        expect_unique((label.name for label in self.labels), "label")
        return {label.name: label for label in self.labels}

    @cached_property
    def _rules_of(self) -> Mapping[str, tuple[Rule, ...]]:
        found: dict[str, list[Rule]] = {label.name: [] for label in self.labels if not label.is_terminal}
        for rule in self.rules:
            found[rule.left].append(rule)
        return {name: tuple(rules) for name, rules in found.items()}

    @cached_property
    def _rule(self) -> Mapping[str, Rule]:
        return {rule.name: rule for rule in self.rules}

    def domain(self, name: str) -> Domain:
        """The domain of that name."""
        expect_known(name, self._domain, "the question", "domain")
        return self._domain[name]

    def label(self, name: str) -> Label:
        """The label of that name."""
        expect_known(name, self._label, "the question", "label")
        return self._label[name]

    def rule(self, name: str) -> Rule:
        """The rule of that name."""
        expect_known(name, self._rule, "the question", "rule")
        return self._rule[name]

    def rules_of(self, label: str) -> tuple[Rule, ...]:
        """The rules with this nonterminal on the left (P^X of equation 3)."""
        expect_known(label, self._rules_of, "the question", "nonterminal")
        return self._rules_of[label]

    def nonterminal_edges(self, rule: Rule) -> tuple[Edge, ...]:
        """The edges of the rule's right side that are still to be replaced, in the order they were written."""
        return tuple(edge for edge in rule.right.edges if not self._label[edge.label].is_terminal)

    def terminal_edges(self, rule: Rule) -> tuple[Edge, ...]:
        """The factors of the rule's right side."""
        return tuple(edge for edge in rule.right.edges if self._label[edge.label].is_terminal)

    @cached_property
    def cells(self) -> Mapping[str, tuple[int, frozenset[str]]]:
        """For each observed table that nodes look into: the positions it must have, and the domains of its values."""
        found: dict[str, tuple[int, set[str]]] = {}
        for rule in self.rules:
            for node in rule.right.nodes:
                if isinstance(node.observed, tuple):
                    name, index = node.observed
                    length, domains = found.get(name, (0, set()))
                    found[name] = (max(length, index + 1), domains | {node.domain})
        return {name: (length, frozenset(domains)) for name, (length, domains) in found.items()}

    def size(self, domain: str) -> int:
        """The number of values of a domain; a union's is the sum of its parts'. Raises while it is not known."""
        found = self.known_size(domain)
        if found is None:
            raise ShapeError(
                f"The size of domain {domain!r} is not known yet.\n"
                f"  Write domain {domain} = 5, call with_domains({{{domain!r}: 5}}), or attach a factor that has it; "
                f"for rankfold explain, --set {domain}=5."
            )
        return found

    def known_size(self, domain: str) -> int | None:
        """The number of values of a domain, or None while it is not known."""
        expect_known(domain, self._domain, "the question", "domain")
        return size_of(self._domain, domain)

    def part(self, part: str, union: str) -> range | None:
        """The values of `union` that are those of its part, or None if it is not one; parts of parts count."""
        offset = 0
        for name in self.domain(union).parts:
            inner = range(self.size(name)) if name == part else self.part(part, name)
            if inner is not None:
                return range(offset + inner.start, offset + inner.stop)
            offset += self.size(name)
        return None

    def contains(self, union: str, part: str) -> bool:
        """Whether `part` is one of the parts of `union`, or of their parts."""
        return is_part(self._domain, part, union)

    def with_domains(self, sizes: Mapping[str, int]) -> HRG:
        """The same structure with these sizes of domains."""
        for name in sizes:
            domain = self.domain(name)
            if domain.parts:
                raise ShapeError(f"Domain {name!r} is a union: give the sizes of its parts {', '.join(domain.parts)}.")
        return replace(self, domains=tuple(replace(d, size=sizes.get(d.name, d.size)) for d in self.domains))


def size_of(domains: Mapping[str, Domain], name: str) -> int | None:
    """The number of values of a domain, the sum of its parts' if it is a union, or None while it is not known."""
    domain = domains[name]
    if not domain.parts:
        return domain.size
    sizes = [size_of(domains, part) for part in domain.parts]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def is_part(domains: Mapping[str, Domain], part: str, union: str) -> bool:
    """Whether a domain is one of the parts of a union, or of their parts."""
    return any(name == part or is_part(domains, part, name) for name in domains[union].parts)


def inclusion_label(part: str, union: str) -> Label:
    """The label `in[part,union]`, which attaches to a node of the part and a node of the union."""
    return Label(f"in[{part},{union}]", (part, union), is_terminal=True)


def is_inclusion(label: str) -> bool:
    """Whether a label is an inclusion by its name."""
    return _INCLUSION.fullmatch(label) is not None


def inclusion(hrg: HRG, label: str, *, dtype: torch.dtype, device: torch.device) -> Tensor:  # "part union"
    """The matrix of an inclusion: 1 where the union's value is the part's value, else 0."""
    part, union = hrg.label(label).type
    values = hrg.part(part, union)
    if values is None:
        raise DomainError(f"Label {label!r} names {part!r} as a part of {union!r}, which it is not.")
    return torch.eye(hrg.size(union), dtype=dtype, device=device)[values.start : values.stop]


def _check_domains(hrg: HRG) -> None:
    for domain in hrg.domains:
        for part in domain.parts:
            expect_known(part, hrg._domain, f"domain {domain.name!r}", "domain")
    expect_unions({domain.name: domain.parts for domain in hrg.domains})
    for domain in hrg.domains:
        if domain.parts and (domain.size is not None or domain.values):
            raise ShapeError(f"Domain {domain.name!r} is a union: its size and values are those of its parts.")
        if domain.size is not None and not 1 <= domain.size < ENTRIES:
            raise ShapeError(
                f"Domain {domain.name!r} has size {domain.size}, but needs at least one value, and fewer than 2^63."
            )
        if domain.values and len(domain.values) != domain.size:
            raise ShapeError(f"Domain {domain.name!r} has size {domain.size}, but names {len(domain.values)} values.")
        expect_unique(domain.values, f"value of domain {domain.name!r},")


def expect_unions(parts: Mapping[str, tuple[str, ...]]) -> None:
    """Raise where a union is a part of itself, has a part twice (parts of parts count), or is nested too deep."""
    within: dict[str, tuple[str, ...]] = {}  # all that a domain is made of
    depth: dict[str, int] = {}
    for root in parts:
        path = [root]
        while path:
            name = path[-1]
            waiting = [part for part in parts.get(name, ()) if part not in within]
            if name in within:
                path.pop()
            elif waiting:
                if waiting[0] in path:
                    around = (*path[path.index(waiting[0]) :], waiting[0])
                    raise DomainError(f"Domain {waiting[0]!r} is a part of itself: {' > '.join(around[:NESTED])}.")
                path.append(waiting[0])
            else:
                own = parts.get(name, ())
                within[name] = tuple(x for part in own for x in (part, *within[part]))
                depth[name] = 1 + max((depth[part] for part in own), default=-1)
                if depth[name] > NESTED:
                    raise DomainError(f"Domain {name!r} is a union of unions, nested more than {NESTED} deep.")
                if len(set(within[name])) < len(within[name]):
                    again = next(x for x in within[name] if within[name].count(x) > 1)
                    raise DomainError(
                        f"Domain {name!r} repeats a part: {again!r} is in {'+'.join(own)} more than once. "
                        "Each part appears once."
                    )


def _check_rule(hrg: HRG, rule: Rule) -> None:
    where = f"rule {rule.name!r}"
    expect_known(rule.left, hrg._label, where, "label")
    left = hrg._label[rule.left]
    if left.is_terminal:
        raise DomainError(
            f"The left side of {where} is the terminal {rule.left!r}, but only nonterminals are replaced."
        )
    nodes = {node.name: node for node in rule.right.nodes}
    if len(nodes) < len(rule.right.nodes):
        expect_unique((node.name for node in rule.right.nodes), f"node of {where},")
    for node in nodes.values():
        _check_node(hrg, node, where)
    _check_attached(hrg, nodes, rule.right.externals, left, f"the left side of {where}", "external node")
    if len(set(rule.right.externals)) < len(rule.right.externals):
        expect_unique(rule.right.externals, f"external node of {where},")
    for name in rule.right.externals:
        if nodes[name].observed is not None:
            raise DomainError(
                f"External node {name!r} of {where} is observed, but only inner nodes are.\n"
                "  Observe an inner node and tie it to the external one by a factor."
            )
    for edge in rule.right.edges:
        expect_known(edge.label, hrg._label, where, "label")
        _check_attached(hrg, nodes, edge.nodes, hrg._label[edge.label], f"an edge {edge.label!r} of {where}", "node")
        if not hrg._label[edge.label].is_terminal and any(nodes[name].observed is not None for name in edge.nodes):
            raise DomainError(
                f"Nonterminal {edge.label!r} of {where} touches an observed node, but only factors do.\n"
                "  Let it touch a variable and tie that to the observed node by a factor."
            )


def _check_node(hrg: HRG, node: Node, where: str) -> None:
    expect_known(node.domain, hrg._domain, f"node {node.name!r} of {where}", "domain")
    if not isinstance(node.observed, int):
        return
    size = hrg.known_size(node.domain)
    if node.observed < 0 or (size is not None and node.observed >= size):
        raise DomainError(
            f"Node {node.name!r} of {where} is observed as {node.observed}, but domain {node.domain!r} has the "
            f"values 0 to {'...' if size is None else size - 1}."
        )


def _check_attached(
    hrg: HRG, nodes: Mapping[str, Node], attached: tuple[str, ...], label: Label, where: str, kind: str
) -> None:
    """Raise unless the attached nodes exist, are as many as the label wants, and of its domains."""
    if len(attached) != label.arity:
        raise ShapeError(
            f"Label {label.name!r} attaches to {label.arity} nodes ({', '.join(label.type)}), but {where} has "
            f"{len(attached)}: ({', '.join(attached)})."
        )
    for position, (name, domain) in enumerate(zip(attached, label.type, strict=True)):
        expect_known(name, nodes, where, kind)
        if nodes[name].domain != domain:
            hint = (
                f"\n  Restrict it to the part by a factor in[{domain},{nodes[name].domain}], as texts do by themselves."
                if hrg.contains(nodes[name].domain, domain)
                else ""
            )
            raise DomainError(
                f"{kind.capitalize()} {name!r} of {where} has domain {nodes[name].domain!r}, but position {position} "
                f"of {label.name!r} wants {domain!r}.{hint}"
            )
