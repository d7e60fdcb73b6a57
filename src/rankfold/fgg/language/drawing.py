"""Drawings of rules and of the factor graphs of derivations: text for graphviz, and SVG with a layout of our own.

Variables are round, external ones black, observed ones grey; factors are small black squares, nonterminals boxes.
"""

from __future__ import annotations

import json
from html import escape
from typing import Literal, NamedTuple

from rankfold.fgg.grammar import Grammar
from rankfold.fgg.hrg import HRG
from rankfold.fgg.hypergraph import Derivation, Node, Rule

Kind = Literal["variable", "external", "observed", "factor", "nonterminal"]
_STYLE = {
    "variable": 'shape=circle style=""',
    "external": "shape=circle style=filled fillcolor=black fontcolor=white",
    "observed": "shape=circle style=filled fillcolor=lightgrey",
    "factor": 'shape=square style=filled fillcolor=black label="" width=0.12 height=0.12',
    "nonterminal": 'shape=box style=""',
}
_STEP_X, _STEP_Y, _RADIUS, _LETTER = 74, 54, 13, 7  # pixels: between dots, between rows, of a circle, of a letter


class _Dot(NamedTuple):
    """A node (round) or an edge (square) of a drawn hypergraph."""

    text: str
    kind: Kind


class _Picture(NamedTuple):
    """A hypergraph to draw: dots by number, and lines from the dot of an edge to the dots of its nodes, in order."""

    title: str
    dots: tuple[_Dot, ...]
    lines: tuple[tuple[int, int], ...]


def to_dot(grammar: Grammar, what: Rule | Derivation | None = None) -> str:
    """Graphviz text of a rule or a derivation's factor graph; of all rules, one cluster each, without `what`."""
    lines = ["graph {", "  rankdir=TB; node [fontsize=10 margin=0.03]; edge [fontsize=8];"]
    for number, picture in enumerate(_pictures(grammar, what)):
        lines.append(f"  subgraph cluster{number} {{ label={_quote(picture.title)}; color=transparent;")
        for dot, (text, kind) in enumerate(picture.dots):
            label = f"xlabel={_quote(text)}" if kind == "factor" else f"label={_quote(text)}"
            lines.append(f"    d{number}_{dot} [{label} {_STYLE[kind]}];")
        for source, target in picture.lines:
            lines.append(f"    d{number}_{source} -- d{number}_{target};")
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def to_svg(grammar: Grammar, what: Rule | Derivation | None = None) -> str:
    """An SVG image of a rule or a derivation's factor graph; of all rules, below each other, without `what`.

    Dots stand in rows by their distance from the first ones: external nodes, or what the start's rule names first.
    """
    parts: list[str] = []
    top, width = 0, 0
    for picture in _pictures(grammar, what):
        drawn, right, bottom = _svg_elements(picture, top)
        parts += drawn
        top, width = bottom, max(width, right)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}"'
    return "\n".join([head + ' font-family="sans-serif" font-size="11">', *parts, "</svg>"]) + "\n"


def _pictures(grammar: Grammar, what: Rule | Derivation | None) -> list[_Picture]:
    if isinstance(what, Derivation):
        return [_derivation_picture(grammar.hrg, what)]
    return [_rule_picture(grammar.hrg, rule) for rule in ([what] if isinstance(what, Rule) else grammar.rules)]


def _rule_picture(hrg: HRG, rule: Rule) -> _Picture:
    """The right side of a rule."""
    dots: list[_Dot] = []
    lines: list[tuple[int, int]] = []
    place = {}
    for node in rule.right.nodes:
        place[node.name] = len(dots)
        kind: Kind = "external" if node.name in rule.right.externals else "variable"
        dots.append(
            _Dot(
                node.name if node.observed is None else _observed_text(node),
                "observed" if node.observed is not None else kind,
            )
        )
    for edge in rule.right.edges:
        lines += [(len(dots), place[name]) for name in edge.nodes]
        dots.append(_Dot(edge.label, "factor" if hrg.label(edge.label).is_terminal else "nonterminal"))
    title = f"{rule.left}({', '.join(rule.right.externals)}) ->"
    return _Picture(title, tuple(dots), tuple(lines))


