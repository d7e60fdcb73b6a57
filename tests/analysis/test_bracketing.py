"""Bracketing F1: every clause of every convention by hand, and all together against the published scripts' steps."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.analysis.bracketing import BracketScores, binarise, evaluate_brackets, left_branching, right_branching
from rankfold.data.brackets import parse_tree, parse_trees
from rankfold.data.trees import Tree, tree_of_spans
from rankfold.errors import DataError, DomainError
from tests.data.treebanks import trees
from tests.oracles import bracketing as oracle


def against_right(gold: str) -> BracketScores:
    tree = parse_tree(gold)
    return evaluate_brackets([right_branching(tree.words)], [tree])


def test_the_plain_case() -> None:
    """Gold (0,2) (2,5) (3,5), predicted (1,5) (2,5) (3,5): two of three on both sides, whoever counts."""
    scores = against_right("(S (NP (DT a) (NN b)) (VP (VB c) (NP (DT d) (NN e))))")
    for f1 in (scores.uf1, scores.uf1_distinct, scores.kim, scores.kim_nonempty):
        assert f1 == pytest.approx((2 / 3, 2 / 3, 2 / 3, 2 / 3, 1))


def test_precision_and_recall_are_not_exchanged() -> None:
    """Gold (2,4) alone, predicted (1,4) and (2,4)."""
    scores = against_right("(S (DT a) (NN b) (VP (VB c) (NN d)))")
    assert scores.uf1 == pytest.approx((2 / 3, 2 / 3, 1 / 2, 1, 1))


def test_a_unary_chain_over_the_whole_sentence_costs_only_in_kim() -> None:
    """Gold (0,3) twice and (1,3); predicted (0,3) and (1,3). Kim's gold keeps one (0,3)."""
    scores = against_right("(S (VP (VB a) (NP (DT b) (NN c))))")
    assert scores.uf1.sentence == 1
    assert scores.uf1.recall == 1
    assert scores.kim == pytest.approx((2 / 3, 2 / 3, 1, 1 / 2, 1))


def test_two_words_score_one_in_both_and_are_passed_over_in_the_third() -> None:
    scores = against_right("(NP (DT a) (NN b))")
    assert scores.uf1 == (1, 0, 0, 0, 1)
    assert scores.kim == (1, 0, 0, 0, 1)
    assert scores.kim_nonempty == (0, 0, 0, 0, 0)


def test_two_words_under_a_chain_score_nothing_in_kim() -> None:
    scores = against_right("(S (NP (DT a) (NN b)))")
    assert scores.uf1.sentence == 1
    assert scores.kim == (0, 0, 0, 0, 1)
    assert scores.kim_nonempty.num_sentences == 0


def test_no_gold_brackets_but_predicted_ones_score_nothing() -> None:
    scores = against_right("(NP (DT a) (JJ b) (NN c))")
    assert (scores.uf1.sentence, scores.kim.sentence) == (0, 0)
    assert scores.kim_nonempty.num_sentences == 0
    flat = parse_tree("(NP (DT a) (JJ b) (NN c))")
    assert evaluate_brackets([flat], [flat]).uf1.sentence == 1


def test_no_predicted_brackets_but_gold_ones_score_nothing() -> None:
    gold = parse_tree("(S (DT a) (NP (JJ b) (NN c)))")
    scores = evaluate_brackets([parse_tree("(X (T a) (T b) (T c))")], [gold])
    assert (scores.uf1.sentence, scores.kim.sentence, scores.kim_nonempty.num_sentences) == (0, 0, 0)


