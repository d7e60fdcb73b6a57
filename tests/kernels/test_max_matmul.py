"""The max-plus product against loops, ties above all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankfold.kernels import log_products as blocks_module
from rankfold.kernels.log_products import max_matmul

INF = float("inf")
SIZES = st.sampled_from([1, 2, 3, 5, 17])


def by_loops(log_x: Tensor, log_w: Tensor) -> tuple[Tensor, Tensor]:
    """The largest sum and the smallest index that has it."""
    weights = log_w.mT.tolist()
    sums = [[[a + b for a, b in zip(row, column, strict=True)] for column in weights] for row in log_x.tolist()]
    best = [[max(terms) for terms in row] for row in sums]
    where = [[terms.index(max(terms)) for terms in row] for row in sums]
    return torch.tensor(best, dtype=torch.float64), torch.tensor(where)


def check(log_x: Tensor, log_w: Tensor) -> None:
    best, where = max_matmul(log_x, log_w)
    want_best, want_where = by_loops(log_x.double(), log_w.double())
    assert torch.equal(best, want_best)
    assert torch.equal(where, want_where)


@given(n=SIZES, z=SIZES, y=SIZES, seed=st.integers(0, 2**31))
def test_value(n: int, z: int, y: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    log_x = 100 * torch.randn(n, z, generator=g, dtype=torch.float64)
    log_w = torch.randn(z, y, generator=g, dtype=torch.float64)
    log_x[torch.rand(n, z, generator=g) < 0.2] = -INF
    check(log_x, log_w)


@given(n=SIZES, z=st.sampled_from([2, 5, 17, 63, 129, 1000]), y=SIZES, seed=st.integers(0, 2**31))
def test_ties_go_to_the_smallest_index(n: int, z: int, y: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    log_x = torch.randint(0, 2, (n, z), generator=g).double()
    log_w = torch.randint(0, 2, (z, y), generator=g).double()
    log_x[0] = 0.0
    check(log_x, log_w)


def test_nothing_but_ties() -> None:
    best, where = max_matmul(torch.zeros(2, 129), torch.zeros(129, 3))
    assert (best == 0).all()
    assert (where == 0).all()
    best, where = max_matmul(torch.full((2, 129), -INF), torch.zeros(129, 3))
    assert (best == -INF).all()
    assert (where == 0).all()


@pytest.mark.parametrize("block", [1, 5, 12, 35, 10**9])
def test_blocks_change_nothing(block: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "BLOCK", block)
    log_x = torch.randint(0, 3, (7, 5), generator=generator).double()
    log_w = torch.randint(0, 3, (5, 11), generator=generator).double()
    check(log_x, log_w)


def test_float64_scores_on_float32_weights() -> None:
    """Scores that differ by 1e-9 at -5000 are the same number in float32."""
    log_x = torch.tensor([[-5000.0, -5000.0 + 1e-9]], dtype=torch.float64)
    best, where = max_matmul(log_x, torch.zeros(2, 1))
    assert best.dtype == torch.float64
    assert best.item() == -5000.0 + 1e-9
    assert where.item() == 1
