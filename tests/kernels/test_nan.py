"""What is not a number stays so in every kernel that rounds: a run that went wrong must not look like lost mass."""

import pytest
import torch
from torch import Tensor

from tests.kernels.device import DEVICE, HERE

pytest.importorskip("triton")

from rankfold.kernels.forward_backward import triton as scan
from rankfold.kernels.linear_softmax import triton as tables
from rankfold.kernels.rounding import to_half
from tests.kernels.scans import given

pytestmark = HERE
# As a GPU makes them, with every bit set (one more and the sign turns), and as a CPU does.
KINDS = [0x7FFFFFFF, 0x7FC00000, -1]


def nan(bits: int) -> Tensor:
    return torch.tensor([bits], dtype=torch.int32).view(torch.float32).to(DEVICE)


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("others", [0.0, 1.0])
def test_half_precision(bits: int, others: float) -> None:
    """Beside zeros, too, whose scale is 0."""
    x = torch.full((3, 5), others, device=DEVICE)
    x[1, 2] = nan(bits)
    found = to_half(x)
    exact = found.half.float() * found.scale
    assert exact[1, 2].isnan()
    exact[1, 2] = others
    assert (exact == others).all()


@pytest.mark.parametrize("bits", KINDS)
def test_rounded_distributions(bits: int) -> None:
    x = torch.zeros(2, 5, device=DEVICE)
    x[1] = nan(bits)
    table, log_total = tables._normalised(x, None, None, 0.0, None, rounded=True)
    assert table[1].isnan().all()
    assert log_total[1].isnan()
    assert table[0].isfinite().all()


@pytest.mark.parametrize("bits", KINDS)
def test_transitions_of_a_scan(bits: int) -> None:
    """A weight that is not a number reaches every sequence: none of them is a little smaller instead."""
    x = given("dense", 2, 5, 1, 2)
    x.maps[0][3, 1] = nan(bits)
    got, sums = scan.two_way(*x, "tf32")
    assert got.filtered[1, :, 1].isnan().all()
    assert got.future[0, :, 3].isnan().all()
    assert sums.column[0, 1].isnan()


@pytest.mark.parametrize("bits", KINDS)
def test_messages_of_a_scan(bits: int) -> None:
    x = given("low rank", 2, 5, 3, 3)
    x.emission[1, 1, 2] = nan(bits)
    got, _ = scan.two_way(*x, "tf32")
    assert got.filtered[2, 1].isnan().all()
    assert got.filtered[:, 0].isfinite().all()
