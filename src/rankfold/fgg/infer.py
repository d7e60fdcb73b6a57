"""The domains of nodes and labels that a text leaves to be inferred. Read next: `elaborate.py`.

What is written spreads from labels to the nodes they touch and from nodes to labels, until nothing changes. A node
that touches a union and some of its parts is of the union.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankfold.fgg.hypergraph import Cell, Domain
from rankfold.fgg.statements import Argument, Atom, RuleLine
from rankfold.fgg.tokens import Token, text_error


@dataclass
class LabelDraft:
    """What is known of a label: its first token and the domain of each position so far."""

    at: Token
    is_terminal: bool
    type: list[str | None]
    is_batched: bool = False


@dataclass
class RuleDraft:
    """A rule with its nodes by name: the argument that wrote each first, its domain so far, its observed value."""

    line: RuleLine
    first: dict[str, Argument] = field(default_factory=dict)
    domain: dict[str, str | None] = field(default_factory=dict)
    observed: dict[str, int | str | Cell] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    atoms: list[tuple[Atom, list[str]]] = field(default_factory=list)
    externals: list[str] = field(default_factory=list)


def contains(domains: Mapping[str, Domain], union: str, part: str) -> bool:
    """Whether a domain is a part of a union, or of its parts."""
    return any(name == part or contains(domains, name, part) for name in domains[union].parts)


def infer_domains(drafts: list[RuleDraft], labels: Mapping[str, LabelDraft], domains: Mapping[str, Domain]) -> None:
    """Fill in the domains of all nodes and labels; raises at a node whose domain nothing tells."""
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


_Places = list[tuple[LabelDraft, int, str]]


def _places(draft: RuleDraft, labels: Mapping[str, LabelDraft]) -> _Places:
    """Each place where a label meets a node of the rule: label, position and node, the left side's first."""
    atoms = [(draft.line.left, draft.externals), *draft.atoms]
    return [(labels[atom.label.text], position, name) for atom, names in atoms for position, name in enumerate(names)]


def _to_nodes(draft: RuleDraft, places: _Places, domains: Mapping[str, Domain]) -> bool:
    changed = False
    for name, domain in draft.domain.items():
        if domain is not None:
            continue
        known = [found for label, i, node in places if node == name and (found := label.type[i]) is not None]
        if known:
            unions = [d for d in known if all(d == other or contains(domains, d, other) for other in known)]
            draft.domain[name] = known[0] if name in draft.externals or not unions else unions[0]
            changed = True
    return changed


def _to_a_label(draft: RuleDraft, places: _Places) -> bool:
    """Tell one label what a node knows; one at a time, so that nodes hear of it before others guess."""
    for label, position, name in places:
        if label.type[position] is None and draft.domain[name] is not None:
            label.type[position] = draft.domain[name]
            return True
    return False