def _derivation_picture(hrg: HRG, derivation: Derivation) -> _Picture:
    """The factor graph a derivation generates: external nodes are the nodes of the edges that were replaced."""
    dots: list[_Dot] = []
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
                    f"{node.name} = {_value_name(hrg, node, part.values[node.name])}"
                    if node.name in part.values
                    else node.name
                )
                dots.append(_Dot(text, "variable" if node.observed is None else "observed"))
        for edge in hrg.terminal_edges(rule):
            lines += [(len(dots), place[name]) for name in edge.nodes]
            dots.append(_Dot(edge.label, "factor"))
        inner = zip(hrg.nonterminal_edges(rule), part.children, strict=True)
        ahead += reversed([(child, [place[name] for name in edge.nodes]) for edge, child in inner])
    return _Picture("", tuple(dots), tuple(lines))


def _value_name(hrg: HRG, node: Node, value: int) -> str:
    values = hrg.domain(node.domain).values
    return values[value] if values else str(value)


def _observed_text(node: Node) -> str:
    if isinstance(node.observed, tuple):
        return "{} = {}[{}]".format(node.name, *node.observed)
    return f"{node.name} = {node.observed}"


def _rows(picture: _Picture) -> list[list[int]]:
    """The dots in rows: breadth first from external nodes, or from the first dot; pieces apart start at the top."""
    near: dict[int, list[int]] = {dot: [] for dot in range(len(picture.dots))}
    for source, target in picture.lines:
        near[source].append(target)
        near[target].append(source)
    depth: dict[int, int] = {}
    first = [dot for dot, (_, kind) in enumerate(picture.dots) if kind == "external"]
    for root in (first, *([dot] for dot in near)):
        row = [dot for dot in root if dot not in depth]
        level = 0
        while row:
            depth |= dict.fromkeys(row, level)
            row = list(dict.fromkeys(n for dot in row for n in near[dot] if n not in depth))
            level += 1
    rows: list[list[int]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for dot, level in depth.items():
        rows[level].append(dot)
    return rows


def _svg_elements(picture: _Picture, top: int) -> tuple[list[str], int, int]:
    """The SVG elements of a picture whose upper edge is at `top`; its right and lower edges."""
    rows = _rows(picture)
    title = len(picture.title) * _LETTER + _STEP_X // 2
    step = max([_STEP_X, *(len(text) * _LETTER + 2 * _RADIUS for text, _ in picture.dots)])
    widest = max((len(row) for row in rows), default=0)
    place = {
        dot: (title + step // 2 + column * step + (widest - len(row)) * step // 2, top + _STEP_Y // 2 + level * _STEP_Y)
        for level, row in enumerate(rows)
        for column, dot in enumerate(row)
    }
    parts = [
        f'<line x1="{place[a][0]}" y1="{place[a][1]}" x2="{place[b][0]}" y2="{place[b][1]}" stroke="grey"/>'
        for a, b in picture.lines
    ]
    for dot, (text, kind) in enumerate(picture.dots):
        parts += _dot(*place[dot], text, kind)
    if picture.title:
        parts.append(f'<text x="8" y="{top + _STEP_Y // 2 + 4}">{escape(picture.title)}</text>')
    return parts, title + widest * step, top + max(len(rows), 1) * _STEP_Y


def _dot(x: int, y: int, text: str, kind: str) -> list[str]:
    if kind == "factor":
        square = f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="black"/>'
        return [square, f'<text x="{x + 7}" y="{y - 6}">{escape(text)}</text>']
    half = max(_RADIUS, len(text) * _LETTER // 2 + 4)
    fill = {"external": "black", "observed": "lightgrey"}.get(kind, "white")
    corner = 0 if kind == "nonterminal" else _RADIUS
    box = (
        f'<rect x="{x - half}" y="{y - _RADIUS}" width="{2 * half}" height="{2 * _RADIUS}" rx="{corner}" fill="{fill}" '
        'stroke="black"/>'
    )
    colour = "white" if kind == "external" else "black"
    return [box, f'<text x="{x}" y="{y + 4}" text-anchor="middle" fill="{colour}">{escape(text)}</text>']


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
