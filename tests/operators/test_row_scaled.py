"""Scaled rows: rows that are normalised, rows switched off, logs of any range."""

import torch

from rankfold.operators import Dense, LowRank, Operator, RowScaled
from tests.operators.cases import Outer


class WithoutMax:
    """An operator without `push_max`: only what the protocol asks."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __getattr__(self, name: str) -> object:
        if name == "push_max":
            raise AttributeError(name)
        return getattr(self._operator, name)


def test_literal() -> None:
    op = RowScaled(Dense(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])), torch.tensor([10.0, 0.0]))
    assert op.shape == (2, 3)
    assert op.to_dense().tolist() == [[10.0, 20.0, 30.0], [0.0, 0.0, 0.0]]
    assert op.push(torch.tensor([1.0, 1.0])).tolist() == [10.0, 20.0, 30.0]
    assert op.pull(torch.tensor([1.0, 1.0, 1.0])).tolist() == [60.0, 0.0]
    assert op.rows(torch.tensor([1, 0])).tolist() == [[0.0, 0.0, 0.0], [10.0, 20.0, 30.0]]


def test_rows_become_distributions(generator: torch.Generator) -> None:
    left, right = (torch.rand(5, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    low = LowRank(left, right)
    ones = torch.ones(5, dtype=torch.float64)
    op = RowScaled(low, 1.0 / low.pull(ones))
    # A division and a sum of ten terms.
    torch.testing.assert_close(op.pull(ones), ones, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(op.to_dense().sum(1), ones, rtol=1e-14, atol=0.0)


def test_scales_cancel_in_logs() -> None:
    """Weights of exp(-3000) with rows scaled by exp(3000) are ones."""
    op = RowScaled.from_log(Dense.from_log(torch.full((2, 2), -3000.0)), torch.full((2,), 3000.0))
    assert op.log_scale == 0.0
    assert op.push(torch.ones(2)).tolist() == [2.0, 2.0]
    assert op.log_rows(torch.arange(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert op.to_dense().tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_best_predecessors_of_an_operator_that_has_none() -> None:
    weight = torch.tensor([1.0, 2.0, 4.0])
    scale = torch.tensor([8.0, 1.0, 1.0])
    log_x = torch.tensor([[0.0, 0.0, 0.0], [-9.0, 0.0, 0.0]])
    with_max = RowScaled(Outer(weight), scale).push_max(log_x)
    without = RowScaled(WithoutMax(Outer(weight)), scale).push_max(log_x)
    assert with_max[1].tolist() == without[1].tolist() == [[0, 0, 0], [2, 2, 2]]
    # Two logs and their sum in float32.
    torch.testing.assert_close(without[0], with_max[0], rtol=1e-6, atol=1e-6)


def test_gradient_at_zero_scale() -> None:
    scale = torch.zeros(2, requires_grad=True)
    RowScaled(Dense(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), scale).push(torch.tensor([1.0, 10.0])).sum().backward()
    assert scale.grad.tolist() == [3.0, 70.0]
