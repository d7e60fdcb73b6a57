"""Sums in log space, and x log x: values and gradients, above all where there is nothing to sum."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from rankfold.numerics.log_space import log_sum, log_weights, x_log_x

INF = float("inf")


@pytest.mark.parametrize("spread", [1.0, 1000.0])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 17)])
def test_log_sum(spread: float, shape: tuple[int, ...], generator: torch.Generator) -> None:
    log_x = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    # A few rounding errors of the result.
    torch.testing.assert_close(log_sum(log_x), torch.logsumexp(log_x, -1), rtol=1e-14, atol=1e-14)


def test_log_sum_of_zeros() -> None:
    log_x = torch.tensor([[-INF, -INF], [-INF, 2.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    out = log_sum(log_x)
    assert out[0] == -INF
    assert out[1].item() == 2.0
    assert out[2].item() == pytest.approx(math.log(2.0), rel=1e-15)
    (grad,) = torch.autograd.grad(out.sum(), log_x, create_graph=True)
    assert grad.tolist() == [[0.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    (second,) = torch.autograd.grad(grad.square().sum(), log_x)
    assert second.isfinite().all()
    # torch's own sum gives NaN here, which is why ours exists.
    (patched,) = torch.autograd.grad(torch.logsumexp(log_x, -1)[0], log_x)
    assert patched[0].isnan().all()


def test_log_sum_gradients(generator: torch.Generator) -> None:
    log_x = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    log_x[0, 1] = -INF
    assert gradcheck(log_sum, (log_x.requires_grad_(),))
    assert gradgradcheck(log_sum, (log_x,))


def test_x_log_x() -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    out = x_log_x(x)
    torch.testing.assert_close(out, torch.special.xlogy(x, x), rtol=1e-14, atol=1e-15)  # one rounding
    assert out[0] == 0.0
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad[0] == 0.0
    torch.testing.assert_close(grad[1:], (x.log() + 1)[1:], rtol=1e-14, atol=1e-15)


def test_x_log_x_gradients(generator: torch.Generator) -> None:
    x = torch.rand(5, generator=generator, dtype=torch.float64) + 0.1
    assert gradcheck(x_log_x, (x.requires_grad_(),))
    assert gradgradcheck(x_log_x, (x,))


def test_log_weights() -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    out = log_weights(x)
    assert out[0] == -INF
    assert torch.equal(out[1:], x[1:].log())
    (grad,) = torch.autograd.grad(out[1:].sum() + 0.0 * out[0], x)
    # 0 at weight 0, where torch's own log has 0 / 0.
    torch.testing.assert_close(grad, torch.tensor([0.0, 2.0, 1.0, 1 / 3], dtype=torch.float64), rtol=1e-14, atol=0.0)
