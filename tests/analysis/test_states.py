"""States: matched to labels, compared with tags, their usage and words; by hand, by enumeration, by other libraries."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankfold.analysis.states import (
    Matching,
    StateUse,
    assign,
    contingency,
    match_states,
    state_usage,
    tag_scores,
    top_words,
)
from rankfold.errors import DataError, DomainError, ShapeError

sizes = st.tuples(st.integers(1, 7), st.integers(1, 7))
counts = sizes.flatmap(lambda shape: arrays(np.int64, shape, elements=st.integers(0, 6)))


def best_total(w: Any) -> Any:
    """The largest total of all ways to give each row (or, if fewer, each column) a partner of its own."""
    w = np.asarray(w) if len(w) <= len(w[0]) else np.asarray(w).T
    return max(
        sum(w[i, j] for i, j in enumerate(columns)) for columns in itertools.permutations(range(w.shape[1]), len(w))
    )


@given(counts)
def test_no_assignment_is_better(w: Any) -> None:
    rows, columns = assign(w)
    assert len(rows) == len(columns) == min(w.shape)
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == len(rows)
    assert rows.tolist() == sorted(rows.tolist())
    assert int(w[rows, columns].sum()) == best_total(w)


@pytest.mark.parametrize("shape", [(6, 6), (5, 6), (6, 4), (3, 7)])
def test_no_assignment_of_large_counts_is_better(shape: tuple[int, int]) -> None:
    """Long chains of rows that make room for one another, which small counts do not need."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        w = rng.integers(0, 1000, shape)
        assert int(w[assign(w)].sum()) == best_total(w)


@given(sizes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-100, 100, width=32))))
def test_weights_may_be_any_numbers(w: Any) -> None:
    rows, columns = assign(w)
    np.testing.assert_allclose(w[rows, columns].sum(), best_total(w), rtol=1e-12, atol=1e-9)  # other order of additions


@pytest.mark.parametrize("shape", [(1, 1), (63, 63), (17, 129), (129, 17)])
@pytest.mark.parametrize("high", [3, 1_000_000])
def test_against_scipy(shape: tuple[int, int], high: int) -> None:
    scipy = pytest.importorskip("scipy.optimize")
    w = np.random.default_rng(0).integers(0, high, shape)
    assert w[assign(w)].sum() == w[scipy.linear_sum_assignment(w, maximize=True)].sum()


def test_whole_numbers_are_exact() -> None:
    large = 2**55  # float64 cannot tell this from one more
    w = np.array([[large, large + 1], [large + 1, large]])
    assert assign(w)[1].tolist() == [1, 0]


@pytest.mark.parametrize("w", [[1, 2], [[1.0, float("nan")]], [["a"]]])
def test_bad_weights(w: Any) -> None:
    with pytest.raises(DataError, match="finite matrix"):
        assign(w)


def test_contingency_leaves_unknown_frames_out() -> None:
    table = contingency([[0, 2, -1], [2]], [[1, 0, 1], [-1]])
    assert table.tolist() == [[0, 1], [0, 0], [1, 0]]


def test_one_label_a_state() -> None:
    states, labels = [[0, 0, 0, 1, 1, 2]], [[1, 1, 0, 1, 0, 1]]
    assert match_states(states, labels).labels == (1, 0, -1)
    assert match_states(states, labels, how="many_to_one").labels == (1, 0, 1)
    assert match_states([[0, 1]], [[0, 0]]).labels.count(0) == 1
    with pytest.raises(DomainError, match="'best'"):
        match_states(states, labels, how="best")  # type: ignore[arg-type]


def test_what_shares_no_frame_is_not_matched() -> None:
    assert match_states([[0, 0, 0, 0, 1]], [[0, 0, 0, 1, 0]]).labels == (0, -1)  # not (0, 1), nor (1, 0)
    assert match_states([[0, 0, 2]], [[0, 0, 0]], how="many_to_one").labels == (0, -1, 0)
    assert match_states([[-1, 1]], [[0, -1]]).labels == ()


def test_states_without_a_label_stay_apart() -> None:
    matching = Matching((3, -1, 0), "one_to_one")
    assert matching.apply([0, 1, 2, 5, -1]).tolist() == [3, -3, 0, -7, -1]


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
    assert all(0 <= score <= 1 for score in result[:5])
    assert result.one_to_one <= result.many_to_one


