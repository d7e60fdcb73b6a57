"""Long chains of few states on a GPU: sums, gradients, best paths and samples of the loops on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.recursions.chain import in_chunks, scaled
from tests.kernels.chains import draw

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def answers(p: rankfold.ChainPotentials, device: str) -> list[Tensor]:
    given = p.log_initial, *p.transition.factors(), p.log_obs, p.log_final
    moved = [x.detach().to(device).requires_grad_() for x in given]
    on = rankfold.ChainPotentials(moved[0], rankfold.Dense(moved[1]), moved[2], moved[3], p.lengths.to(device))
    log_z = rankfold.log_z(on)
    grads = torch.autograd.grad(torch.where(log_z > float("-inf"), log_z, 0.0).sum(), moved)
    with torch.no_grad():
        state = rankfold.posterior(on).state
    return [x.cpu() for x in (log_z, *grads, rankfold.viterbi(on).log_prob, state)]


def test_a_thousand_random_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros, dead ends, ranges to 1,000 nats, one chunk to many."""
    from rankfold.kernels import chain_scan

    monkeypatch.setattr(in_chunks, "SHORT", 2)
    for seed in range(250):
        g = torch.Generator().manual_seed(seed)
        states, length, chunks = (int(torch.randint(*x, (), generator=g)) for x in ((1, 17), (2, 60), (1, 9)))
        monkeypatch.setattr(chain_scan, "_chunks", lambda _, chunks=chunks: chunks)
        dtype, span = [torch.float32, torch.float64][seed % 2], [3.0, 40.0, 300.0, 1000.0][seed // 2 % 4]
        p = draw(states, 4, length, seed, dtype, span)
        rtol = 1e-4 if dtype == torch.float32 else 1e-10
        for found, expected in zip(answers(p, "cuda"), answers(p, "cpu"), strict=True):
            torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol, msg=lambda m, seed=seed: f"{seed}: {m}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_long_sequence(dtype: torch.dtype) -> None:
    """100,000 positions by chunks, against one program that runs along them all."""
    from rankfold.kernels import chain_scan

    g = torch.Generator("cuda").manual_seed(0)
    z, length = 15, 100_000
    weight = torch.randn(z, z, generator=g, device="cuda", dtype=dtype).softmax(-1)
    emission = (3 * torch.randn(length, 1, z, generator=g, device="cuda", dtype=dtype)).exp()
    emission /= emission.amax(-1, keepdim=True)
    start, ends = torch.full((1, z), 1.0, device="cuda", dtype=dtype), torch.tensor([length - 1], device="cuda")
    rtol = 2e-4 if dtype == torch.float32 else 1e-11
    chunks = chain_scan._chunks(emission)
    assert chunks > 100
    for run in (
        lambda n: chain_scan._filter(weight, start, emission, ends, n),
        lambda n: chain_scan._ahead(weight, emission, start, ends, n),
    ):
        for found, expected in zip(run(chunks), run(1), strict=True):
            torch.testing.assert_close(found, expected, rtol=rtol, atol=0.0)


def test_a_graph_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator("cuda").manual_seed(1)
    z, length = 7, 2_000
    log_obs = torch.randn(2, length, z, generator=g, device="cuda")
    transition = rankfold.Dense(torch.randn(z, z, generator=g, device="cuda").softmax(-1))
    p = rankfold.ChainPotentials(torch.zeros(z, device="cuda"), transition, log_obs)
    assert scaled.scanned(rankfold.recursions.chain.validate(p)) is not None
    expected = rankfold.log_z(p)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rankfold.log_z(p)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = rankfold.log_z(p)
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_without_weight_stay_zero(dtype: torch.dtype) -> None:
    """A sequence that is impossible from its second position on: no NaN, whatever is asked."""
    log_obs = torch.zeros(1, 3, 2, device="cuda", dtype=dtype)
    log_obs[:, 1] = float("-inf")
    transition = rankfold.Dense(torch.full((2, 2), 0.5, device="cuda", dtype=dtype))
    p = rankfold.ChainPotentials(torch.zeros(2, device="cuda", dtype=dtype), transition, log_obs)
    filtered = rankfold.online.filter(p)
    assert filtered.log_filtered[0, 1:].tolist() == [[float("-inf")] * 2] * 2
    assert filtered.log_z[0, 1:].tolist() == [float("-inf")] * 2
    assert not rankfold.posterior(p).state.any()