def test_a_missed_bracket_counts_as_often_as_its_chain_repeats_it_in_uf1_of_the_corpus() -> None:
    """Gold (0,2) (0,2) (2,4), predicted (1,4) (2,4)."""
    gold = "(S (NP (NP (DT a) (NN b))) (VP (VB c) (RB d)))"
    scores = against_right(gold)
    assert scores.uf1 == pytest.approx((1 / 2, 2 / 5, 1 / 2, 1 / 3, 1))
    assert scores.uf1_distinct == pytest.approx((1 / 2, 1 / 2, 1 / 2, 1 / 2, 1))
    assert scores.kim == pytest.approx((1 / 2, 1 / 2, 1 / 2, 1 / 2, 1))
    # Found, it counts once: predicted (0,3) and (0,2).
    tree = parse_tree(gold)
    assert evaluate_brackets([left_branching(tree.words)], [tree]).uf1 == pytest.approx((1 / 2, 1 / 2, 1 / 2, 1 / 2, 1))


def test_constituents_of_one_word_do_not_count() -> None:
    scores = against_right("(S (NP (PRP a)) (VP (VB b) (NP (NN c))))")
    assert scores.uf1.sentence == scores.kim.sentence == 1
    assert scores.uf1.recall == scores.kim.recall == 1


def test_the_sentence_mean_and_the_corpus_differ() -> None:
    gold = parse_trees("(S (NP (DT a) (NN b)) (VB c)) (S (NN a) (VP (VB b) (NP (DT c) (NN d))))")
    scores = evaluate_brackets([right_branching(tree.words) for tree in gold], gold)
    assert scores.uf1 == pytest.approx((1 / 2, 2 / 3, 2 / 3, 2 / 3, 2))


def test_sentences_of_one_word_are_counted_apart() -> None:
    gold = parse_trees("(NN a) (S (NP (NN a))) (NP (DT a) (NN b))")
    scores = evaluate_brackets([right_branching(tree.words) for tree in gold], gold)
    assert (scores.num_sentences, scores.num_single_words, scores.uf1.num_sentences) == (1, 2, 1)


def test_recall_by_label_counts_distinct_brackets_of_a_label() -> None:
    gold = parse_tree("(S (NP (NP (DT a) (NN b)) (NP (NN c))) (VP (VB d) (NP (NP (DT e) (NN f)))))")
    scores = evaluate_brackets([right_branching(gold.words)], [gold])
    assert scores.by_label == (("NP", 3, 1 / 3), ("VP", 1, 1.0))


def test_rows_by_length() -> None:
    gold = parse_trees(
        "(S (DT a) (NN b)) (S (NP (DT a) (NN b)) (VB c)) (S (NN a) (VP (NN b) (NN c))) (NP (T a) (T b) (T c) (T d))"
    )
    predicted = [right_branching(tree.words) for tree in gold]
    assert evaluate_brackets(predicted, gold, lengths=(2, 3)).by_length == (
        (2, 2, 1, 1, 1),
        (3, 3, 2, 0.5, 0.5),
        (4, 4, 1, 0, 0),
    )
    assert evaluate_brackets(predicted, gold, lengths=(5,)).by_length == ((2, 5, 4, 0.5, 0.5),)
    assert [row.num_sentences for row in evaluate_brackets(predicted, gold, lengths=()).by_length] == [4]


def test_the_table_names_every_convention() -> None:
    table = str(against_right("(S (VP (VB a) (NP (DT b) (NN c))))")).splitlines()
    assert [line.split()[0] for line in table] == ["convention", "uf1", "uf1_distinct", "kim", "kim_nonempty"]
    assert table[1].split() == ["uf1", "100.00%", "100.00%", "100.00%", "100.00%", "1"]
    assert table[3].split() == ["kim", "66.67%", "66.67%", "100.00%", "50.00%", "1"]


def test_trees_over_other_words_are_refused() -> None:
    gold = parse_trees("(S (NN a) (NN b)) (S (NN a) (NN c))")
    with pytest.raises(DataError, match=r"sentence 2: .*'a b'.*'a c'"):
        evaluate_brackets([gold[0], gold[0]], gold)
    with pytest.raises(DataError, match="1 predicted trees, but 2"):
        evaluate_brackets(gold[:1], gold)
    with pytest.raises(DataError, match="no trees"):
        evaluate_brackets([], [])
    for lengths in ((10, 5), (5, 5), (1, 5)):
        with pytest.raises(DomainError, match="must grow"):
            evaluate_brackets(gold, gold, lengths=lengths)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[Tree], list[Tree]]:
    """Gold trees of any shape, and trees of any shape over the same words."""
    gold = draw(st.lists(trees, min_size=1, max_size=4))
    predicted = []
    for tree in gold:
        words = tree.words
        other = draw(trees)
        spans = [span for span in other.spans() if span.end <= len(words) and span.end - span.start < len(words)]
        predicted.append(tree_of_spans(words, [(0, len(words), "X"), *spans]))
    return predicted, gold


