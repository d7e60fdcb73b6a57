"""Preparing a treebank: every rule alone, all together on real trees, and nothing uncounted."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.data.brackets import parse_tree, parse_trees
from rankfold.data.sources import PENN_WORD_TAGS, base_label, clean_trees
from rankfold.data.trees import Tree
from rankfold.data.vocab import number_to_n
from rankfold.errors import DataError, UnsupportedError

from .treebanks import needs_treebanks, records, text_of, trees

OFF: dict[str, Any] = {
    "keep_tags": None,
    "drop_traces": False,
    "drop_roots": False,
    "strip_functions": False,
    "lower": False,
    "numbers": False,
    "drop_single": False,
}


def one(text: str, **options: Any) -> str:
    (tree,) = clean_trees([parse_tree(text)], **{**OFF, **options}).trees
    return str(tree)


def test_words_of_other_tags_go_with_the_constituents_they_leave_empty() -> None:
    text = "(S (NP (NNP It)) (X (-LRB- -LRB-) (: --) (-RRB- -RRB-)) (VP (VBZ is) (NP ($ $) (CD 5) (-NONE- *U*))) (. .))"
    done = clean_trees([parse_tree(text)], **{**OFF, "keep_tags": PENN_WORD_TAGS, "drop_traces": True})
    assert str(done.trees[0]) == "(S (NP (NNP It)) (VP (VBZ is) (NP (CD 5))))"
    assert dict(done.report.dropped_words) == {"-LRB-": 1, ":": 1, "-RRB-": 1, "$": 1, ".": 1}
    assert (done.report.traces, done.report.empty_constituents) == (1, 1)
    assert (done.report.words_read, done.report.words) == (9, 3)


def test_traces_alone() -> None:
    text = "(S (NP-SBJ (-NONE- *-1)) (VP (VB go)) (. .))"
    assert one(text, drop_traces=True) == "(S (VP (VB go)) (. .))"
    assert one(text, keep_tags={"VB"}) == "(S (NP-SBJ (-NONE- *-1)) (VP (VB go)))"
    assert one(text) == text


def test_roots_go_only_from_around_a_single_constituent() -> None:
    assert one("(TOP (ROOT (S (NN a) (NN b))))", drop_roots=True) == "(S (NN a) (NN b))"
    assert one("(ROOT (S (NN a)) (S (NN b)))", drop_roots=True) == "(ROOT (S (NN a)) (S (NN b)))"
    assert one("(ROOT a)", drop_roots=True) == "(ROOT a)"
    assert one("(S (ROOT (NN a) (NN b)) (NN c))", drop_roots=True) == "(S (ROOT (NN a) (NN b)) (NN c))"
    two = clean_trees([parse_tree("(TOP (ROOT (S (NN a) (NN b))))")], **{**OFF, "drop_roots": True})
    assert two.report.roots == 2
    # Punctuation goes first, so that what is around a single constituent then goes as well.
    assert one("(ROOT (S (NN a)) (. .))", drop_roots=True, keep_tags={"NN"}) == "(S (NN a))"


@pytest.mark.parametrize(
    ("label", "base"),
    [("NP-SBJ-1", "NP"), ("NP=2", "NP"), ("ADVP|PRT", "ADVP"), ("S", "S"), ("-NONE-", "-NONE-"), ("PRP$", "PRP$")],
)
def test_labels_without_functions(label: str, base: str) -> None:
    assert base_label(label) == base


def test_functions_of_constituents_go_and_tags_stay() -> None:
    done = clean_trees([parse_tree("(S-1 (NP-SBJ (NN-X a)) (VP (NN b)))")], **{**OFF, "strip_functions": True})
    assert str(done.trees[0]) == "(S (NP (NN-X a)) (VP (NN b)))"
    assert done.report.function_tags == 2


def test_unary_chains_are_kept_or_collapsed() -> None:
    text = "(S (VP (VP (VB go) (NP (NP (NN home))))))"
    assert one(text) == text
    assert one(text, unary="top") == "(S (VB go) (NP (NN home)))"
    assert one(text, unary="join") == "(S+VP+VP (VB go) (NP+NP (NN home)))"
    assert clean_trees([parse_tree(text)], **OFF, unary="top").report.unary == 3
    with pytest.raises(UnsupportedError, match="collapse"):
        one(text, unary="collapse")


def test_capitals_and_numbers() -> None:
    tree = parse_tree("(S (NN Mid-1980s) (NN N) (NN 1,000.5%) (NN x))")
    done = clean_trees([tree], **{**OFF, "lower": True, "numbers": True})
    assert done.trees[0].words == ["mid-Ns", "n", "N%", "x"]
    assert (done.report.lowered, done.report.numbers) == (2, 2)
    assert one("(NN A1)", numbers=True) == "(NN AN)"


@given(st.text(alphabet="01a9,.-N", max_size=12))
def test_numbers_are_those_of_the_published_expression(word: str) -> None:
    assert number_to_n(word) == re.sub("[0-9]{1,}([,.]?[0-9]*)*", "N", word)


def test_trees_of_one_word_and_none_are_counted_and_those_kept_are_numbered() -> None:
    read = parse_trees("(NN a) (S (. .)) (S (NN b) (NN c)) (NP (NN d) (. .)) (S (NN e) (NN f))")
    done = clean_trees(read)
    assert [tree.words for tree in done.trees] == [["b", "c"], ["e", "f"]]
    assert done.kept == [2, 4]
    assert (done.report.trees_read, done.report.trees) == (5, 2)
    assert (done.report.trees_of_one_word, done.report.trees_without_words) == (2, 1)
    assert "2 of 5 trees, 4 of 8 words kept" in str(done.report)
    assert "1 without words, 2 of one word" in str(done.report)
    assert ". 2" in str(done.report)


def test_a_word_without_a_tag_is_refused_where_tags_decide() -> None:
    read = parse_trees("(S (NN a) (NN b)) (S (NN a) b)")
    with pytest.raises(DataError, match="tree 2: word 2, 'b', has no part of speech"):
        clean_trees(read)
    assert len(clean_trees(read, keep_tags=None).trees) == 2


@given(st.lists(trees, max_size=5))
def test_every_word_is_kept_or_counted(read: list[Tree]) -> None:
    done = clean_trees(read, keep_tags={"NN", "VB"})
    report = done.report
    of_one = report.trees_of_one_word  # their one word each
    assert report.words_read == sum(len(tree.words) for tree in read)
    assert report.words_read == report.words + report.traces + report.dropped_words.total() + of_one
    assert report.trees_read == len(done.trees) + report.trees_of_one_word + report.trees_without_words
    again = clean_trees(done.trees, keep_tags={"NN", "VB"})
    assert again.trees == done.trees


@needs_treebanks
@pytest.mark.parametrize(("name", "tags"), [("ptb-sample", PENN_WORD_TAGS), ("gum", PENN_WORD_TAGS | {"GW"})])
def test_real_trees_are_prepared_as_a_different_program_did(name: str, tags: frozenset[str]) -> None:
    """Of the original trees of the test files, exactly those in the prepared file come out, in every bracket."""
    identities = [record["id"] for record in records(f"{name}.test.jsonl.gz")]
    files = {identity.split(":")[0] for identity in identities}
    lines = [line.split("\t") for line in text_of(f"{name}.orig.tsv.gz").splitlines()]
    lines = [line for line in lines if line[0].split(":")[0] in files]
    done = clean_trees(parse_trees("\n".join(text for _, text in lines)), keep_tags=tags)
    assert [lines[number][0] for number in done.kept] == identities
    assert [str(tree) for tree in done.trees] == text_of(f"{name}.test.trees.txt.gz").splitlines()
    assert done.report.trees_of_one_word + done.report.trees_without_words == len(lines) - len(identities)
