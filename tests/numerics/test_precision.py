"""The precision of products: set inside the block, restored after it, whatever happens inside."""

import contextlib

import pytest
import torch

from rankfold.errors import UnsupportedError
from rankfold.numerics.precision import check_precision, matmul_precision, round_off

CPU = torch.device("cpu")
FLAGS = torch.backends.cuda.matmul
INSIDE = {"float32": "ieee", "tf32": "tf32", "bf16": "ieee"}


@pytest.fixture(params=["ieee", "tf32"])
def before(request: pytest.FixtureRequest):
    """Torch's setting before the block; put back after the test."""
    original = FLAGS.fp32_precision
    FLAGS.fp32_precision = request.param
    yield request.param
    FLAGS.fp32_precision = original


@pytest.mark.parametrize("precision", INSIDE)
def test_set_and_restored(precision: str, before: str) -> None:
    with matmul_precision(precision, CPU):
        assert FLAGS.fp32_precision == INSIDE[precision]
        assert torch.is_autocast_enabled("cpu") == (precision == "bf16")
    assert FLAGS.fp32_precision == before
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", INSIDE)
def test_restored_after_an_exception(precision: str, before: str) -> None:
    entered = False
    with contextlib.suppress(KeyError), matmul_precision(precision, CPU):
        entered = True
        raise KeyError
    assert entered
    assert FLAGS.fp32_precision == before
    assert not torch.is_autocast_enabled("cpu")


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


@pytest.mark.parametrize("precision", ["float64", "fp16", "BF16", "", None])
def test_unknown_modes(precision: str) -> None:
    with pytest.raises(UnsupportedError, match=r'(?s)precision=.* is unknown; use "float32".*"tf32" or "bf16"'):
        check_precision(precision)


@pytest.mark.parametrize("precision", INSIDE)
def test_known_modes(precision: str) -> None:
    assert check_precision(precision) is None
