"""Sizes beyond 32 bits and beyond a GPU's grid: offsets and launches, without the memory they would need."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.kernels.device import DEVICE, HERE

pytest.importorskip("triton")

import triton
import triton.language as tl

from rankfold.kernels import chain_scan
from rankfold.kernels.block_scan import triton as blocks
from rankfold.kernels.forward_backward import passes
from rankfold.kernels.offsets import begin

pytestmark = HERE
LARGEST_GRID = 2**31 - 1, 2**16 - 1, 2**16 - 1  # of CUDA, by axis


@triton.jit
def _begins(out, size):
    first = tl.program_id(0) * 2**15
    tl.store(out + tl.program_id(0), begin(first, size))
    tl.store(out + 4, begin(0, size))


def test_where_a_table_begins() -> None:
    """Four tables of 2**32 numbers: in 32 bits all of them would begin at 0."""
    out = torch.full((5,), -1, device=DEVICE)
    _begins[(4,)](out, 2**17)
    assert out.tolist() == [0, 2**32, 2**33, 3 * 2**32, 0]


class Grids:
    """In place of a kernel: notes the grids it would be launched on."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.seen.append(grid)
        return lambda *args, **kwargs: None


def check(kernel: Any, name: str, monkeypatch: pytest.MonkeyPatch, launch: Callable[[], Any]) -> None:
    grids = Grids()
    monkeypatch.setattr(kernel, name, grids)
    launch()
    (grid,) = grids.seen
    assert all(size <= most for size, most in zip(grid, LARGEST_GRID, strict=False)), grid


def test_many_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    x, by = torch.zeros(2**16, 1, 1, device=DEVICE), torch.zeros(2**16, 1, device=DEVICE)
    check(passes, "_weigh", monkeypatch, lambda: passes.weigh(x, x, x, by, by))


@pytest.mark.parametrize(("b", "t"), [(2**16, 2), (1, 2**16 + 1)])
def test_many_moves(b: int, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, obs, messages = (torch.zeros(*s, device=DEVICE) for s in ((b, t - 1, 1, 1), (b, t, 1), (t, b, 1)))
    weight = torch.zeros(b, t - 1, device=DEVICE)
    check(blocks, "_pair", monkeypatch, lambda: blocks.transition_posteriors(table, obs, messages, messages, weight))


@pytest.mark.parametrize(("b", "t"), [(2**16, 2), (1, 2**16 + 1)])
def test_many_sequences_of_few_states(b: int, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks where they are long, whose matrices take a launch of their own."""
    weight, start, emission = (torch.ones(*s, device=DEVICE) for s in ((2, 2), (b, 2), (t, b, 2)))
    ends, launched = torch.full((b,), t - 1, device=DEVICE), Grids()
    for name in ("multiply_chunks", "start_chunks", "end_chunks", "run_forward", "run_backward"):
        monkeypatch.setattr(chain_scan, name, launched)
    chunks = chain_scan._chunks(emission)
    chain_scan._filter(weight, start, emission, ends, chunks)
    chain_scan._ahead(weight, emission, start, ends, chunks)
    assert len(launched.seen) == (2 if b > t else 6)
    for grid in launched.seen:
        assert all(size <= most for size, most in zip(grid, LARGEST_GRID, strict=False)), grid
