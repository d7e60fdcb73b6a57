"""The chain on a CUDA device: the CPU's float64 is the truth. Skipped, saying so, where there is none."""

from __future__ import annotations

import pytest
import torch

import rankfold
from rankfold import ChainPotentials, Dense, LowRank, Sum
from rankfold.operators import Product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

NUM_STATES, RANK, NUM_SEQUENCES, NUM_POSITIONS = 129, 17, 5, 33


def potentials(kind: str) -> ChainPotentials:
    """Seeded potentials in float64 on the CPU, exactly representable in float32; NaN beyond the lengths."""
    generator = torch.Generator().manual_seed(3)

    def weights(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator).double()

    low_rank = LowRank(weights(NUM_STATES, RANK), weights(NUM_STATES, RANK))
    transition = {
        "dense": Dense(weights(NUM_STATES, NUM_STATES)),
        "low rank": low_rank,
        "sum": Sum([low_rank, rankfold.Banded(weights(NUM_STATES, 5), -2)]),
        "scaled product": rankfold.RowScaled(
            Product(weights(NUM_STATES, RANK), weights(NUM_STATES, RANK)), weights(NUM_STATES)
        ),
    }[kind]
    log_obs = (3 * torch.randn(NUM_SEQUENCES, NUM_POSITIONS, NUM_STATES, generator=generator)).double()
    lengths = torch.tensor([33, 1, 17, 32, 2])
    for sequence, length in enumerate(lengths.tolist()):
        log_obs[sequence, length:] = float("nan")
    return ChainPotentials(weights(NUM_STATES), transition, log_obs, weights(NUM_STATES), lengths)


def cast(p: ChainPotentials, device: str, dtype: torch.dtype) -> ChainPotentials:
    assert p.log_final is not None
    assert p.lengths is not None
    return ChainPotentials(
        p.log_initial.to(device, dtype),
        p.transition.with_factors(*(factor.to(device, dtype) for factor in p.transition.factors())),
        p.log_obs.to(device, dtype),
        p.log_final.to(device, dtype),
        p.lengths.to(device),
    )


def value_and_gradients(p: ChainPotentials, **options: str) -> list[torch.Tensor]:
    """log Z, and its gradients in log_obs and the factors; autograd sees fresh tensors every time."""
    log_obs, *factors = (x.detach().requires_grad_() for x in (p.log_obs, *p.transition.factors()))
    q = p._replace(log_obs=log_obs, transition=p.transition.with_factors(*factors))
    value = rankfold.log_z(q, **options)  # type: ignore[arg-type]
    return [value.detach(), *torch.autograd.grad(value.sum(), [log_obs, *factors])]


@pytest.mark.parametrize("kind", ["dense", "low rank", "sum", "scaled product"])
@pytest.mark.parametrize(
    ("dtype", "options", "tolerance"),
    [
        (torch.float64, {}, 1e-10),
        (torch.float64, {"arithmetic": "log"}, 1e-10),
        (torch.float32, {}, 1e-5),  # 33 steps of round-off 1.2e-7
        (torch.float32, {"precision": "tf32"}, 2e-2),  # operands rounded to 2^-11
        (torch.float32, {"precision": "bf16"}, 2e-1),  # operands rounded to 2^-8
    ],
)
def test_value_and_gradients_agree_with_the_cpu(
    kind: str, dtype: torch.dtype, options: dict[str, str], tolerance: float
) -> None:
    truth = value_and_gradients(cast(potentials(kind), "cpu", torch.float64))
    found = value_and_gradients(cast(potentials(kind), "cuda", dtype), **options)
    for expected, result in zip(truth, found, strict=True):
        torch.testing.assert_close(result.double().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["dense", "low rank", "sum"])
def test_decoding_agrees_with_the_cpu(kind: str) -> None:
    here, there = potentials(kind), cast(potentials(kind), "cuda", torch.float64)
    best, other = rankfold.viterbi(here), rankfold.viterbi(there)
    assert torch.equal(best.path, other.path.cpu())
    torch.testing.assert_close(other.log_prob.cpu(), best.log_prob, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(rankfold.entropy(there).cpu(), rankfold.entropy(here), rtol=1e-9, atol=1e-9)
    paths = rankfold.sample(there, generator=torch.Generator("cuda").manual_seed(0)).path
    inside = torch.arange(NUM_POSITIONS) < here.lengths[:, None]  # type: ignore[index]
    assert torch.equal(paths.cpu() >= 0, inside)


def test_devices_do_not_mix() -> None:
    p = cast(potentials("dense"), "cuda", torch.float32)
    with pytest.raises(rankfold.UnsupportedError, match=r"log_initial is on cpu.*log_obs is on cuda"):
        rankfold.log_z(p._replace(log_initial=p.log_initial.cpu()))


@pytest.mark.parametrize("kind", ["dense", "low rank", "sum"])
def test_a_captured_graph_replays_the_same_numbers(kind: str) -> None:
    p = cast(potentials(kind), "cuda", torch.float32)
    expected = value_and_gradients(p)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            value_and_gradients(p)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = value_and_gradients(p)
    for result in results:
        result.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for result, truth in zip(results, expected, strict=True):
        torch.testing.assert_close(result, truth, rtol=1e-5, atol=1e-6)


def test_a_captured_graph_says_nan_where_it_cannot_repeat() -> None:
    log_obs = torch.tensor([[[0.0, -100.0], [-200.0, 0.0], [0.0, -90.0]], [[0.0] * 2] * 3], device="cuda")
    p = ChainPotentials(torch.zeros(2, device="cuda"), Dense(torch.eye(2, device="cuda")), log_obs)
    with torch.no_grad():
        expected = rankfold.log_z(p)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            value = rankfold.log_z(p)
        graph.replay()
    assert value[0].isnan()
    assert not expected[0].isnan()
    torch.testing.assert_close(value[1].cpu(), expected[1].cpu(), rtol=1e-6, atol=0)
