"""Kernels on a CUDA device at sizes somebody uses, and in bfloat16, which an interpreter does not have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfold import Dense, LowRank, SegmentPotentials
from rankfold.kernels import segment_scan
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.kernels.linear_softmax import SoftmaxTable, linear_softmax
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import current_precision, matmul_precision, product, summed_outer
from rankfold.recursions import segments as semi_markov
from rankfold.recursions.blocks import log_z
from rankfold.recursions.segments import sweep
from rankfold.recursions.segments.sweep import Linear
from tests.kernels.scans import check, given
from tests.recursions import segment_batches
from tests.recursions.block_chains import block_chain, leaves

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CUDA = torch.device("cuda")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(CUDA)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator(device=CUDA).manual_seed(seed)


def off(found: Tensor, expected: Tensor) -> float:
    """The relative error of a tensor as a whole."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("batch", [1, 16, 20, 64])
@pytest.mark.parametrize("kind", ["dense", "dense transposed", "low rank", "right transposed"])
def test_scans_of_both_passes(kind: str, batch: int, precision: str) -> None:
    check(kind, given(kind, batch, 1000, 200, 5, ragged=True), precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("z", "r", "d"), [(64, 0, 19), (128, 128, 19), (1000, 16, 20), (17, 3, 200), (300, 0, 1)])
