"""Chains of blocks through the kernel that takes all positions at once, as on a GPU: float32 against float64."""

import pytest
import torch
from torch import Tensor

from rankfold.recursions.blocks import BlockPotentials, advance, log_z, steps
from tests.recursions.block_chains import block_chain, leaves
from tests.recursions.build import INF

pytest.importorskip("triton")

from rankfold.kernels.block_scan import triton as kernel

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda takes this path without an interpreter")

# Logarithms of a few units, rounded at every step; posteriors are at most 1.
SINGLE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels take tensors of the CPU; each leaves its name here."""
    taken: list[str] = []
    for name in ("filter_states", "future", "transition_posteriors"):
        monkeypatch.setattr(kernel, name, _counted(name, taken))
    monkeypatch.setattr(steps, "triton_serves", lambda *tensors: True)
    return taken


def _counted(name: str, taken: list[str]) -> object:
    work = getattr(kernel, name)

    def counted(*args: Tensor) -> object:
        taken.append(name)
        return work(*args)

    return counted


def doubled(p: BlockPotentials) -> BlockPotentials:
    """The same numbers in float64, which the kernel does not take."""
    return p._replace(
        log_initial=p.log_initial.double(), log_transition=p.log_transition.double(), log_obs=p.log_obs.double()
    )


@pytest.mark.parametrize(
    ("k", "lengths", "zeros"),
    [(3, [4, 1, 3], 0.0), (3, [5, 2, 4], 0.15), (17, [3, 3], 0.0), (1, [2], 0.0), (5, [1], 0.0)],
)
@pytest.mark.parametrize("create_graph", [False, True])
def test_value_and_gradients(k: int, lengths: list[int], zeros: float, create_graph: bool, calls: list[str]) -> None:
    p = block_chain(k, lengths, seed=4, zeros=zeros, dtype=torch.float32)
    at, tensors = leaves(p)
    exact, truths = leaves(doubled(p))
    weight = torch.rand(len(lengths), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, expected = log_z(at), log_z(exact)
    assert (expected > -INF).any()
    torch.testing.assert_close(value, expected, **SINGLE)
    found = torch.autograd.grad(value, tensors, weight, create_graph=create_graph, retain_graph=True)
    again = torch.autograd.grad(value, tensors, weight, create_graph=create_graph)
    for one, two, other in zip(found, again, torch.autograd.grad(expected, truths, weight), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, **SINGLE)
        assert torch.equal(one, two)
    # A backward pass lets the tensors go: the second, through the retained graph, solves the chain once more.
    assert calls == (["filter_states"] if create_graph else 2 * ["filter_states", "future", "transition_posteriors"])


def test_a_range_of_1000_nats() -> None:
    p = block_chain(3, [4, 3], seed=1, zeros=0.0, spread=300.0, dtype=torch.float32)
    at, tensors = leaves(p)
    exact, truths = leaves(doubled(p))
    value, expected = log_z(at), log_z(exact)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0.0)
    for one, other in zip(
        torch.autograd.grad(value.sum(), tensors), torch.autograd.grad(expected.sum(), truths), strict=True
    ):
        torch.testing.assert_close(one.double(), other, rtol=0.0, atol=1e-3)  # of logs of 1000, rounded to 1e-4


def test_impossible_sequences_leave_their_neighbours_alone() -> None:
    p = block_chain(3, [4, 4, 2, 3, 1], seed=9, zeros=0.0, dtype=torch.float32)
    p.log_obs[1, 2] = -INF
    p.log_transition[3, 0] = -INF
    good, bad = [0, 2, 4], [1, 3]
    at, tensors = leaves(p)
    exact, truths = leaves(doubled(p))
    value, expected = log_z(at), log_z(exact)
    assert (value[bad] == -INF).all()
    torch.testing.assert_close(value[good], expected[good], **SINGLE)
    for one, other in zip(
        torch.autograd.grad(value.sum(), tensors), torch.autograd.grad(expected.sum(), truths), strict=True
    ):
        assert (one[bad] == 0).all()
        torch.testing.assert_close(one[good].double(), other[good], **SINGLE)
    filtered, total = advance(p)
    assert (filtered[bad] == -INF).all()
    assert (total[bad] == -INF).all()
    torch.testing.assert_close(filtered[good].double(), advance(doubled(p))[0][good], **SINGLE)


def test_second_derivatives() -> None:
    p = block_chain(3, [3, 2], seed=2, zeros=0.0, dtype=torch.float32)
    seconds = []
    for at, tensors in (leaves(p), leaves(doubled(p))):
        firsts = torch.autograd.grad(log_z(at).sum(), tensors, create_graph=True)
        seconds.append(torch.autograd.grad(sum((x**2).sum() for x in firsts), tensors))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(one.double(), other, **SINGLE)


def test_large_blocks_and_float64_take_the_loops(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LARGEST", 3)
    for k, dtype in ((4, torch.float32), (3, torch.float64)):
        at, tensors = leaves(block_chain(k, [3, 2], seed=2, zeros=0.0, dtype=dtype))
        torch.autograd.grad(log_z(at).sum(), tensors)
    assert calls == []
