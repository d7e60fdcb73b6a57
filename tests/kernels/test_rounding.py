"""Half precision with a scale: what rounding takes is bounded, whatever the size of the numbers."""

import pytest
import torch
from torch import Tensor

from tests.kernels.device import DEVICE, HERE

pytest.importorskip("triton")

from rankfold.kernels import rounding
from rankfold.kernels.rounding import Half, half_product, to_half

pytestmark = HERE


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def check(found: Half, exact: Tensor) -> None:
    """Eleven digits of what is above 2**-14 of the largest entry, and an absolute error of 2**-25 of it below."""
    assert found.half.dtype == torch.float16
    assert found.scale.shape == (1,)
    top = exact.abs().max()
    torch.testing.assert_close(found.scale[0].double(), top, rtol=2e-7, atol=0.0)  # one float32 product
    off = (found.half.double() * found.scale.double() - exact).abs()
    assert (off <= 2.0**-11 * 1.001 * exact.abs() + 2.0**-24 * top).all()


@pytest.mark.parametrize("size", [4096, 64])  # one program, or several with a last one that is not full
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_rounding(size: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "SIZE", size)
    x = drawn(17, 13) * scale
    x[16, 12] = -9.0 * scale  # the largest is negative and the very last
    check(to_half(x), x.double())


@pytest.mark.parametrize("size", [4096, 64])
def test_rows_are_weighted(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "SIZE", size)
    x, weight = drawn(17, 13), drawn(17, seed=1) * 1e-4
    weight[3] = 0.0
    found = to_half(x, weight)
    check(found, x.double() * weight.double()[:, None])
    assert (found.half[3] == 0).all()


def test_zeros_stay_zeros() -> None:
    found = to_half(torch.zeros(3, 5, device=DEVICE))
    assert (found.half == 0).all()
    assert (found.scale == 0).all()


def test_a_transposed_matrix() -> None:
    x, weight = drawn(5, 17), drawn(17, seed=1)
    check(to_half(x.T, weight), x.T.double() * weight.double()[:, None])


def test_products_are_summed_in_float32() -> None:
    x, y = drawn(3, 129).half(), drawn(129, 5, seed=1).half()
    found = half_product(x, y)
    assert found.dtype == torch.float32
    bound = 129 * 2.0**-23 * (x.abs().double() @ y.abs().double())
    assert ((found.double() - x.double() @ y.double()).abs() <= bound).all()
    # 4096 ones and a half: float16 would stop at 2048.
    ones = torch.ones(1, 4096, dtype=torch.float16, device=DEVICE)
    assert float(half_product(ones, ones.T)) == 4096.0
