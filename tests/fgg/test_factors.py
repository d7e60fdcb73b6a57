"""Tensors given by their factors."""

import pytest
import torch

from rankfold.errors import ShapeError
from rankfold.fgg import Factored

U, V, W = (torch.rand(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 5))


def test_a_cpd_is_the_sum_of_outer_products() -> None:
    tensor = Factored.cpd(U, V, W)
    expected = sum(U[:, None, None, r] * V[None, :, None, r] * W[None, None, :, r] for r in range(4))
    torch.testing.assert_close(tensor.to_dense(), expected)
    assert tensor.shape == (2, 3, 5)
    assert tensor.rank == 4


def test_a_factor_may_own_several_axes_in_any_order() -> None:
    body = torch.rand(5, 2, 4, dtype=torch.float64)
    tensor = Factored(((V, (1,)), (body, (2, 0))))
    assert tensor.shape == (2, 3, 5)
    torch.testing.assert_close(tensor.to_dense(), (body.permute(1, 0, 2) @ V.T).transpose(1, 2))


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ((), "at least one factor"),
        (((U, (0,)), (V, (0,))), r"own the axes \[0, 0\]"),
        (((U, (0,)), (V, (2,))), r"own the axes \[0, 2\]"),
        (((U, (0, 1)),), r"axes \(0, 1\) has shape \(2, 4\), but needs 3 axes"),
        (((U, (0,)), (V[:, :3], (1,))), r"axes \(1,\) has rank 3, but the first has rank 4"),
        (((U[:0], (0,)),), "size at least 1"),
    ],
)
def test_wrong_factors_are_errors(factors, message) -> None:
    with pytest.raises(ShapeError, match=message):
        Factored(factors)
