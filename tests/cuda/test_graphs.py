"""Captured gradients: the numbers of eager steps, for every family; rows that only fill a shape count nothing."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import ModelConfig, build_model
from rankfold.models.catalog import AnyModel
from rankfold.models.config import HMMS, Family
from rankfold.params.dropout import DropoutKind
from rankfold.training.carried import rows_of
from rankfold.training.config import DataConfig
from rankfold.training.graphs import GraphedGradients
from rankfold.training.shapes import Shapes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
FAMILIES: tuple[Family, ...] = get_args(Family)


def model_of(family: str, kind: DropoutKind = "exact", *, tied: bool = False) -> AnyModel:
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        tied=tied,
        reset_eos=tied,
        state_dropout_kind=kind,
        num_states=48,
        rank=24,
        dim=16,
        band=3,
        num_clusters=4,
        state_dropout=0.25,
        feature_dropout=0.25,
        logit_dropout=0.25,
    )
    return build_model(config, 30, clusters=uniform_clusters(30, 4, seed=0), seed=3).to(CUDA)


def eager(model: AnyModel, batch: Batch, tokens: int, seed: int) -> tuple[float, list[torch.Tensor]]:
    generator = torch.Generator(device=CUDA).manual_seed(seed)
    total = model.log_likelihood(batch.to(CUDA), generator=generator).sum()
    gradients = torch.autograd.grad(-total / tokens, list(model.parameters()))
    return float(total.detach()), list(gradients)


@pytest.mark.parametrize(
    ("family", "kind"),
    [*((family, "exact") for family in FAMILIES), *((family, "bernoulli") for family in HMMS)],
)
def test_graphs_give_the_gradients_of_eager_steps(family: str, kind: DropoutKind) -> None:
    """Replayed twice with other words, lengths and seeds; the second shape shares the first one's memory.

    States that are dropped each by itself leave by index in the eager step, by a mask in the graph.
    """
    model = model_of(family, kind)
    graphs = GraphedGradients(model, 64, "float32")
    for i, (rows, width) in enumerate([(3, 7), (8, 8), (2, 13), (5, 8)]):
        draw = torch.Generator().manual_seed(i)
        words = torch.randint(30, (rows, width), generator=draw)
        batch = Batch(words, torch.randint(1, width + 1, (rows,), generator=draw))
        model.zero_grad(set_to_none=False)
        value = float(graphs(batch, 20 + i, seed=100 + i))
        found = [x.grad.clone() for x in model.parameters() if x.grad is not None]
        expected, gradients = eager(model, batch, 20 + i, 100 + i)
        assert value == pytest.approx(expected, rel=1e-6)
        for one, other in zip(found, gradients, strict=True):
            # Sums in another order, in float32.
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert len(graphs.shapes) == 2


def test_two_batches_add_up() -> None:
    model = model_of("lhmm")
    graphs = GraphedGradients(model, 64, "float32")
    batches = [Batch(torch.randint(30, (4, 8)), torch.full((4,), 8)) for _ in range(2)]
    model.zero_grad(set_to_none=False)
    for seed, batch in enumerate(batches):
        graphs(batch, 64, seed)
    found = [x.grad.clone() for x in model.parameters() if x.grad is not None]
    parts = [eager(model, batch, 64, seed)[1] for seed, batch in enumerate(batches)]
    for one, first, second in zip(found, *parts, strict=True):
        torch.testing.assert_close(one, first + second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tied", [False, True])
def test_streams_carry_their_state_from_graph_to_graph(tied: bool) -> None:
    """The first batch by one graph, the others by another, the last with fewer rows in a narrower window."""
    model = model_of("block", tied=tied)
    graphs = GraphedGradients(model, Shapes(DataConfig(batching="streams", num_streams=5, window=6)), "float32")
    draw = torch.Generator().manual_seed(0)
    carried = expected_carried = None
    for i, (rows, width) in enumerate([(5, 6), (5, 6), (5, 6), (4, 3)]):
        words = torch.randint(30, (rows, width), generator=draw)
        batch = Batch(words, torch.full((rows,), width), first=not i, last=False)
        model.zero_grad(set_to_none=True)
        value, carried = graphs.step(batch, 30, 100 + i, carried if carried is None else rows_of(carried, slice(rows)))
        found = [x.grad if x.grad is None else x.grad.clone() for x in model.parameters()]
        generator = torch.Generator(device=CUDA).manual_seed(100 + i)
        p = model.potentials(batch.to(CUDA), carried=expected_carried, generator=generator)  # type: ignore[arg-type]
        total = model.log_z(p).sum()  # type: ignore[arg-type]
        gradients = torch.autograd.grad(-total / 30, list(model.parameters()), allow_unused=True)
        expected_carried = model.carry(p)  # type: ignore[arg-type]
        assert float(value) == pytest.approx(float(total.detach()), rel=1e-6)
        del p, total  # a graph kept alive has its own stream, which a capture must not wait for
        for one, other in zip(found, gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)  # sums in another order, in float32
        assert torch.equal(carried.states, expected_carried.states)
        torch.testing.assert_close(carried.log_filtered, expected_carried.log_filtered, rtol=1e-4, atol=1e-4)
    assert sorted(key[:3] for key in graphs.shapes) == [(5, 6, False), (5, 6, True)]
