"""The oracles of tables and of rank-space chains on cases done by hand."""

import math

import pytest

from tests.oracles import rank_chain, tables


def test_residual() -> None:
    first = ([[1.0, 0.0], [0.0, -1.0]], [0.0, 1.0])  # (3, 2) -> (3, -1) -> relu (3, 0)
    second = ([[1.0, 5.0], [-1.0, 5.0]], [0.5, 0.0])  # -> (3.5, -3) -> relu (3.5, 0)
    assert tables.residual([3.0, 2.0], first, second) == [6.5, 2.0]


def test_log_features() -> None:
    projection = [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]
    assert tables.log_features([3.0, 4.0], projection, "exp") == [3.0, 4.0, 10.0]
    assert tables.log_features([3.0, 4.0], projection, "positive") == [-9.5, -8.5, -2.5]


def test_generalised_softmax() -> None:
    log_two = math.log(2)
    uniform = tables.generalised_softmax([[0.0], [1.0]], [[0.0], [log_two]])
    assert uniform == [pytest.approx([1 / 3, 2 / 3])] * 2
    # Rows of weights 1 + e^0, 2; and 1, 2 + e^0: only the main diagonal is inside a band of reach 0.
    banded = tables.generalised_softmax([[0.0], [0.0]], [[0.0], [log_two]], [[0.0], [0.0]])
    assert banded == [pytest.approx([2 / 4, 2 / 4]), pytest.approx([1 / 4, 3 / 4])]
    cut = tables.generalised_softmax([[0.0], [0.0]], [[0.0], [log_two]], [[0.0], [0.0]], [1])
    assert cut == [[0.0, 1.0], [0.0, 1.0]]


def test_rank_chain() -> None:
    start, rank, state, emission = [1.0, 0.0], [[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]], [[1.0], [1.0]]
    arguments = (start, rank, state, emission, [0, 0])
    # State 0 first; rank 0 leads to state 1, which has rank 0 only; rank 1 leads back to state 0.
    found = {both: weight for both, weight in rank_chain.paths(*arguments).items() if weight}
    assert found == {((0, 1), (0, 0)): 0.5, ((0, 0), (1, 0)): 0.25, ((0, 0), (1, 1)): 0.25}
    assert rank_chain.probability(*arguments) == 1.0
    assert rank_chain.rank_posterior(*arguments) == [[0.5, 0.5], [0.75, 0.25]]