def test_scans_of_segments(
    z: int, r: int, d: int, shared: bool, graph: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All frames in one launch, by one program a sequence or several, eager and captured, against float64 in logs."""
    monkeypatch.setattr(segment_scan, "SHARED_FROM", 0 if shared else None)
    factors = [drawn(z, r or z, seed=i).abs().to(dtype) for i in range(2 if r else 1)]
    op = LowRank(*factors) if r else Dense(*factors)
    lengths = [230, 1, 77]
    log_obs = 3 * drawn(3, 230, z, seed=2).to(dtype)
    log_duration = drawn(z, d, seed=3).log_softmax(1).to(dtype)
    p = SegmentPotentials(
        drawn(z, seed=4).to(dtype), op, log_duration, log_obs, lengths=torch.tensor(lengths, device=CUDA), censored=True
    )
    at, tensors = segment_batches.leaves(p)

    def step() -> list[Tensor]:
        value = semi_markov.log_z(at)
        return [value, *torch.autograd.grad(value.sum(), tensors)]

    assert sweep._maps(Linear(op, log_obs), log_obs, log_duration.mT.contiguous()) is not None
    if graph:
        recorded, found = capture_graph(step)
        recorded.replay()
        torch.cuda.synchronize()
    else:
        found = step()
    exact, truths = segment_batches.leaves(segment_batches.doubled(p))
    truth = semi_markov.log_z(exact, "log")
    torch.testing.assert_close(found[0], truth, rtol=1e-6, atol=1e-5)
    for one, other in zip(found[1:], torch.autograd.grad(truth.sum(), truths), strict=True):
        assert off(one, other) < (1e-4 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize("k", [128, 115, 256])
def test_scans_of_blocks(k: int) -> None:
    p = block_chain(k, [17, 1, 9], seed=1, zeros=0.1, dtype=torch.float32)
    found, expected = [], []
    for dtype, into in ((torch.float32, found), (torch.float64, expected)):
        moved = p._replace(
            log_initial=p.log_initial.to(CUDA, dtype),
            log_transition=p.log_transition.to(CUDA, dtype),
            log_obs=p.log_obs.to(CUDA, dtype),
            block=p.block.to(CUDA),
            lengths=p.lengths.to(CUDA),  # type: ignore[union-attr]
        )
        at, tensors = leaves(moved)
        value = log_z(at)
        into += [value, *torch.autograd.grad(value.sum(), tensors)]
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-5)
    for one, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)  # probabilities, of logs around 20


@pytest.mark.parametrize("num_columns", [4096, 2**15 + 1])  # whole rows, and one entry more than they hold
def test_how_often_entries_leave_a_softmax(num_columns: int) -> None:
    query, key = drawn(64, 8), 0.1 * drawn(num_columns, 8, seed=1)
    dropout = 0.3
    gone = linear_softmax(query, key, dropout=dropout, generator=seeded()).share == 0
    again = linear_softmax(query, key, dropout=dropout, generator=seeded()).share == 0
    other = linear_softmax(query, key, dropout=dropout, generator=seeded(1)).share == 0
    assert torch.equal(gone, again)
    spread = (dropout * (1 - dropout)) ** 0.5
    for seen in (gone, other):
        assert abs(float(seen.double().mean()) - dropout) < 5 * spread / seen.numel() ** 0.5
        for axis in (0, 1):  # no row and no column is special
            rates = seen.double().mean(axis)
            assert float((rates - dropout).abs().max()) < 7 * spread / seen.shape[axis] ** 0.5
    both = (gone & other).double().mean()  # independent of each other, and rows of each other
    assert abs(float(both) - dropout**2) < 1e-2
    assert abs(float((gone[1:] & gone[:-1]).double().mean()) - dropout**2) < 1e-2
    generator = seeded()
    first = linear_softmax(query, key, dropout=dropout, generator=generator).share
    assert not torch.equal(first == 0, linear_softmax(query, key, dropout=dropout, generator=generator).share == 0)


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 2e-3), ("mixed", 2e-2)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_linear_softmax(precision: str, bound: float, dropout: float) -> None:
    """TF32 has eleven digits, bfloat16 eight; errors of sums are those of their terms, or less."""
    inputs = [drawn(300, 64), 0.2 * drawn(1001, 64, seed=1), drawn(1001, seed=2)]
    weights, pick = torch.rand(300, device=CUDA), drawn(300, 1001, seed=3)

    def scalar(table: SoftmaxTable) -> Tensor:
        share = table.share
        return (
            (share * pick.to(share.dtype)).sum()
            + table.log_total.sum()
            + (table.mix(weights.to(share.dtype)).square().sum())
        )

    leaves = [x.clone().requires_grad_() for x in inputs]
    with matmul_precision(precision, CUDA):  # type: ignore[arg-type]
        table = linear_softmax(*leaves, dropout=dropout, generator=seeded())
        found = torch.autograd.grad(scalar(table), leaves)
    doubles = [x.double().requires_grad_() for x in inputs]
    logits = doubles[0] @ doubles[1].T + doubles[2]
    if dropout:
        logits = logits.masked_fill(table.share == 0, -float("inf"))
    exact = SoftmaxTable(torch.softmax(logits, 1), torch.logsumexp(logits, 1))
    assert off(table.share, exact.share) < min(bound, 2e-3)
    assert off(table.log_total, exact.log_total) < min(bound, 2e-3)
    for one, other in zip(found, torch.autograd.grad(scalar(exact), doubles), strict=True):
        assert one.dtype == torch.float32
        assert off(one, other) < bound


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 2e-3), ("mixed", 2e-3), ("bf16", 2e-3)])
@pytest.mark.parametrize(("z", "v"), [(300, 1001), (1000, 10_001)])
def test_linear_logsumexp(precision: str, bound: float, z: int, v: int) -> None:
    inputs = [drawn(z, 64), 0.2 * drawn(v, 64, seed=1), drawn(v, seed=2)]
    weight = drawn(z, seed=3)
    leaves = [x.clone().requires_grad_() for x in inputs]
    with matmul_precision(precision, CUDA):  # type: ignore[arg-type]
        value = linear_logsumexp(*leaves)
        found = torch.autograd.grad(value, leaves, weight)
    doubles = [x.double().requires_grad_() for x in inputs]
    exact = torch.logsumexp(doubles[0] @ doubles[1].T + doubles[2], 1)
    assert off(value, exact) < bound
    for one, other in zip(found, torch.autograd.grad(exact, doubles, weight.double()), strict=True):
        assert off(one, other) < bound


def test_products_round_their_operands_alone() -> None:
    x, y = drawn(7, 5), drawn(7, 3, seed=1)
    for precision, bound in (("float32", 1e-6), ("tf32", 1e-3), ("mixed", 1e-3), ("bf16", 1e-2)):
        with matmul_precision(precision, CUDA):  # type: ignore[arg-type]
            assert current_precision(CUDA) == precision
            for like in (torch.empty(5, 3), torch.empty(3, 5).mT):
                found = summed_outer(x, y, like)
                assert found.dtype == torch.float32
                assert found.stride() == like.stride()
                assert off(found, x.double().T @ y.double()) < bound
    ones = torch.ones(1, 2**12, device=CUDA)
    with matmul_precision("bf16", CUDA):
        assert float(product(ones + 2.0**-9, ones.T)) == 2**12  # operands lose their ninth bit
        assert float(product(ones, ones.T) + 1) == 2**12 + 1  # the sum does not


def test_what_is_captured_is_replayed_with_other_seeds() -> None:
    query, key = drawn(17, 8), drawn(129, 8, seed=1)
    generator = seeded()

    def work() -> Tensor:
        return linear_softmax(query, key, dropout=0.5, generator=generator).share

    graph, result = capture_graph(work, generator=generator)
    seen = []
    for seed in (1, 2, 1):
        generator.manual_seed(seed)
        result.fill_(float("nan"))
        graph.replay()
        seen.append(result.clone())
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0] == 0, seen[1] == 0)
    assert torch.equal(linear_softmax(query, key, dropout=0.5, generator=seeded(1)).share, seen[0])
    query.zero_()  # inputs are read again at every replay
    graph.replay()
    kept = result > 0
    torch.testing.assert_close(result, kept / kept.sum(1, keepdim=True), rtol=1e-5, atol=0.0)
