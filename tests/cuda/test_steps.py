"""A gradient step of every family on a CUDA device, in every precision, against float64; captured as well as eager."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import ModelConfig, build_model
from rankfold.models.catalog import AnyModel
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.graphs import GraphedGradients

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CUDA = torch.device("cuda")
NUM_WORDS, NUM_CLUSTERS = 3001, 16
FAMILIES = {
    "lhmm": ModelConfig(family="lhmm", num_states=1000, rank=200, dim=64),
    "lhmm, positive features": ModelConfig(family="lhmm", num_states=1000, rank=200, dim=64, feature_map="positive"),
    "lhmm, free tables": ModelConfig(family="lhmm", num_states=500, rank=100, neural=False),
    "hmm": ModelConfig(family="hmm", num_states=1000, dim=64),
    "rank": ModelConfig(family="rank", num_states=1000, rank=300, dim=64, plan="rank"),
    "rank, by states": ModelConfig(family="rank", num_states=1000, rank=300, dim=64, plan="state"),
    "banded": ModelConfig(family="banded", num_states=1000, rank=100, band=20, dim=64),
    "block": ModelConfig(family="block", num_states=1024, num_clusters=NUM_CLUSTERS, dim=64),
}
# What log Z may be off by, of itself; and how far from 1 the cosine of the gradients' angle may be.
BOUNDS: dict[Precision, tuple[float, float]] = {"float32": (1e-6, 1e-6), "tf32": (3e-5, 1e-3), "bf16": (1e-3, 1e-2)}


def model_of(family: str) -> AnyModel:
    config = FAMILIES[family]
    clusters = uniform_clusters(NUM_WORDS, NUM_CLUSTERS, seed=0) if config.family == "block" else None
    return build_model(config, NUM_WORDS, clusters=clusters, seed=3).to(CUDA)


def batch_of(*, ragged: bool, rows: int = 20, width: int = 17, seed: int = 1) -> Batch:
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(NUM_WORDS, (rows, width), generator=g)
    lengths = torch.randint(1, width + 1, (rows,), generator=g) if ragged else torch.full((rows,), width)
    return Batch(words, lengths).to(CUDA)


def step(model: AnyModel, batch: Batch, precision: Precision) -> tuple[Tensor, Tensor]:
    """log Z of every sequence, and the gradient of their sum as one vector, both float64."""
    with matmul_precision(parameter_precision(precision), CUDA):
        value = model.log_z(model.potentials(batch), precision=precision)
        return value.detach(), flat(torch.autograd.grad(value.sum(), list(model.parameters())))


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.double().flatten() for x in gradients])


def cosine(x: Tensor, y: Tensor) -> float:
    return float((x @ y) / (x.norm() * y.norm()))


@pytest.mark.parametrize("ragged", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_precision(family: str, ragged: bool) -> None:
    model, batch = model_of(family), batch_of(ragged=ragged)
    expected, gradient = step(copy.deepcopy(model).double(), batch, "float32")
    for precision, (off, angle) in BOUNDS.items():
        value, found = step(model, batch, precision)
        assert ((value - expected).abs() <= off * expected.abs()).all(), precision
        assert found.isfinite().all(), precision
        assert cosine(found, gradient) >= 1 - angle, precision
        # An error of e at right angles to the gradient has a cosine of 1 - e^2 / 2.
        assert float(found.norm() / gradient.norm()) == pytest.approx(1, abs=(2 * angle) ** 0.5), precision


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_equals_eager(family: str, precision: Precision) -> None:
    """The same kernels on the same numbers; sums may be taken in another order."""
    model, batch = model_of(family), batch_of(ragged=True, rows=8, width=16)
    graphs = GraphedGradients(model, 128, precision)
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        total = float(graphs(batch, 1, seed=0))
        found = flat([x.grad for x in model.parameters() if x.grad is not None])
        value, gradient = step(model, batch, precision)
        assert total == pytest.approx(float(value.sum()), rel=1e-6)
        assert cosine(found, -gradient) >= 1 - 1e-6
        assert float(found.norm() / gradient.norm()) == pytest.approx(1, abs=1e-3)
    assert len(graphs.shapes) == 1


def test_many_shapes_share_their_memory() -> None:
    """A captured shape keeps its inputs, not a workspace: those are tens of MiB."""
    model = model_of("lhmm")
    graphs = GraphedGradients(model, 128, "tf32")
    graphs(batch_of(ragged=False, rows=1, width=64), 1, seed=0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    for width in range(8, 64, 8):
        graphs(batch_of(ragged=False, rows=1, width=width), 1, seed=0)
    torch.cuda.synchronize()
    assert len(graphs.shapes) == 8
    assert torch.cuda.memory_allocated() - before < 2**24  # seven shapes, 2 MiB each and a little
    assert torch.cuda.memory_reserved() - reserved < 2**27
