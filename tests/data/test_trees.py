"""Trees: words, tags, spans, equality, copies, and the way to and from nltk."""

import copy
import pickle
import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.data.brackets import parse_tree
from rankfold.data.trees import Span, Tree, from_nltk, to_nltk, tree_of_spans
from rankfold.errors import DataError, UnsupportedError

from .treebanks import trees

DOG = "(S (NP (DT the) (NN dog)) (VP (VBD ran) (ADVP (RB home))))"
DEPTH = 5_000  # far beyond the recursion limit


def deep() -> Tree:
    tree = Tree("NN", ("x",))
    for _ in range(DEPTH):
        tree = Tree("S", (tree,))
    return tree


def test_words_tags_and_spans_of_a_tree() -> None:
    tree = parse_tree(DOG)
    assert tree.words == ["the", "dog", "ran", "home"]
    assert tree.tags == ["DT", "NN", "VBD", "RB"]
    assert tree.spans() == [(0, 4, "S"), (0, 2, "NP"), (2, 4, "VP"), (3, 4, "ADVP")]
    assert tree.spans(tags=True)[2:4] == [(0, 1, "DT"), (1, 2, "NN")]
    assert [node.label for node in tree.nodes()] == ["S", "NP", "DT", "NN", "VP", "VBD", "ADVP", "RB"]


def test_words_without_tags() -> None:
    tree = parse_tree("(S (NP the (NN dog)) runs)")
    assert tree.words == ["the", "dog", "runs"]
    assert tree.tags == [None, "NN", None]
    assert tree.spans() == [(0, 3, "S"), (0, 2, "NP")]


@pytest.mark.parametrize(
    ("text", "binary"),
    [
        ("(X (T a) (X (T b) (T c)))", True),
        ("(T a)", True),
        ("(X a b)", True),
        ("(X (T a) (T b) (T c))", False),
        ("(X (X (T a) (T b)))", False),
        ("(X (NP (T a)) (T b))", False),
    ],
)
def test_which_trees_are_binary(text: str, binary: bool) -> None:
    assert parse_tree(text).is_binary is binary


@given(trees)
def test_a_tree_is_its_spans_and_its_brackets(tree: Tree) -> None:
    assert parse_tree(str(tree)) == tree
    tags = [tag for tag in tree.tags if tag is not None]
    assert tree_of_spans(tree.words, tree.spans(), tags=tags) == tree


@given(trees, trees)
def test_equal_trees_are_written_alike_and_hash_alike(one: Tree, other: Tree) -> None:
    assert (one == other) == (str(one) == str(other))
    again = parse_tree(str(one))
    assert again is not one
    assert hash(again) == hash(one)


def test_a_tree_is_not_equal_to_its_text_and_cannot_be_changed() -> None:
    tree = parse_tree(DOG)
    assert tree != DOG
    assert repr(tree) == f"Tree({DOG})"
    with pytest.raises(AttributeError):
        tree.label = "NP"  # type: ignore[misc]


@given(trees)
def test_copies_are_equal(tree: Tree) -> None:
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert copy.deepcopy(tree) == tree


def test_deep_trees_need_no_recursion() -> None:
    tree = deep()
    assert sys.getrecursionlimit() < DEPTH
    assert len(tree.spans()) == DEPTH
    assert tree == deep()
    assert hash(tree) == hash(deep())
    assert parse_tree(str(tree)) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert tree_of_spans(["x"], tree.spans(), tags=["NN"]) == tree


@pytest.mark.parametrize("bad", ["", "a b", "(", "a)", " a", 3, None])
def test_labels_and_words_that_could_not_be_read_again_are_refused(bad: Any) -> None:
    with pytest.raises(DataError, match="label"):
        Tree(bad, ("a",))
    with pytest.raises(DataError, match="word"):
        Tree("NP", ("a", bad))


def test_children_that_are_none_are_refused() -> None:
    with pytest.raises(DataError, match="NP is empty"):
        Tree("NP", ())
    with pytest.raises(DataError, match="tuple"):
        Tree("NP", "dog")  # type: ignore[arg-type]


def test_spans_in_any_order_with_chains_outermost_first() -> None:
    spans = [(1, 3, "VP"), (0, 3, "S"), (0, 3, "X")]
    assert str(tree_of_spans(["a", "b", "c"], spans)) == "(S (X (T a) (VP (T b) (T c))))"
    assert str(tree_of_spans(["a"], [Span(0, 1, "NP")], tag="N")) == "(NP (N a))"


@pytest.mark.parametrize(
    ("spans", "text"),
    [
        ([], "whole sentence"),
        ([(0, 2, "X")], "whole sentence"),
        ([(-1, 3, "S")], "whole sentence"),
        ([(0, 3, "S"), (0, 2, "X"), (1, 3, "Y")], "crosses"),
        ([(0, 3, "S"), (2, 4, "X")], "crosses"),
        ([(0, 3, "S"), (1, 1, "X")], "empty"),
        ([(0, 3, "S"), (3, 4, "X")], "outside"),
    ],
)
def test_spans_that_are_no_tree_are_refused(spans: list[tuple[int, int, str]], text: str) -> None:
    with pytest.raises(DataError, match=text):
        tree_of_spans(["a", "b", "c"], spans)


def test_tags_must_match_words() -> None:
    with pytest.raises(DataError, match="2 words, but 1 tags"):
        tree_of_spans(["a", "b"], [(0, 2, "S")], tags=["NN"])


class ListTree(list[Any]):
    """What nltk.Tree is: a list with a label."""

    def __init__(self, node: str, children: list[Any]) -> None:
        super().__init__(children)
        self._label = node

    def label(self) -> str:
        return self._label


@pytest.fixture(params=["stand-in", "nltk"])
def nltk_tree(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "nltk":
        return pytest.importorskip("nltk.tree").Tree
    module = types.ModuleType("nltk.tree")
    module.Tree = ListTree  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nltk", types.ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.tree", module)
    return ListTree


def test_to_nltk_and_back(nltk_tree: Any) -> None:
    theirs = to_nltk(parse_tree(DOG))
    assert isinstance(theirs, nltk_tree)
    assert (theirs.label(), theirs[0].label(), theirs[0][1][0]) == ("S", "NP", "dog")
    assert from_nltk(theirs) == parse_tree(DOG)
    with pytest.raises(DataError, match="str"):
        from_nltk(DOG)
    with pytest.raises(DataError, match="two words"):
        from_nltk(nltk_tree("NP", ["two words"]))


def test_without_nltk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.tree", None)
    with pytest.raises(UnsupportedError, match="pip install nltk"):
        to_nltk(parse_tree(DOG))


@given(st.lists(st.text(max_size=5), max_size=4))
def test_no_word_gets_in_that_would_not_come_out(words: list[str]) -> None:
    try:
        tree = Tree("S", tuple(words))
    except DataError:
        return
    assert parse_tree(str(tree)).words == words
