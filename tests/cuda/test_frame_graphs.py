"""Captured gradients of recordings: the numbers of eager steps, for every family and kind of frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.models.frame_model import FrameModel
from rankfold.models.supervision import allowed_states
from rankfold.training.carried import rows_of
from rankfold.training.config import DataConfig
from rankfold.training.graphs import GraphedGradients
from rankfold.training.memory_budget import Budget
from rankfold.training.report import Reporter
from rankfold.training.setup import optimizer
from rankfold.training.shapes import FrameShapes
from rankfold.training.task import FrameTask
from tests.training.frame_batches import FAMILIES, OBSERVATIONS, drawn_batch, drawn_model
from tests.training.recordings import tiny, write_recordings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
CLOSE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5}  # sums in another order, in float32


def eager(
    model: FrameModel, batch: Batch, seed: int, carried: Tensor | None = None
) -> tuple[float, list[Tensor | None], Tensor | None]:
    """The log-likelihood of a step without graphs, its gradients, and what it carries on."""
    generator = torch.Generator(device=CUDA).manual_seed(seed)
    batch = batch.to(CUDA)
    parts = model.parts(generator)
    allowed = None if batch.labels is None else allowed_states(batch.labels, model.config.num_states)
    p = model.potentials(batch, parts=parts, carried=carried, allowed=allowed)
    total = model.log_z(p).sum()
    gradients = torch.autograd.grad(-total / 20, list(model.parameters()), allow_unused=True)
    return float(total.detach()), list(gradients), None if batch.last else model.carry(p, parts)


def expect_alike(model: FrameModel, gradients: list[Tensor | None]) -> None:
    for (name, x), gradient in zip(model.named_parameters(), gradients, strict=True):
        if gradient is None:
            assert x.grad is None
        else:
            assert x.grad is not None
            torch.testing.assert_close(x.grad, gradient, msg=name, **CLOSE)


@pytest.mark.parametrize("labels", [False, True], ids=["free", "labels"])
@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_give_the_gradients_of_eager_steps(family: str, observations: str, labels: bool) -> None:
    """Rows and frames that only fill a shape included; the second shape shares the first one's memory."""
    model = drawn_model(family, observations, self_transitions=labels or None).to(CUDA)
    graphs = GraphedGradients(model, FrameShapes(DataConfig(sentences=5, tokens=0)), "float32")
    for i, lengths in enumerate([[7, 2, 8], [16, 11, 3, 9, 12], [5], [8, 8, 8, 8, 8]]):
        batch = drawn_batch(observations, lengths, seed=i, labels=labels)
        model.zero_grad(set_to_none=False)
        value = float(graphs(batch, 20, i))
        expected, gradients, _ = eager(model, batch, i)
        assert value == pytest.approx(expected, rel=1e-5)
        expect_alike(model, gradients)
    assert len(graphs.shapes) == 2


@pytest.mark.parametrize("durations", ["negative_binomial", "categorical"])
@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_states(family: str, kind: str, durations: str) -> None:
    """States that are dropped each by itself leave by index in the eager step, by a mask in the graph."""
    settings = {"state_dropout": 0.3, "state_dropout_kind": kind, "self_transitions": True, "durations": durations}
    model = drawn_model(family, "gaussian", **settings).to(CUDA)
    graphs = GraphedGradients(model, FrameShapes(DataConfig(sentences=3, tokens=0)), "float32")
    for seed in range(3):
        batch = drawn_batch("gaussian", [8, 3], seed=seed)
        model.zero_grad(set_to_none=False)
        value = float(graphs(batch, 20, 100 + seed))
        expected, gradients, _ = eager(model, batch, 100 + seed)
        assert value == pytest.approx(expected, rel=1e-5)
        expect_alike(model, gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_carry_their_state_from_graph_to_graph(family: str) -> None:
    """The first window, two between and the last by graphs of their own; fewer rows than streams."""
    model = drawn_model(family, "gaussian").to(CUDA)
    graphs = GraphedGradients(model, FrameShapes(DataConfig(batching="streams", num_streams=4, window=8)), "float32")
    carried = expected_carried = None
    for i in range(4):
        batch = drawn_batch("gaussian", [8, 7, 8], seed=i)._replace(first=not i, last=i == 3)
        model.zero_grad(set_to_none=True)
        value, carried = graphs.step(batch, 20, i, None if carried is None else rows_of(carried, slice(3)))
        value = value.clone()
        expected, gradients, expected_carried = eager(model, batch, i, expected_carried)
        assert float(value) == pytest.approx(expected, rel=1e-5)
        expect_alike(model, gradients)
        if expected_carried is None:
            assert carried is None
        else:
            torch.testing.assert_close(carried, expected_carried, rtol=1e-4, atol=1e-4)
    assert {key[2:4] for key in graphs.shapes} == {(False, False), (True, False), (True, True)}


def test_a_shape_that_is_captured_after_a_plain_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain step ran on the usual stream, and nothing of it may be left there for the capture to wait for."""
    config = tiny(family="frame_hmm", tokens=30, graphs=True)
    data = write_recordings(tmp_path / "all.npz")
    task = FrameTask.read(config, data, tmp_path, Reporter(), resume=False)
    model = task.model().to(CUDA)

    def never(batches: list[Any], what: str) -> Any:
        raise AssertionError(what)

    steps = task.steps(model, optimizer(model, config.train), config, Budget(), never)
    assert steps.graphs is not None
    batches = {batch.values.shape: batch for batch in task.epoch(0)}
    assert len(batches) > 1  # another shape, another capture
    for i, batch in enumerate(batches.values()):
        steps([batch], 20, 2 * i)
        with monkeypatch.context() as patch:
            patch.setattr(steps.graphs, "takes", lambda _: False)
            steps([batch], 20, 2 * i + 1)
    assert len(steps.graphs.shapes) > 1
