"""The precision of products: set inside the block, restored after it, whatever happens inside."""

import contextlib

import pytest
import torch

from rankfold.errors import UnsupportedError
from rankfold.numerics import precision
from rankfold.numerics.precision import (
    check_precision,
    current_precision,
    matmul_precision,
    parameter_precision,
    product,
    products_in,
    round_off,
    summed_outer,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # modes are settings: they can be read where there is no GPU
FLAGS = torch.backends.cuda.matmul
INSIDE = {"float32": "ieee", "tf32": "tf32", "bf16": "ieee"}
MIXED = {**INSIDE, "mixed": "tf32"}


@pytest.fixture(params=["ieee", "tf32"])
def before(request: pytest.FixtureRequest):
    """Torch's setting before the block; put back after the test."""
    original = FLAGS.fp32_precision
    FLAGS.fp32_precision = request.param
    yield request.param
    FLAGS.fp32_precision = original


@pytest.mark.parametrize("precision", MIXED)
def test_set_and_restored(precision: str, before: str) -> None:
    with matmul_precision(precision, CPU):
        assert FLAGS.fp32_precision == MIXED[precision]
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert FLAGS.fp32_precision == before
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", MIXED)
def test_restored_after_an_exception(precision: str, before: str) -> None:
    entered = False
    with contextlib.suppress(KeyError), matmul_precision(precision, CPU):
        entered = True
        raise KeyError
    assert entered
    assert FLAGS.fp32_precision == before
    assert not torch.is_autocast_enabled("cpu")
    assert current_precision(GPU) == ("tf32" if before == "tf32" else "float32")  # not "mixed"


def test_what_a_product_computes() -> None:
    """1 + 2**-9 needs ten bits: bfloat16 has eight. float64 products ignore the mode."""
    fine = torch.tensor([[1.0 + 2.0**-9]])
    one = torch.ones(1, 1)
    with matmul_precision("float32", CPU):
        assert (fine @ one).item() == fine.item()
    with matmul_precision("bf16", CPU):
        assert (fine @ one).item() == 1.0
        assert (fine.double() @ one.double()).item() == fine.item()
    # The caller's own autocast does not leak into an exact block.
    with torch.autocast("cpu", torch.bfloat16), matmul_precision("float32", CPU):
        assert (fine @ one).item() == fine.item()


def test_round_off() -> None:
    assert [round_off(torch.float32, mode) for mode in INSIDE] == [2.0**-23, 2.0**-10, 2.0**-7]
    assert {round_off(torch.float64, mode) for mode in INSIDE} == {2.0**-52}


@pytest.mark.parametrize("precision", ["float32", "tf32", "mixed"])
def test_the_current_mode(precision: str, before: str) -> None:
    outside = "tf32" if before == "tf32" else "float32"
    assert current_precision(GPU) == outside
    with matmul_precision(precision, CPU):
        assert current_precision(GPU) == precision
        assert current_precision(CPU) == "float32"
        with matmul_precision("tf32", CPU):
            assert current_precision(GPU) == "tf32"
        assert current_precision(GPU) == precision
    assert current_precision(GPU) == outside


def test_modes_of_parameters() -> None:
    assert [parameter_precision(mode) for mode in INSIDE] == ["float32", "tf32", "mixed"]


@pytest.mark.parametrize("precision", MIXED)
def test_products_of_a_kernel(precision: str, before: str) -> None:
    """TF32 where the caller had it, float32 otherwise; bfloat16 is the kernel's own business, and autocast is off."""
    with torch.autocast("cpu", torch.bfloat16), products_in(precision, CPU):
        assert FLAGS.fp32_precision == ("tf32" if precision in ("tf32", "mixed") else "ieee")
        assert not torch.is_autocast_enabled("cpu")
    assert FLAGS.fp32_precision == before
    with products_in(current_precision(CPU), CPU):  # as it is
        assert FLAGS.fp32_precision == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_their_layout(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.rand(7, n, generator=g, dtype=dtype) for n in (5, 3))
    expected = torch.einsum("nz,nr->zr", x.double(), y.double())
    tolerance = {"rtol": 1e-6 if dtype == torch.float32 else 1e-14, "atol": 0.0}  # seven positive terms
    torch.testing.assert_close(product(x.mT, y).double(), expected, **tolerance)
    for like in (torch.empty(5, 3), torch.empty(3, 5).mT):
        found = summed_outer(x, y, like)
        assert found.dtype == dtype
        assert found.stride() == like.stride()
        torch.testing.assert_close(found.double(), expected, **tolerance)
    # A single column or row lies both ways: its gradient may, too.
    for like in (torch.empty(5, 1), torch.empty(1, 5).mT):
        column = summed_outer(x, y[:, :1], like)
        torch.testing.assert_close(column.double(), expected[:, :1], **tolerance)


@pytest.mark.parametrize("precision", ["float64", "fp16", "BF16", "", None])
def test_unknown_modes(precision: str) -> None:
    with pytest.raises(UnsupportedError, match=r'(?s)precision=.* is unknown; use "float32".*"tf32" or "bf16"'):
        check_precision(precision)


@pytest.mark.parametrize("precision", INSIDE)
def test_known_modes(precision: str) -> None:
    assert check_precision(precision) is None


@pytest.mark.parametrize("shape", [(11,), (3, 11), (2, 3, 11), (3, 8), (3, 3)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_long_sum_in_stretches(shape: tuple[int, ...], transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole stretches and a rest, or neither, of vectors and of any stack of them; gradients too."""
    monkeypatch.setattr(precision, "STRETCH", 4)
    asked = []
    monkeypatch.setattr(precision, "current_precision", lambda device: asked.append(device) or "tf32")
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.randn(shape[-1], 5, generator=g, dtype=torch.float64)
    y = (y.T.contiguous().T if transposed else y).requires_grad_()
    found = precision.long_product(x, y)
    assert bool(asked) == (shape[-1] > 4)
    torch.testing.assert_close(found, x @ y, rtol=1e-13, atol=1e-13)
    weight = torch.randn(found.shape, generator=g, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad(found, (x, y), weight), torch.autograd.grad(x @ y, (x, y), weight), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
