"""The enumeration of trees, against counts, sums by hand and slopes."""

import itertools
import math

import pytest

from tests.oracles import tree as oracle

# Two symbols of spans, two of leaves. Weights differ, so that products tell their factors.
RULES = {
    "ss": [[[2.0, 3.0], [5.0, 7.0]], [[11.0, 13.0], [17.0, 19.0]]],
    "sl": [[[0.5, 0.25], [0.75, 1.5]], [[1.25, 0.0], [2.5, 3.5]]],
    "ls": [[[0.1, 0.2], [0.3, 0.4]], [[0.6, 0.7], [0.8, 0.9]]],
    "ll": [[[1.0, 2.0], [3.0, 0.0]], [[4.0, 5.0], [6.0, 7.0]]],
}
LEAF = [[1.0, 2.0], [3.0, 0.5], [0.25, 4.0], [1.5, 1.0], [2.0, 0.5]]
ROOT, ROOT_LEAF = [1.0, 3.0], [2.0, 5.0]


@pytest.mark.parametrize(("num_words", "shapes"), [(1, 1), (2, 1), (3, 2), (4, 5), (5, 14)])
def test_the_trees_of_a_sentence_are_catalans_times_labels(num_words: int, shapes: int) -> None:
    found = list(oracle.trees(0, num_words, LEAF, RULES, 2))
    assert len(found) == len(set(found)) == shapes * 2 ** (2 * num_words - 1)
    assert len({frozenset(oracle.brackets(tree)) for tree in found}) == shapes
    assert {len(oracle.brackets(tree)) for tree in found} == {num_words - 1}
    assert {len(oracle.rules_used(tree)) for tree in found} == {num_words - 1}
    assert {len(oracle.labels(tree)) for tree in found} == {num_words}


def test_one_word_has_its_own_root() -> None:
    assert oracle.weights(LEAF[:1], RULES, ROOT, ROOT_LEAF, {}) == {(0, 1, 0): 2.0, (0, 1, 1): 10.0}


def test_two_words_by_hand() -> None:
    weights = oracle.weights(LEAF[:2], RULES, ROOT, ROOT_LEAF, {(0, 2): 10.0})
    assert weights[0, 2, 0, (0, 1, 1), (1, 2, 0)] == pytest.approx(1.0 * 10.0 * 3.0 * 2.0 * 3.0)
    assert weights[0, 2, 1, (0, 1, 0), (1, 2, 1)] == pytest.approx(3.0 * 10.0 * 5.0 * 1.0 * 0.5)
    by_hand = sum(
        ROOT[a] * 10.0 * RULES["ll"][a][n][m] * LEAF[0][n] * LEAF[1][m]
        for a, n, m in itertools.product(range(2), repeat=3)
    )
    assert sum(weights.values()) == pytest.approx(by_hand, rel=1e-14)


def test_a_tree_of_four_words_by_hand() -> None:
    """((0 1) (2 3)) with labels: top 1, left span 0, right span 1, words 0 1 1 0."""
    tree = (0, 4, 1, (0, 2, 0, (0, 1, 0), (1, 2, 1)), (2, 4, 1, (2, 3, 1), (3, 4, 0)))
    found = oracle.weights(LEAF[:4], RULES, ROOT, ROOT_LEAF, {(2, 4): 0.5})[tree]
    assert found == pytest.approx(3.0 * 13.0 * 2.0 * 6.0 * 0.5 * (1.0 * 0.5 * 4.0 * 1.5), rel=1e-14)
    assert oracle.brackets(tree) == {(0, 4), (0, 2), (2, 4)}
    assert oracle.rules_used(tree) == [("ss", 1, 0, 1), ("ll", 0, 0, 1), ("ll", 1, 1, 0)]
    assert oracle.labels(tree) == [0, 1, 1, 0]


def test_kinds_of_children_follow_from_their_widths() -> None:
    left = (0, 3, 0, (0, 2, 1, (0, 1, 0), (1, 2, 0)), (2, 3, 1))
    right = (0, 3, 0, (0, 1, 1), (1, 3, 1, (1, 2, 0), (2, 3, 0)))
    assert [used[0] for used in oracle.rules_used(left)] == ["sl", "ll"]
    assert [used[0] for used in oracle.rules_used(right)] == ["ls", "ll"]
    assert oracle.weight(left, LEAF, RULES, {}) == pytest.approx(1.5 * 4.0 * (1.0 * 3.0 * 4.0))
    assert oracle.weight(right, LEAF, RULES, {}) == pytest.approx(0.4 * 4.0 * (2.0 * 3.0 * 0.25))


@pytest.mark.parametrize("num_words", [2, 3, 4])
def test_the_gradient_of_a_rule_is_the_slope(num_words: int) -> None:
    def log_z() -> float:
        return math.log(sum(oracle.weights(LEAF[:num_words], RULES, ROOT, ROOT_LEAF, {(0, 2): 3.0}).values()))

    gradient = oracle.rule_gradient(LEAF[:num_words], RULES, ROOT, ROOT_LEAF, {(0, 2): 3.0})
    base, step = log_z(), 1e-6
    assert gradient["ll"][0][1][1] > 0  # a rule of weight 0, which could be used
    for kind, a, n, m in itertools.product(RULES, range(2), range(2), range(2)):
        RULES[kind][a][n][m] += step
        slope = (log_z() - base) / step
        RULES[kind][a][n][m] -= step
        # A one-sided difference, because weights below zero mean nothing: off by step times the curvature.
        assert gradient[kind][a][n][m] == pytest.approx(slope, abs=1e-4)


def test_nothing_possible_has_no_gradient() -> None:
    gradient = oracle.rule_gradient([[0.0, 0.0]] * 3, RULES, ROOT, ROOT_LEAF, {})
    assert {x for tables in gradient.values() for table in tables for row in table for x in row} == {0.0}
