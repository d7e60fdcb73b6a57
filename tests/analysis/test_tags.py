"""Tag scores: hand values, scikit-learn's, and what no renaming may change."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.analysis.tags import tag_scores
from rankfold.errors import DataError

tokens = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ABCD")), min_size=1, max_size=40)


def scores(pairs: list[tuple[int, str]]):
    return tag_scores([[state for state, _ in pairs]], [[tag for _, tag in pairs]])


def test_values_by_hand() -> None:
    result = tag_scores([[0, 0, 1], [1, 2, 2]], [["N", "V", "V"], ["V", "N", "N"]])
    assert result.many_to_one == pytest.approx(5 / 6)  # 0 -> N (first in the alphabet), 1 -> V, 2 -> N
    assert result.mapping == {0: "N", 1: "V", 2: "N"}
    assert (result.num_tokens, result.num_states_used, result.num_tags) == (6, 3, 2)
    # H(C) = log 2, H(C | K) = (log 2) / 3, H(K) = log 3, H(K | C) = H(1/3, 2/3) = log 3 - (2/3) log 2
    assert result.homogeneity == pytest.approx(2 / 3)
    assert result.completeness == pytest.approx(0.4206198357143)
    assert result.v_measure == pytest.approx(2 * (2 / 3) * 0.4206198357143 / (2 / 3 + 0.4206198357143))


def test_one_to_one_by_hand() -> None:
    pytest.importorskip("scipy")
    # Both states prefer N: 0 as N and 1 as V make 4 + 2 tokens right, the other way round 1 + 3.
    result = scores([(0, "N")] * 4 + [(0, "V")] + [(1, "N")] * 3 + [(1, "V")] * 2)
    assert result.one_to_one == pytest.approx(6 / 10)
    assert result.many_to_one == pytest.approx(7 / 10)
    more_states = scores([(0, "N"), (1, "N"), (2, "N"), (2, "N")])
    assert more_states.one_to_one == pytest.approx(1 / 2)


@given(tokens)
def test_against_scikit_learn(pairs: list[tuple[int, str]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    result = scores(pairs)
    expected = metrics.homogeneity_completeness_v_measure([tag for _, tag in pairs], [state for state, _ in pairs])
    ours = (result.homogeneity, result.completeness, result.v_measure)
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)  # theirs subtracts entropies, which loses digits near 0


@given(tokens)
def test_bounds_and_renaming(pairs: list[tuple[int, str]]) -> None:
    result = scores(pairs)
    renamed = scores([(7 - state, tag) for state, tag in reversed(pairs)])
    assert renamed[:8] == pytest.approx(result[:8], rel=1e-12, abs=1e-12)
    assert all(0 <= score <= 1 for score in result[:5] if score is not None)
    if result.one_to_one is not None:
        assert result.one_to_one <= result.many_to_one


def test_agreement_is_one_and_chance_is_zero() -> None:
    assert scores([(3, "A"), (5, "B"), (3, "A")])[:5] == (1, 1, 1, 1, 1)
    independent = scores([(0, "A"), (0, "B"), (1, "A"), (1, "B")])
    assert independent[2:5] == (0, 0, 0)


def test_certain_labels_are_explained() -> None:
    assert scores([(0, "A"), (0, "B")])[2:5] == (0, 0, 1)  # one state says nothing, but is never split
    assert scores([(0, "A"), (1, "A")])[2:5] == (0, 1, 0)
    assert scores([(0, "A")])[:5] == (1, 1, 1, 1, 1)


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    result = scores([(0, "A"), (1, "B")])
    assert result.one_to_one is None
    assert result.many_to_one == 1


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"sentence 2 has 3 states, but 2 tags"):
        tag_scores([[0], [1, 2, 0]], [["A"], ["B", "A"]])
    with pytest.raises(DataError, match="2 sentences have states, but 1 have tags"):
        tag_scores([[0], [1]], [["A"]])
    with pytest.raises(DataError, match="no tokens"):
        tag_scores([[]], [[]])
