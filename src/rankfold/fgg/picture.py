"""What a drawing shows: a rule's right side, or the factor graph a derivation generates. Read next: `draw.py`."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rankfold.fgg.derivation import Derivation
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Node, Rule

Kind = Literal["variable", "external", "observed", "factor", "nonterminal"]


class Dot(NamedTuple):
    """A node (round) or an edge (square) of a drawn hypergraph."""

    text: str
    kind: Kind


class Picture(NamedTuple):
    """A hypergraph to draw: dots by number, and lines from the dot of an edge to the dots of its nodes, in order."""

    title: str
    dots: tuple[Dot, ...]
    lines: tuple[tuple[int, int], ...]


def rule_picture(hrg: HRG, rule: Rule) -> Picture:
    """The right side of a rule."""
    dots: list[Dot] = []
    lines: list[tuple[int, int]] = []
    place = {}
    for node in rule.right.nodes:
        place[node.name] = len(dots)
        kind: Kind = "external" if node.name in rule.right.externals else "variable"
        dots.append(
            Dot(node.name if node.observed is None else _value(node), "observed" if node.observed is not None else kind)
        )
    for edge in rule.right.edges:
        lines += [(len(dots), place[name]) for name in edge.nodes]
        dots.append(Dot(edge.label, "factor" if hrg.label(edge.label).is_terminal else "nonterminal"))
    title = f"{rule.left}({', '.join(rule.right.externals)}) ->"
    return Picture(title, tuple(dots), tuple(lines))


def derivation_picture(hrg: HRG, derivation: Derivation) -> Picture:
    """The factor graph a derivation generates: external nodes are the nodes of the edges that were replaced."""
    dots: list[Dot] = []
    lines: list[tuple[int, int]] = []
    ahead: list[tuple[Derivation, list[int]]] = [(derivation, [])]
    while ahead:
        part, attached = ahead.pop()
        rule = hrg.rule(part.rule)
        place = dict(zip(rule.right.externals, attached, strict=True))
        for node in rule.right.nodes:
            if node.name not in place:
                place[node.name] = len(dots)
                text = (
                    f"{node.name} = {_named(hrg, node, part.values[node.name])}"
                    if node.name in part.values
                    else node.name
                )
                dots.append(Dot(text, "variable" if node.observed is None else "observed"))
        for edge in hrg.terminal_edges(rule):
            lines += [(len(dots), place[name]) for name in edge.nodes]
            dots.append(Dot(edge.label, "factor"))
        inner = zip(hrg.nonterminal_edges(rule), part.children, strict=True)
        ahead += reversed([(child, [place[name] for name in edge.nodes]) for edge, child in inner])
    return Picture("", tuple(dots), tuple(lines))


def _named(hrg: HRG, node: Node, value: int) -> str:
    values = hrg.domain(node.domain).values
    return values[value] if values else str(value)


def _value(node: Node) -> str:
    if isinstance(node.observed, tuple):
        return "{} = {}[{}]".format(node.name, *node.observed)
    return f"{node.name} = {node.observed}"
