"""A low-rank matrix without its diagonal: exact where a subtraction would cancel, and never written out."""

import pytest
import torch

from rankfold import Dense, LowRank, RowScaled, ShapeError, UnsupportedError, WithoutDiagonal
from rankfold.operators import without_diagonal


def factors(z: int, r: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = (torch.rand(z, r, generator=generator, dtype=torch.float64) for _ in range(2))
    return left, right


@pytest.fixture(params=[512, 2])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other blocks are summed by a product of a table, or from both sides."""
    monkeypatch.setattr(without_diagonal, "MANY", request.param)
    monkeypatch.setattr(without_diagonal, "FEW", 0)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(("z", "r"), [(1, 1), (2, 3), (15, 2), (16, 2), (17, 2), (129, 3), (129, 40), (63, 70)])
def test_it_is_the_matrix_less_its_diagonal(z: int, r: int, generator: torch.Generator) -> None:
    left, right = factors(z, r, generator)
    op = WithoutDiagonal(LowRank(left, right))
    dense = (left @ right.mT).fill_diagonal_(0.0)
    x = torch.rand(2, 3, z, generator=generator, dtype=torch.float64)
    # Sums of positive terms in another order.
    torch.testing.assert_close(op.push(x), x @ dense, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(op.pull(x), x @ dense.mT, rtol=1e-13, atol=0.0)
    assert op.push(x[0, 0]).shape == (z,)
    torch.testing.assert_close(op.to_dense(), dense, rtol=1e-14, atol=0.0)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("z", [17, 129])
def test_nothing_cancels(z: int) -> None:
    """One state outweighs all others by 1e30: what reaches it comes from them alone, with all its digits."""
    generator = torch.Generator().manual_seed(1)
    left, right = factors(z, 2, generator)
    x = torch.full((z,), 1e-30, dtype=torch.float64)
    x[5] = 1.0
    op = WithoutDiagonal(LowRank(left, right))
    others = torch.arange(z) != 5
    expected = (x[others, None] * left[others]).sum(0) @ right[5]
    torch.testing.assert_close(op.push(x)[5], expected, rtol=1e-13, atol=0.0)
    expected = left[5] @ (x[others, None] * right[others]).sum(0)
    torch.testing.assert_close(op.pull(x)[5], expected, rtol=1e-13, atol=0.0)


def test_rows_become_distributions(generator: torch.Generator) -> None:
    op = WithoutDiagonal(LowRank(*factors(37, 3, generator)))
    ones = torch.ones(37, dtype=torch.float64)
    moves = RowScaled(op, 1 / op.pull(ones))
    torch.testing.assert_close(moves.to_dense().sum(1), ones, rtol=1e-14, atol=0.0)
    assert (moves.to_dense().diagonal() == 0).all()


def test_no_matrix_of_all_pairs(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """Products take blocks of 16 of 4,096 states: no temporary comes near z y entries."""
    op = WithoutDiagonal(LowRank(*factors(4096, 2, generator)))
    largest = []
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda x, y: largest.append((out := matmul(x, y)).numel()) or out)
    op.push(torch.ones(4096, dtype=torch.float64))
    assert 0 < max(largest) <= 4096 * 16


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="set the diagonal itself to 0"):
        WithoutDiagonal(Dense(torch.ones(2, 2)))
    with pytest.raises(ShapeError, match="only a square matrix"):
        WithoutDiagonal(LowRank(torch.ones(3, 1), torch.ones(2, 1)))
