"""The band against a literal loop: edges, offsets, wide bands, cells that are never read."""

import pytest
import torch
from torch import Tensor

from rankfold.operators import Banded, Dense
from rankfold.operators.banded import MIN_BLOCK
from tests.folded import folded

INF, NAN = float("inf"), float("nan")

# (states, width, offset): every offset of small bands, then bands around and above the height of a block.
SMALL = [(z, k, o) for z in (1, 2, 3, 5) for k in range(1, 2 * z) for o in range(1 - z, z - k + 1)]
LARGE = [
    (63, 3, -1),
    (63, 63, -31),
    (63, 125, -62),
    (129, MIN_BLOCK - 1, 7),
    (129, MIN_BLOCK, -129 + 1),
    (129, MIN_BLOCK + 1, -16),
    (129, 63, -31),
    (129, 63, 66),
    (129, 257, -128),
]


def by_loops(band: list[list[float]], offset: int, empty: float) -> list[list[float]]:
    """A[z][z + offset + c] = band[z][c], cell by cell."""
    size = len(band)
    out = [[empty] * size for _ in band]
    for z, cells in enumerate(band):
        for c, weight in enumerate(cells):
            if 0 <= z + offset + c < size:
                out[z][z + offset + c] = weight
    return out


def outside(size: int, width: int, offset: int) -> Tensor:
    """Which cells of a band lie outside the matrix."""
    cells = [[not 0 <= z + offset + c < size for c in range(width)] for z in range(size)]
    return torch.tensor(cells)


@folded("size, width, offset", SMALL + LARGE)
def test_literal(size: int, width: int, offset: int, generator: torch.Generator) -> None:
    band = torch.rand(size, width, generator=generator, dtype=torch.float64)
    op = Banded(band, offset)
    want = torch.tensor(by_loops(band.tolist(), offset, 0.0), dtype=torch.float64)
    assert op.width == width
    assert torch.equal(op.to_dense(), want)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    # Sums of up to 129 positive terms in float64.
    torch.testing.assert_close(op.push(x), x @ want, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(op.pull(x), x @ want.mT, rtol=1e-13, atol=0.0)
    value, index = op.push_max(x)
    want_value, want_index = (x.unsqueeze(-1) + want.log()).max(1)
    torch.testing.assert_close(value, want_value, rtol=1e-14, atol=1e-14)
    assert torch.equal(index[value > -INF], want_index[value > -INF])


@folded("size, width, offset", SMALL + LARGE)
def test_literal_from_logs(size: int, width: int, offset: int, generator: torch.Generator) -> None:
    band = 100.0 * torch.randn(size, width, generator=generator, dtype=torch.float64)
    op = Banded.from_log(band, offset)
    want = torch.tensor(by_loops(band.tolist(), offset, -INF), dtype=torch.float64)
    assert torch.equal(op.log_rows(torch.arange(size)), want)
    log_x = torch.randn(2, size, generator=generator, dtype=torch.float64)
    # A few rounding errors of numbers of up to 500; atol where they happen to cancel.
    for got, matrix in ((op.push_log(log_x), want), (op.pull_log(log_x), want.mT)):
        expected = torch.logsumexp(log_x.unsqueeze(-1) + matrix, 1)
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize(("size", "width", "offset"), [(1, 1, 0), (3, 2, -2), (5, 9, -4), (5, 3, 1), (129, 63, 40)])
@pytest.mark.parametrize("is_log", [False, True])
def test_cells_outside_are_never_read(
    size: int, width: int, offset: int, is_log: bool, generator: torch.Generator
) -> None:
    gone = outside(size, width, offset)
    band = torch.rand(size, width, generator=generator, dtype=torch.float64)
    make = Banded.from_log if is_log else Banded
    clean = make(band, offset)
    poisoned = torch.where(gone, NAN, band).requires_grad_()
    op = make(poisoned, offset)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    every = torch.arange(size)
    total = x.new_zeros(())
    for method, argument in [
        ("push", x),
        ("pull", x),
        ("push_log", x),
        ("pull_log", x),
        ("push_log_weighted", x),
        ("rows", every),
        ("log_rows", every),
    ]:
        got = getattr(op, method)(argument)
        assert torch.equal(got, getattr(clean, method)(argument)), method
        total = total + got[got > -INF].sum()
    assert torch.equal(op.to_dense(), clean.to_dense())
    with torch.no_grad():
        assert torch.equal(op.push_max(x)[0], clean.push_max(x)[0])
    (grad,) = torch.autograd.grad(total, poisoned)
    assert (grad[gone] == 0).all()
    assert grad.isfinite().all()
    assert (grad[~gone] != 0).all()


def test_diagonal_and_neighbours() -> None:
    """A[0, 1] = 1, A[1, 2] = 2: a chain that only moves on, its last cell outside."""
    op = Banded(torch.tensor([[1.0], [2.0], [NAN]]), 1)
    assert op.push(torch.tensor([10.0, 100.0, 1000.0])).tolist() == [0.0, 10.0, 200.0]
    assert op.pull(torch.tensor([10.0, 100.0, 1000.0])).tolist() == [100.0, 2000.0, 0.0]
    value, index = op.push_max(torch.tensor([[0.0, 5.0, 50.0]]))
    assert value[0, 0] == -INF
    assert index[0, 1:].tolist() == [0, 1]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 63])
def test_as_wide_as_the_matrix_is_dense(size: int, generator: torch.Generator) -> None:
    weight = torch.rand(size, size, generator=generator, dtype=torch.float64)
    band = torch.full((size, 2 * size - 1), NAN, dtype=torch.float64)
    for z in range(size):
        band[z, size - 1 - z : 2 * size - 1 - z] = weight[z]
    dense, op = Dense(weight), Banded(band, 1 - size)
    x = torch.rand(2, size, generator=generator, dtype=torch.float64)
    assert torch.equal(op.to_dense(), weight)
    for method in ("push", "pull", "push_log", "pull_log", "push_log_weighted"):
        # The same terms summed in another order.
        torch.testing.assert_close(getattr(op, method)(x), getattr(dense, method)(x), rtol=1e-13, atol=1e-13)
    assert torch.equal(op.push_max(x)[1], dense.push_max(x)[1])


def test_gradient_at_zero_weight_inside() -> None:
    weight = torch.zeros(3, 2, requires_grad=True)
    Banded(weight, 0).push(torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert weight.grad.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 0.0]]
