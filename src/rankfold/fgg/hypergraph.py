"""Domains, labels, nodes, edges, fragments, rules and derivations as frozen values, and functions of their names.

The values check nothing: `hrg.py` validates a whole grammar once. The definitions named here are those of "Dynamic
programming in rank space" (Yang, Liu and Tu, 2022), after Chiang and Riley (2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from rankfold.errors import DomainError

Cell = tuple[str, int]
_SHOWN = 8  # names in a message; a conjoined grammar has thousands


@dataclass(frozen=True)
class Domain:
    """The set of possible values of a node label (Omega of Definition 2), numbered from 0.

    `size` is None until it is known (`with_domains`, `with_factors`). A union such as `N+P` has `parts`, whose
    values are numbered part after part. `values` optionally names the values. Nodes of a domain with `is_observed`
    are the symbols of a string: a query fixes them. Values of a domain with `is_rank` are terms of a factored
    tensor (`decompose`).
    """

    name: str
    size: int | None = None
    parts: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    is_observed: bool = False
    is_rank: bool = False


@dataclass(frozen=True)
class Label:
    """A label of edges (Definition 1): terminal (a factor) or nonterminal, with the domains of the nodes it touches.

    `is_batched`: the factor has a leading axis "b", one table for each sentence of a batch. In a conjoined grammar,
    `origin` is the label of the first grammar and `span` the two states of the query between which the nonterminal
    derives its words.
    """

    name: str
    type: tuple[str, ...]
    is_terminal: bool
    is_batched: bool = False
    origin: str | None = None
    span: tuple[int, int] | None = None

    @property
    def arity(self) -> int:
        """The number of nodes an edge of this label attaches to."""
        return len(self.type)


@dataclass(frozen=True)
class Node:
    """A node (Definition 1; a variable, Definition 2), named within its fragment, labelled by its domain.

    `observed` is None for a variable that is summed over, an int for a constant, or a cell `(name, i)`: the value
    is `grammar.observed[name][..., i]`, one for each sentence of a batch. Every factor that touches an observed
    node is sliced there; the node takes no part in any sum. The structure of a grammar does not depend on the
    observed values.
    """

    name: str
    domain: str
    observed: int | Cell | None = None


@dataclass(frozen=True)
class Edge:
    """A hyperedge (Definition 1): a label and the names of its endpoints, in order, not necessarily distinct."""

    label: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fragment:
    """A hypergraph fragment (Definition 3): nodes, edges and the names of the external nodes, in order, all distinct.

    Nodes are kept in the order in which externals and edges name them, so equal fragments compare equal.
    """

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    externals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        order = {name: place for place, name in enumerate(dict.fromkeys(self._named()))}
        nodes = sorted(self.nodes, key=lambda node: order.get(node.name, len(order)))
        object.__setattr__(self, "nodes", tuple(nodes))

    def _named(self) -> Iterator[str]:
        yield from self.externals
        for edge in self.edges:
            yield from edge.nodes

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)


@dataclass(frozen=True)
class Rule:
    """A rule X -> R (Definition 4): replace an edge labelled `left` by the fragment `right`.

    `template`: in a conjoined grammar, the name of the first grammar's rule it is an instance of; in a query
    grammar, the only rule it conjoins with (None: any that fits).
    """

    name: str
    left: str
    right: Fragment
    template: str | None = None


@dataclass(frozen=True)
class Derivation:
    """A derivation with an assignment: a rule by its name, the values of its nodes, a derivation for each nonterminal.

    `log_weight` is the logarithm of the product of all factors, here and below, where it is known.
    """

    rule: str
    values: Mapping[str, int]
    children: tuple[Derivation, ...] = ()
    log_weight: float | None = None

    def __iter__(self) -> Iterator[Derivation]:
        """This derivation and all below it, parents first."""
        ahead = [self]
        while ahead:
            found = ahead.pop()
            yield found
            ahead += reversed(found.children)


def expect_unique(names: Iterable[str], kind: str) -> None:
    """Raise if a name appears twice."""
    for name, times in Counter(names).items():
        if times > 1:
            raise DomainError(f"There are {times} of one name: {kind} {name!r}. Rename all but one.")


def expect_known(name: str, known: Mapping[str, object], where: str, kind: str) -> None:
    """Raise unless a name, used at `where`, is one of the known names."""
    if name not in known:
        raise DomainError(f"There is no {kind} {name!r}, named by {where}.\n  {suggestion(name, known)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or the known names, as a sentence."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    shown = ", ".join(map(repr, names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return f"Did you mean {near[0]!r}?" if near else f"Known: {shown or 'none'}."


def fresh_name(stem: str, taken: Collection[str]) -> str:
    """The stem with the first number that makes it new."""
    number = 1
    while f"{stem}{number}" in taken:
        number += 1
    return f"{stem}{number}"


class Names(set[str]):
    """Names that are taken."""

    def fresh(self, name: str) -> str:
        """The name with as many primes as make it new; it is taken then."""
        while name in self:
            name += "'"
        self.add(name)
        return name
