"""Drawings: every node, edge and attachment is there, and the SVG is well-formed and without overlaps."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from rankfold.fgg import Derivation, conjoin, parse, string_query, to_dot, to_svg
from tests.fgg.plain import HMM, PCFG, example

SVG = "{http://www.w3.org/2000/svg}"
BEST = Derivation(
    "S.1[0,2]",
    {"z": 1},
    (Derivation("X.1[0,1,2]", {"z": 1, "w": 2, "y": 0}, (Derivation("X.2[1,2]", {"z": 0, "w": 0}),)),),
)


def test_graphviz_text_has_a_cluster_for_each_rule() -> None:
    g = parse(PCFG)
    text = to_dot(g)
    assert text.count("subgraph") == len(g.rules)
    assert 'label="X(n) ->"' in text
    attachments = sum(len(edge.nodes) for rule in g.rules for edge in rule.right.edges)
    assert text.count(" -- ") == attachments
    assert len(re.findall(r"fillcolor=black fontcolor=white", text)) == 3  # one external node in three of four rules
    assert text.count("{") == text.count("}")


def test_one_rule_alone() -> None:
    g = parse(HMM)
    text = to_dot(g, g.rules[1])
    assert text.count("subgraph") == 1
    assert 'd0_3 [xlabel="emit" shape=square' in text
    assert {"d0_3 -- d0_0;", "d0_3 -- d0_1;", "d0_5 -- d0_2;"} <= {line.strip() for line in text.splitlines()}


def test_a_derivation_is_its_factor_graph() -> None:
    g = conjoin(example(HMM), string_query(["c", "a"]))
    text = to_dot(g, BEST)
    # Two states, two words; initial, next and two emissions; no nonterminal is left.
    assert text.count("shape=circle") == 4
    assert text.count("shape=square") == 4
    assert "shape=box" not in text
    assert text.count(" -- ") == 1 + 2 + 2 + 2
    assert 'label="w = c"' in text
    assert 'label="y = 0"' in text


def test_rows_go_from_the_external_node_down() -> None:
    g = parse(HMM)
    words = {e.text: float(e.attrib["y"]) for e in ElementTree.fromstring(to_svg(g, g.rules[1])).iter(f"{SVG}text")}
    assert words["z"] < words["next"] < words["y"] < words["X"]
    assert words["z"] < words["emit"] < words["w"]


def circles(svg: str) -> list[tuple[float, float, float, float]]:
    boxes = [element.attrib for element in ElementTree.fromstring(svg).iter(f"{SVG}rect")]
    return [(float(b["x"]), float(b["y"]), float(b["width"]), float(b["height"])) for b in boxes]


def test_svg_is_well_formed_complete_and_without_overlaps() -> None:
    wide = (
        "S() -> VeryLongNameOfANonterminal(n: N) VeryLongNameOfANonterminal(n)\nVeryLongNameOfANonterminal(n: N) -> 1"
    )
    g = parse(PCFG + 'S() -> `a<b&"c"`(n: N)\n' + wide)
    conjoined = conjoin(example(HMM), string_query(["c", "a"]))
    whole = sum(len(rule.right.nodes) + len(rule.right.edges) for rule in g.rules)
    for svg, number in [(to_svg(g), whole), (to_svg(conjoined, BEST), 8)]:
        root = ElementTree.fromstring(svg)
        boxes = circles(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)
        for index, (x, y, w, h) in enumerate(boxes):
            for u, v, s, t in boxes[index + 1 :]:
                assert x + w <= u or u + s <= x or y + h <= v or v + t <= y
        assert len(boxes) == number
    assert 'a<b&"c"' in [element.text for element in ElementTree.fromstring(to_svg(g)).iter(f"{SVG}text")]
    assert "w = c" in [element.text for element in ElementTree.fromstring(to_svg(conjoined, BEST)).iter(f"{SVG}text")]
