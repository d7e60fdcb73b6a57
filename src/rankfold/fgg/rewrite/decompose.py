"""Tensor decomposition on factors (section 2.2): a large factor becomes small ones that meet in a new rank node.

F[x, y, z] = sum_q U[x, q] V[y, q] W[z, q]          f(x, y, z)  ->  f_0(x, q) f_1(y, q) f_2(z, q)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.fgg.factors import Factor, Factored
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hypergraph import Domain, Edge, Fragment, Label, Names, Node, Rule, fresh_name

Given = Factored | Sequence[Tensor | nn.Module]
Parts = list[tuple[Tensor | nn.Module, tuple[int, ...]]]  # with the places of their nodes
Joined = tuple[str, list[tuple[str, tuple[int, ...]]]]  # the rank's domain, and the parts' labels and places


def decompose(g: Grammar, factors: Mapping[str, Given] | None = None) -> Grammar:
    """The same grammar with these factors given by their parts, joined by a rank node in every fragment they are in.

    `factors[label]` is a `Factored`, or matrices (or modules that give them), one for each node, ranks last; None: all
    factors of the grammar that are `Factored`. Nothing is ever multiplied out. Parts that are one tensor share one
    label, so give factors that have parts in common in one call: factors derived from them are then computed once. The
    tensor of the parts replaces the label's former factor.
    """
    if factors is None:
        factors = {name: value for name, value in g.factors.items() if isinstance(value, Factored)}
    parts = {label: _parts(g, label, given) for label, given in factors.items()}
    naming = _Naming(g, parts)
    rules = tuple(_rewrite(rule, naming.edges) for rule in g.rules)
    labels = tuple(label for label in g.labels if label.name not in parts)
    return Grammar.of(
        (*g.domains, *naming.domains),
        (*labels, *naming.labels),
        rules,
        g.start,
        {**{name: value for name, value in g.factors.items() if name not in parts}, **naming.factors},
        g.observed,
    )


def _parts(g: Grammar, label: str, given: Given) -> Parts:
    """Each part with the places of its nodes; raises where they do not fit the label."""
    own = g.label(label)
    if not own.is_terminal:
        raise DomainError(f"Label {label!r} is a nonterminal: only factors are decomposed.")
    if own.is_batched:
        raise UnsupportedError(
            f"Factor {label!r} is batched, and parts have no batch axis.\n  Decompose it before the query."
        )
    found: Parts = list(given.factors) if isinstance(given, Factored) else [(x, (k,)) for k, x in enumerate(given)]
    places = sorted(place for _, own_places in found for place in own_places)
    if places != list(range(own.arity)):
        raise ShapeError(
            f"Factor {label!r} attaches to {own.arity} nodes ({', '.join(own.type)}), its parts to {len(places)}.\n"
            "  Give one matrix for each node, ranks last."
        )
    found.sort(key=lambda pair: pair[1])  # as the label names its nodes, so that symbols stay in their order
    symbols = [k for _, own_places in found for k in own_places if g.domain(own.type[k]).is_observed]
    if symbols != sorted(symbols):
        raise UnsupportedError(
            f"The parts of factor {label!r} would name the symbols of a string in another order than it does.\n"
            "  Give each of its symbols to a part of its own."
        )
    ranks = set()
    for part, own_places in found:
        if isinstance(part, nn.Module):
            continue
        sizes = [g.hrg.known_size(own.type[place]) for place in own_places]
        shape = tuple(part.shape)
        if len(shape) != len(sizes) + 1 or any(n not in (None, m) for n, m in zip(sizes, shape, strict=False)):
            wanted = ", ".join(
                [*(f"{own.type[k]} = {n or '?'}" for k, n in zip(own_places, sizes, strict=True)), "rank"]
            )
            raise ShapeError(
                f"The part of factor {label!r} at {own_places} has shape {shape}, but ({wanted}) was expected."
            )
        ranks.add(shape[-1])
    if len(ranks) > 1:
        raise ShapeError(f"The parts of factor {label!r} have ranks {sorted(ranks)}, but share their last axis.")
    return found


class _Naming:
    """Labels and rank domains of the parts: one label for one tensor, one domain for parts that are joined."""

    def __init__(self, g: Grammar, parts: Mapping[str, Parts]) -> None:
        self.domains: list[Domain] = []
        self.labels: list[Label] = []
        self.factors: dict[str, Factor] = {}
        self.edges: dict[str, Joined] = {}
        self.taken = Names([label.name for label in g.labels] + [domain.name for domain in g.domains])
        self.seen: dict[tuple[tuple[object, ...], tuple[str, ...]], str] = {}  # by tensor and domains, the rank's last
        for label, own in parts.items():
            types = g.label(label).type
            domain = self._domain(label, own, types)
            found = []
            for k, (part, places) in enumerate(own):
                type_ = (*(types[place] for place in places), domain)
                found.append((self._label(f"{label}_{k}", part, type_), places))
            self.edges[label] = domain, found

    def _domain(self, label: str, own: Parts, types: tuple[str, ...]) -> str:
        """The rank's domain: that of an earlier label with a part in common, else a new one."""
        for part, places in own:
            wanted = tuple(types[place] for place in places)
            for same, known in self.seen:
                if same == _identity(part) and known[:-1] == wanted:
                    return known[-1]
        name = self.taken.fresh(f"R[{label}]")
        parts = sorted((part for part, _ in own), key=lambda part: isinstance(part, nn.Module))  # called if all are
        first = parts[0]() if isinstance(parts[0], nn.Module) else parts[0]
        self.domains.append(Domain(name, int(first.shape[-1]), is_rank=True))
        return name

    def _label(self, name: str, part: Tensor | nn.Module, type_: tuple[str, ...]) -> str:
        key = _identity(part), type_
        if key not in self.seen:
            self.seen[key] = self.taken.fresh(name)
            self.labels.append(Label(self.seen[key], type_, is_terminal=True))
            self.factors[self.seen[key]] = part
        return self.seen[key]


def _identity(part: Tensor | nn.Module) -> tuple[object, ...]:
    """Equal only for one and the same tensor."""
    if isinstance(part, nn.Module):
        return (id(part),)
    return part.data_ptr(), tuple(part.shape), part.stride(), part.dtype, part.grad_fn is None or id(part)


def _rewrite(rule: Rule, edges: Mapping[str, Joined]) -> Rule:
    if not any(edge.label in edges for edge in rule.right.edges):
        return rule
    nodes, found = list(rule.right.nodes), []
    for edge in rule.right.edges:
        if edge.label not in edges:
            found.append(edge)
            continue
        domain, parts = edges[edge.label]
        rank = fresh_node("q", nodes)
        nodes.append(Node(rank, domain))
        found += [Edge(label, (*(edge.nodes[place] for place in places), rank)) for label, places in parts]
    return replace(rule, right=Fragment(tuple(nodes), tuple(found), rule.right.externals))


def fresh_node(name: str, nodes: Sequence[Node]) -> str:
    """The name, or with the first number that makes it new."""
    taken = {node.name for node in nodes}
    return fresh_name(name, taken) if name in taken else name
