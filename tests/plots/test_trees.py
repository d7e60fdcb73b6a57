"""Drawn trees: the text line by line, and the picture as XML with everything in its place."""

import itertools
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given

from rankfold.analysis.bracketing import right_branching
from rankfold.data.brackets import parse_tree
from rankfold.data.trees import Tree
from rankfold.errors import DataError
from rankfold.plots.trees import INK, ONLY_GOLD, ONLY_PREDICTED, lacking_brackets, save_tree, tree_svg, tree_text
from tests.data.treebanks import trees

GOLD = parse_tree("(S (NP (DT the) (NN dog)) (VP (VBD ran) (S (VP (TO to) (VP (VB hide))))))")
SVG = "{http://www.w3.org/2000/svg}"


def parts(text: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f"{SVG}{tag}")


def test_a_tree_as_text() -> None:
    assert tree_text(GOLD).splitlines() == [
        "S",
        "├─ NP",
        "│  ├─ DT the",
        "│  └─ NN dog",
        "└─ VP",
        "   ├─ VBD ran",
        "   └─ S ─ VP",
        "      ├─ TO to",
        "      └─ VP ─ VB hide",
    ]


def test_text_with_marks_in_ascii() -> None:
    assert tree_text(GOLD, against=right_branching(GOLD.words), ascii_only=True).splitlines() == [
        "S",
        "+- NP *",
        "|  +- DT the",
        "|  `- NN dog",
        "`- VP",
        "   +- VBD ran",
        "   `- S - VP",
        "      +- TO to",
        "      `- VP - VB hide",
    ]
    chain = parse_tree("(S (NN a) (S (VP (VB b) (RB c))))")
    other = parse_tree("(X (X (T a) (T b)) (T c))")
    assert tree_text(chain, against=other, ascii_only=True).splitlines()[2] == "`- S - VP *"
    assert tree_text(parse_tree("(S a (NP b c))"), ascii_only=True).splitlines() == [
        "S",
        "+- a",
        "`- NP",
        "   +- b",
        "   `- c",
    ]


@given(trees)
def test_the_text_has_a_line_for_each_word_and_each_branching(tree: Tree) -> None:
    lines = tree_text(tree).splitlines()
    assert len(lines) == len(tree.words) + sum(len(node.children) > 1 for node in tree.nodes())
    assert [line.split()[-1] for line in lines if line.split()[-1].islower()] == tree.words
    assert tree_text(tree, against=tree) == tree_text(tree)


def test_other_words_are_refused() -> None:
    for draw in (lambda other: tree_text(GOLD, against=other), lambda other: tree_svg(GOLD, predicted=other)):
        with pytest.raises(DataError, match="different words"):
            draw(parse_tree("(NN dog)"))


def test_which_brackets_another_tree_lacks() -> None:
    right = right_branching(GOLD.words)
    assert lacking_brackets(GOLD, right) == {(0, 2)}
    assert lacking_brackets(right, GOLD) == {(1, 5)}


def test_words_on_one_line_and_labels_above_it() -> None:
    text = tree_svg(GOLD)
    place = {part.text: (float(part.get("x", 0)), float(part.get("y", 0))) for part in parts(text, "text")}
    assert len({place[word][1] for word in GOLD.words}) == 1
    across = [place[word][0] for word in GOLD.words]
    assert across == sorted(across)
    assert place["DT"][1] == place["NN"][1] < place["the"][1]
    assert place["NP"][1] < place["DT"][1]
    assert place["NP"][0] == pytest.approx((place["the"][0] + place["dog"][0]) / 2, abs=0.2)  # written to one decimal
    num_nodes = sum(1 for _ in GOLD.nodes())
    assert len(parts(text, "text")) == num_nodes + len(GOLD.words)
    assert len(parts(text, "line")) == num_nodes - 1 + len(GOLD.words)


def test_no_program_paints_over_the_letters() -> None:
    """Letters have a ground of their own below them, and no edge, which some programs paint over them."""
    root = ElementTree.fromstring(tree_svg(GOLD, predicted=right_branching(GOLD.words), title="two"))
    drawn = list(root)
    texts = [at for at, part in enumerate(drawn) if part.tag == f"{SVG}text"]
    assert len(texts) > len(GOLD.words)
    for at in texts:
        assert "stroke" not in drawn[at].attrib
        ground = drawn[at - 1]
        assert ground.tag == f"{SVG}rect"
        left, width = float(ground.get("x", "")), float(ground.get("width", ""))
        top, height = float(ground.get("y", "")), float(ground.get("height", ""))
        assert left <= float(drawn[at].get("x", "")) <= left + width
        assert top < float(drawn[at].get("y", "")) < top + height


def test_the_predicted_tree_hangs_below_with_differences_in_colour() -> None:
    text = tree_svg(GOLD, predicted=right_branching(GOLD.words), title="two")
    labels = [(part.text, part.get("fill"), float(part.get("y", 0))) for part in parts(text, "text")]
    baseline = next(y for label, _, y in labels if label == "dog")
    assert all(y > baseline for label, _, y in labels if label in ("X", "T"))
    assert all(y < baseline for label, _, y in labels if label in ("S", "NP", "VP"))
    assert [label for label, fill, _ in labels if fill == ONLY_GOLD and label in ("S", "NP", "VP")] == ["NP"]
    assert [fill for label, fill, _ in labels if label == "X"] == [INK, ONLY_PREDICTED, INK, INK]
    assert sum(1 for label, _, _ in labels if label == "dog") == 1
    dashed = [line.get("stroke") for line in parts(text, "line") if line.get("stroke-dasharray")]
    assert dashed == [ONLY_GOLD] * 2 + [ONLY_PREDICTED] * 2


@given(trees)
def test_everything_is_inside_the_picture_and_nothing_overlaps_its_neighbour(tree: Tree) -> None:
    text = tree_svg(tree, predicted=right_branching(tree.words), title="t")
    root = ElementTree.fromstring(text)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for line in parts(text, "line"):
        assert all(0 <= float(line.get(name, -1)) <= width for name in ("x1", "x2"))
        assert all(0 <= float(line.get(name, -1)) <= height for name in ("y1", "y2"))
    words = [part for part in parts(text, "text") if part.get("font-weight") and part.text in "abcde"]
    across = [float(part.get("x", 0)) for part in words]
    assert [part.text for part in words] == tree.words
    assert all(b - a >= 16 for a, b in itertools.pairwise(across))


def test_any_letters_make_valid_xml(tmp_path: Path) -> None:
    tree = parse_tree('(S&<"> (NN a<b&c) (NN 中国) (NN \x01x))')
    path = save_tree(tree, tmp_path / "new" / "tree.svg", title="R&D <b> \x00")
    root = ElementTree.parse(path).getroot()
    texts = [part.text for part in root.iter(f"{SVG}text")]
    assert {'S&<">', "a<b&c", "中国", "\ufffdx", "R&D <b> \ufffd"} <= set(texts)
    assert root.tag == f"{SVG}svg"
    xs = {part.text: float(part.get("x", 0)) for part in root.iter(f"{SVG}text")}
    assert xs["中国"] - xs["a<b&c"] == pytest.approx(5 * 8 / 2 + 16 + 4 * 8 / 2)  # wide letters have double room


def test_deep_trees_need_no_recursion() -> None:
    tree = right_branching(["w"] * 1500)
    assert sys.getrecursionlimit() < 1500
    assert len(tree_text(tree).splitlines()) == 2999
    assert len(parts(tree_svg(tree), "text")) == 4499
