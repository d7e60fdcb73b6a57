"""Sums: the entries add up, whatever the scales of the terms."""

import math

import pytest
import torch

from rankfold.operators import Banded, Dense, LowRank, Operator, RowScaled, Sum

INF = float("inf")


def true_push(op: Operator, x: torch.Tensor) -> torch.Tensor:
    """log(x A) from the linear product and its scale."""
    return op.push(x).log() + op.log_scale


def test_literal(generator: torch.Generator) -> None:
    band = Banded(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), 0)
    low = LowRank(torch.tensor([[1.0], [10.0]]), torch.tensor([[1.0], [3.0]]))
    op = Sum([band, low])
    assert op.to_dense().tolist() == [[2.0, 5.0], [10.0, 33.0]]
    assert op.rows(torch.tensor([1])).tolist() == [[10.0, 33.0]]
    assert op.push(torch.tensor([1.0, 1.0])).tolist() == [12.0, 38.0]
    assert op.pull(torch.tensor([1.0, 1.0])).tolist() == [7.0, 43.0]
    assert op.log_factors == (False, False, False)


@pytest.mark.parametrize("names", ["low band", "band low", "low low", "dense low band low", "dense band"])
def test_written_out(names: str, generator: torch.Generator) -> None:
    def some(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    made = {
        "low": lambda: LowRank(some(5, 2), some(5, 2)),
        "band": lambda: Banded(some(5, 3), -1),
        "dense": lambda: Dense(some(5, 5)),
    }
    op = Sum([made[name]() for name in names.split()])
    before = [x.clone() for x in op.factors()]
    assert op.is_written
    (found,) = op.maps()
    expected = torch.stack([term.to_dense() for term in op.terms]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)
    weight = torch.rand(5, 5, generator=generator, dtype=torch.float64)
    slopes = torch.autograd.grad(found, op.factors(), weight, retain_graph=True)
    for one, other in zip(slopes, torch.autograd.grad(expected, op.factors(), weight), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-15)
    assert all(torch.equal(x, y) for x, y in zip(op.factors(), before, strict=True))


def test_one_term_and_sums_of_sums(generator: torch.Generator) -> None:
    weights = [torch.rand(3, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    a, b, c = Dense(weights[0]), Dense.from_log(weights[1].log()), Dense(weights[2])
    nested = Sum([Sum([a]), Sum([b, c])])
    assert nested.shape == (3, 4)
    # Three terms, one of them through its log.
    torch.testing.assert_close(nested.to_dense(), sum(weights), rtol=1e-14, atol=0.0)
    x = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(true_push(nested, x).exp(), x @ sum(weights), rtol=1e-13, atol=0.0)


def test_scale_of_the_largest_term_is_kept() -> None:
    """exp(5000) overflows every dtype and exp(-5000) underflows: neither may be left out or put in twice."""
    big, small = torch.full((2, 2), 5000.0), torch.full((2, 2), -5000.0)
    op = Sum([Dense.from_log(small), Dense(torch.ones(2, 2)), Dense.from_log(big)])
    assert op.log_scale == 5000.0
    assert op.push(torch.ones(2)).tolist() == [2.0, 2.0]
    both_small = Sum([Dense.from_log(small), Dense.from_log(small)])
    assert both_small.log_scale == -5000.0
    assert both_small.pull(torch.ones(2)).tolist() == [4.0, 4.0]


def test_logs_are_exact_however_far_the_scales_are_apart() -> None:
    """Beside a term of zeros, and in rows that only the smaller term reaches."""
    far = torch.full((2, 2), -1000.0, dtype=torch.float64)
    log_x = torch.tensor([0.0, 0.0], dtype=torch.float64)
    nothing = Dense.from_log(torch.full((2, 2), -INF, dtype=torch.float64))
    first_row = Dense(torch.tensor([[0.5, 0.0], [0.0, 0.0]], dtype=torch.float64))
    double = -1000.0 + math.log(2.0)
    # One logarithm near 1000.
    want = torch.tensor([double, double], dtype=torch.float64)
    torch.testing.assert_close(Sum([nothing, Dense.from_log(far)]).push_log(log_x), want, rtol=1e-14, atol=0.0)
    op = Sum([first_row, Dense.from_log(far)])
    want = torch.tensor([math.log(0.5), double], dtype=torch.float64)
    torch.testing.assert_close(op.push_log(log_x), want, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(op.pull_log(log_x), want, rtol=1e-14, atol=0.0)
    value, index = op.push_max(log_x[None])
    torch.testing.assert_close(value[0], torch.tensor([math.log(0.5), -1000.0]).double(), rtol=1e-7, atol=0.0)
    assert index.tolist() == [[0, 0]]


def test_gradient_reaches_every_term() -> None:
    first = torch.zeros(2, 2, requires_grad=True)
    second = torch.zeros(2, 2, requires_grad=True)  # log of 1
    op = Sum([Dense(first), Dense.from_log(second)])
    op.push(torch.tensor([1.0, 2.0])).sum().backward()
    assert first.grad.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert second.grad.tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_sum_inside_scaled_rows() -> None:
    op = RowScaled(Sum([Dense(torch.ones(2, 2)), Dense.from_log(torch.zeros(2, 2))]), torch.tensor([1.0, 10.0]))
    assert op.to_dense().tolist() == [[2.0, 2.0], [20.0, 20.0]]
