"""Systems whose diagonals are sums: plain ones against torch, nearly singular ones against fractions."""

from fractions import Fraction

import pytest
import torch

from rankfold.recursions.tree.termination import System, eliminate, solve_by_factors


@pytest.mark.parametrize("size", [1, 2, 7])
def test_as_torch_solves(size: int) -> None:
    g = torch.Generator().manual_seed(size)
    rest, inner = torch.rand(2, size, generator=g).double(), torch.rand(2, size, size, generator=g).double()
    inner = inner * (1 - torch.eye(size))
    right = torch.rand(2, size, 3, generator=g).double()
    matrix = torch.diag_embed(rest + inner.sum(-1)) - inner
    torch.testing.assert_close(solve_by_factors(*eliminate(rest, inner), right), torch.linalg.solve(matrix, right))
    one = System(rest[0], inner[0])
    torch.testing.assert_close(one.matrix(), matrix[0])
    torch.testing.assert_close(one.solve(right[0, :, 0]), torch.linalg.solve(matrix[0], right[0, :, 0]))
    assert one.positive()


def test_rows_that_hardly_sum_to_anything() -> None:
    """A cycle of three that ends once in 1e30 steps: the solution, by fractions, to the last digits."""
    rest, inner = [1e-30, 0.0, 3e-31], [[0.0, 0.7, 0.3], [0.25, 0.0, 0.75], [0.5, 0.5, 0.0]]
    exact = [
        [(Fraction(rest[i]) + sum(map(Fraction, inner[i])) if i == j else -Fraction(inner[i][j])) for j in range(3)]
        for i in range(3)
    ]
    right = [Fraction(1), Fraction(2), Fraction(3)]
    for k in range(3):  # Gauss
        for i in range(k + 1, 3):
            factor = exact[i][k] / exact[k][k]
            exact[i] = [x - factor * y for x, y in zip(exact[i], exact[k], strict=True)]
            right[i] -= factor * right[k]
    wanted = [Fraction(0)] * 3
    for i in (2, 1, 0):
        wanted[i] = (right[i] - sum(exact[i][j] * wanted[j] for j in range(i + 1, 3))) / exact[i][i]
    rest64 = torch.tensor(rest, dtype=torch.float64)
    system = System(rest64, torch.tensor(inner, dtype=torch.float64))
    found = system.solve(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([float(x) for x in wanted], rel=1e-14)
    assert system.positive()


@pytest.mark.parametrize(("rest", "wanted"), [([0.0, 0.0], True), ([-1e-18, 1e-17], True), ([1e-18, -1e-17], False)])
def test_on_the_brink(rest: list[float], wanted: bool) -> None:
    """Two that lead to one another: what they gain and lose is summed up, however little it is."""
    inner = torch.tensor([[0.0, 0.5], [0.5, 0.0]], dtype=torch.float64)
    assert System(torch.tensor(rest, dtype=torch.float64), inner).positive() is wanted
