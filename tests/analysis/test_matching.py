"""States matched to labels: the best of all assignments, by trying them all."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankfold.analysis.matching import Matching, assign, contingency, match_states
from rankfold.errors import DataError, DomainError

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
