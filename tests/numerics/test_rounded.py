"""A table's rounded copy: taken once, as the table lies, and only as long as the table is what was rounded."""

import torch

from rankfold.numerics.precision import Rounded
from rankfold.operators.factor import Factor


def pair() -> tuple[torch.Tensor, Rounded]:
    table = torch.rand(3, 5)
    return table, Rounded(table, table.bfloat16())


def test_taken_once() -> None:
    table, rounded = pair()
    half = rounded.take(table.detach())
    assert half is not None
    assert torch.equal(half, table.bfloat16())
    assert rounded.take(table) is None


def test_turned_as_the_table_is() -> None:
    table, rounded = pair()
    half = rounded.take(table.mT)
    assert half is not None
    assert half.shape == (5, 3)
    assert torch.equal(half, table.mT.bfloat16())


def test_not_of_another_table_nor_of_a_part_nor_of_a_changed_one() -> None:
    table, rounded = pair()
    assert rounded.take(table.clone()) is None
    table, rounded = pair()
    assert rounded.take(table[:2]) is None
    table, rounded = pair()
    table.mul_(2)
    assert rounded.take(table) is None


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        table, rounded = pair()
        assert rounded.take(table) is not None


def test_a_factor_of_another_tensor_has_no_copy() -> None:
    """Its memory may be given to somebody else, who would be taken for the table."""
    table = torch.rand(3, 4)
    factor = Factor(table, is_log=False, rounded=Rounded(table, table.bfloat16()))
    assert factor.like(table.clone()).rounded is None
    assert factor.like(table.detach()).rounded is factor.rounded
