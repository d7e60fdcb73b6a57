"""How broadcasts are cut: every cell once, no block above the limit; and the poison these tests run on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankfold.kernels import log_products as blocks_module
from rankfold.kernels.log_products import blocks


@given(rows=st.integers(1, 20), sources=st.integers(1, 20), targets=st.integers(1, 20), limit=st.integers(1, 500))
def test_every_cell_once(rows: int, sources: int, targets: int, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK", limit)
        cut = blocks(rows, sources, targets)
    seen = torch.zeros(rows, targets, dtype=torch.int64)
    for at in cut:
        seen[at] += 1
        assert seen[at].numel() * sources <= max(limit, sources)  # one cell is the least there is
    assert (seen == 1).all()


def test_one_block_where_all_fits() -> None:
    assert blocks(3, 4, 5) == [(slice(0, 3), slice(0, 5))]


def test_fresh_memory_is_poisoned() -> None:
    assert torch.empty(2, 3).isnan().all()
    assert torch.empty_like(torch.ones(3)).isnan().all()
    assert torch.ones(3).new_empty((2,)).isnan().all()
    assert (torch.empty(3, dtype=torch.int64) < -(10**9)).all()
    assert torch.zeros(3).tolist() == [0.0, 0.0, 0.0]
