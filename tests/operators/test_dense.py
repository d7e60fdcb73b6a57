"""What is special to the dense operator: any shape, and logs of any range."""

import math

import pytest
import torch

from rankfold.operators import Dense

INF = float("inf")


def test_rows_are_where_we_come_from() -> None:
    op = Dense(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert op.shape == (2, 3)
    assert op.push(torch.tensor([1.0, 10.0])).tolist() == [41.0, 52.0, 63.0]
    assert op.pull(torch.tensor([1.0, 10.0, 100.0])).tolist() == [321.0, 654.0]
    assert op.push_max(torch.tensor([[0.0, -INF]]))[1].tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("shift", [-5000.0, 5000.0])
def test_logs_may_exceed_the_dtype(shift: float) -> None:
    # shift + 0 and shift + 1 are exact in float32.
    op = Dense.from_log(torch.tensor([[0.0, 1.0], [-INF, 0.0]]) + shift)
    assert op.log_scale == shift + 1
    x = torch.tensor([2.0, 4.0])
    want = torch.tensor([2.0 * math.exp(-1.0), 2.0 + 4.0 * math.exp(-1.0)])
    # Three operations in float32.
    torch.testing.assert_close(op.push(x), want, rtol=1e-6, atol=0.0)
    # float32 holds a number near 5000 to 5e-4.
    torch.testing.assert_close(op.push_log(x.log()), want.log() + shift + 1, rtol=0.0, atol=5e-4)


def test_nothing_but_zeros() -> None:
    op = Dense.from_log(torch.full((2, 2), -INF))
    assert op.log_scale == 0.0
    assert op.push(torch.ones(2)).tolist() == [0.0, 0.0]
    assert op.to_dense().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert op.push_log_weighted(torch.ones(2)).tolist() == [0.0, 0.0]
    assert op.push_log(torch.zeros(2)).tolist() == [-INF, -INF]


def test_gradient_at_zero_weight() -> None:
    weight = torch.tensor([[0.0, 1.0], [2.0, 0.0]], requires_grad=True)
    Dense(weight).push(torch.tensor([3.0, 5.0])).sum().backward()
    assert weight.grad.tolist() == [[3.0, 3.0], [5.0, 5.0]]
