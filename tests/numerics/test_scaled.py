"""Scaled vectors: to logs and back, at any range and at exact zeros."""

import pytest
import torch

from rankfold.numerics.scaled import Scaled, largest

INF = float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("shift", [0.0, -10_000.0, 10_000.0])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 17)])
def test_there_and_back(dtype: torch.dtype, shift: float, shape: tuple[int, ...], generator: torch.Generator) -> None:
    log_x = (torch.randn(shape, generator=generator, dtype=torch.float64) + shift).to(dtype)
    x = Scaled.from_log(log_x)
    assert x.mantissa.dtype == dtype
    assert x.log_scale.dtype == torch.float64
    assert x.log_scale.shape == shape[:-1]
    assert (x.mantissa.amax(-1) == 1).all()
    # One exponential and one logarithm of a number near 1, in the dtype; the scale itself is exact.
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(x.log(), log_x.double(), rtol=1e-15, atol=tolerance)


def test_zeros_stay_zeros() -> None:
    x = Scaled.from_log(torch.tensor([[-INF, -500.0, -501.0], [-INF, -INF, -INF]]))
    assert x.mantissa[0, :2].tolist() == [0.0, 1.0]
    assert x.mantissa[1].tolist() == [0.0, 0.0, 0.0]
    assert x.log_scale.tolist() == [-500.0, 0.0]
    assert x.log()[0, 0] == -INF
    assert x.log()[1].tolist() == [-INF, -INF, -INF]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 87.0), (torch.float64, 708.0)])
def test_the_stated_limit(dtype: torch.dtype, limit: float) -> None:
    """Entries down to the limit are kept to full precision, far below it they are zero."""
    log_x = torch.tensor([0.0, -limit, -2 * limit], dtype=dtype)
    x = Scaled.from_log(log_x)
    # A log of a normal number: one rounding error.
    assert x.log()[1].item() == pytest.approx(-limit, rel=1e-7)
    assert x.log()[2] == -INF


def test_largest_is_a_constant() -> None:
    log_x = torch.tensor([[1.0, 3.0], [-INF, -INF]], requires_grad=True)
    top = largest(log_x)
    assert top.tolist() == [[3.0], [0.0]]
    assert not top.requires_grad


def test_gradient_does_not_see_the_scale() -> None:
    """log sum exp has the softmax as its gradient, though the scale is held constant."""
    log_x = torch.tensor([0.0, 1.0, -INF], dtype=torch.float64, requires_grad=True)
    x = Scaled.from_log(log_x)
    (grad,) = torch.autograd.grad(x.mantissa.sum().log() + x.log_scale, log_x)
    torch.testing.assert_close(grad, torch.softmax(log_x.detach(), -1), rtol=1e-14, atol=0.0)