@given(pairs())
def test_every_convention_is_what_the_published_scripts_compute(pair: tuple[list[Tree], list[Tree]]) -> None:
    predicted, gold = pair
    scores = evaluate_brackets(predicted, gold)
    texts = [(str(p), str(g)) for p, g in zip(predicted, gold, strict=True) if len(g.words) > 1]
    if not texts:
        assert scores.num_sentences == 0
        return
    by_uf1, by_kim = [oracle.uf1(*text) for text in texts], [oracle.kim(*text) for text in texts]
    kept = [row[0] for row in by_kim if not row[4]]
    # The scripts add 1e-8 to denominators; we do not.
    assert scores.uf1.sentence == pytest.approx(sum(row[0] for row in by_uf1) / len(texts), abs=1e-7)
    assert scores.kim.sentence == pytest.approx(sum(row[0] for row in by_kim) / len(texts), abs=1e-7)
    assert scores.kim_nonempty.sentence == pytest.approx(sum(kept) / len(kept) if kept else 0, abs=1e-7)
    assert scores.uf1.corpus == pytest.approx(oracle.corpus(*(sum(row[k] for row in by_uf1) for k in (1, 2, 3))))
    assert scores.kim.corpus == pytest.approx(oracle.corpus(*(sum(row[k] for row in by_kim) for k in (1, 2, 3))))


@given(st.lists(trees, min_size=1, max_size=4))
def test_gold_against_itself_is_perfect(gold: list[Tree]) -> None:
    scores = evaluate_brackets(gold, gold)
    if scores.num_sentences:
        assert scores.uf1.sentence == scores.kim.sentence == 1
    for f1 in (scores.uf1, scores.uf1_distinct, scores.kim):
        assert f1.precision == f1.recall == f1.corpus
        assert f1.corpus in (0, 1)  # 0 only where nobody has a bracket
    assert all(row.recall == 1 for row in scores.by_label)


@given(pairs())
def test_laws(pair: tuple[list[Tree], list[Tree]]) -> None:
    """In bounds; exchanging the sides exchanges precision and recall; labels do not matter; order does not matter."""
    predicted, gold = pair
    scores, exchanged = evaluate_brackets(predicted, gold), evaluate_brackets(gold, predicted)
    for name in ("uf1_distinct", "kim", "kim_nonempty"):
        one, other = getattr(scores, name), getattr(exchanged, name)
        assert all(0 <= value <= 1 for value in one[:4])
        assert (one.precision, one.recall) == (other.recall, other.precision)
        assert one.sentence == pytest.approx(other.sentence)
    renamed = [tree.fold(lambda w: w, lambda node, c: Tree(f"{node.label}-1", tuple(c))) for tree in predicted]
    assert evaluate_brackets(renamed, gold) == scores  # type: ignore[arg-type]
    turned = asdict(evaluate_brackets(predicted[::-1], gold[::-1]))
    assert turned["uf1"] == pytest.approx(scores.uf1)
    assert turned["kim"] == pytest.approx(scores.kim)


@given(st.lists(trees, min_size=1, max_size=4))
def test_kim_is_never_above_uf1_for_binary_trees(gold: list[Tree]) -> None:
    for predicted in ([binarise(tree) for tree in gold], [right_branching(tree.words) for tree in gold]):
        scores = evaluate_brackets(predicted, gold)
        assert scores.kim.sentence <= scores.uf1.sentence + 1e-12