def test_agreement_is_one_and_chance_is_zero() -> None:
    assert scores([(3, "A"), (5, "B"), (3, "A")])[:5] == (1, 1, 1, 1, 1)
    independent = scores([(0, "A"), (0, "B"), (1, "A"), (1, "B")])
    assert independent[2:5] == (0, 0, 0)


def test_certain_labels_are_explained() -> None:
    assert scores([(0, "A"), (0, "B")])[2:5] == (0, 0, 1)  # one state says nothing, but is never split
    assert scores([(0, "A"), (1, "A")])[2:5] == (0, 1, 0)
    assert scores([(0, "A")])[:5] == (1, 1, 1, 1, 1)


def test_bad_tags_are_named() -> None:
    with pytest.raises(DataError, match=r"sentence 2 has 3 states, but 2 tags"):
        tag_scores([[0], [1, 2, 0]], [["A"], ["B", "A"]])
    with pytest.raises(DataError, match="2 sentences have states, but 1 have tags"):
        tag_scores([[0], [1]], [["A"]])
    with pytest.raises(DataError, match="no tokens"):
        tag_scores([[]], [[]])


def test_shares_fall_and_the_effective_number_is_exp_entropy() -> None:
    usage = state_usage(torch.tensor([2.0, 0.0, 5.0, 1.0]))
    assert usage.by_share == [StateUse(2, 0.625), StateUse(0, 0.25), StateUse(3, 0.125), StateUse(1, 0.0)]
    assert usage.shares == [0.625, 0.25, 0.125, 0.0]
    entropy = -sum(p * math.log(p) for p in (0.625, 0.25, 0.125))
    assert usage.effective == pytest.approx(math.exp(entropy), rel=1e-14)


@pytest.mark.parametrize("num_states", [1, 2, 17, 129])
def test_equal_states_all_count_and_one_alone_counts_one(num_states: int) -> None:
    equal = state_usage(torch.full((num_states,), 3.0))
    assert equal.effective == pytest.approx(num_states, rel=1e-12)
    assert equal.num_used == num_states
    assert [use.state for use in equal.by_share] == list(range(num_states))
    alone = state_usage(torch.eye(num_states)[-1])
    assert (alone.effective, alone.num_used, alone.by_share[0]) == (1, 1, (num_states - 1, 1))


def test_used_is_more_than_a_tenth_of_an_equal_share() -> None:
    assert state_usage(torch.tensor([75.0, 21.0, 3.0, 1.0], dtype=torch.float64)).num_used == 3  # 1 / (10 z) is 2.5 %


def test_usage_refuses_what_is_no_mass() -> None:
    with pytest.raises(DomainError, match="0 for every state"):
        state_usage(torch.zeros(3))
    with pytest.raises(DomainError, match="at least 0"):
        state_usage(torch.tensor([1.0, -1.0]))
    with pytest.raises(ShapeError, match="posterior_mass"):
        state_usage(torch.ones(2, 2))


def test_top_words_are_the_most_probable_first() -> None:
    rows = torch.tensor([[0.1, 0.6, 0.3, 0.0], [0.25, 0.25, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64).log()
    words = ["<unk>", "<eos>", "cat", "dog"]
    shown = top_words(rows, words, num=2)
    assert [[word for word, _ in row] for row in shown] == [["<eos>", "cat"], ["dog", "<unk>"], ["cat"]]
    assert [p for row in shown for _, p in row] == pytest.approx([0.6, 0.3, 0.5, 0.25, 1.0], rel=1e-14)
    assert [len(row) for row in top_words(rows, words)] == [3, 3, 1]


def test_top_words_refuses_what_does_not_fit() -> None:
    rows = torch.zeros(2, 3)
    with pytest.raises(ShapeError, match="3 words in its last axis, but 2 words"):
        top_words(rows, ["a", "b"])
    with pytest.raises(DomainError, match="num is 0"):
        top_words(rows, ["a", "b", "c"], num=0)
    with pytest.raises(DomainError, match="nan"):
        top_words(rows * math.nan, ["a", "b", "c"])
