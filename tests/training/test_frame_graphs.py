"""Graphs of recordings without a GPU: filled shapes, labels and carried windows give the gradients of plain steps.

A stand-in replays (`tests/training/replays.py`); `tests/cuda/test_frame_graphs.py` captures.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfold.data.frames import frames_of
from rankfold.models.frame_model import FrameModel
from rankfold.training.carried import leaves
from rankfold.training.config import Config, DataConfig
from rankfold.training.graphs import GraphedGradients, graphs_serve
from rankfold.training.memory_budget import Budget
from rankfold.training.recordings import frame_batches
from rankfold.training.report import Reporter
from rankfold.training.setup import optimizer
from rankfold.training.shapes import FrameShapes, shapes_of
from rankfold.training.task import FrameTask
from tests.training.frame_batches import FAMILIES, OBSERVATIONS, drawn_batch, drawn_model
from tests.training.recordings import NUM_TRAIN, tiny, write_recordings
from tests.training.replays import stand_in

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}  # float64, sums in another order


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings") / "all.npz")


@pytest.fixture(autouse=True)
def _replays(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def grads(model: FrameModel) -> dict[str, Tensor]:
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def steps_of(config: Config, data: Path, tokens: int = 0, *, graphs: bool) -> tuple[Any, FrameModel, FrameTask]:
    def never(batches: list[Any], what: str) -> Any:
        raise AssertionError(what)

    task = FrameTask.read(config, data, data.parent, Reporter(), resume=False)
    model = task.model().double()
    found = task.steps(model, optimizer(model, config.train), config, Budget(tokens, graphs=False), never)
    if graphs:
        found.graphs = GraphedGradients(model, shapes_of(config, tokens), "float32")
    return found, model, task


def compare(config: Config, data: Path, tokens: int = 0, *, every_update: bool = True, num: int = 4) -> Any:
    """Some updates of two batches, with graphs and without: the same numbers; the graphs' steps."""
    pair = [steps_of(config, data, tokens, graphs=graphs) for graphs in (True, False)]
    (replayed, model, task), (plain, other, _) = pair
    repeated: list[int] = []
    again = replayed._batch

    def noted(*args: Any) -> Any:
        repeated.append(1)
        return again(*args)

    replayed._batch = noted
    batches = [batch for epoch in range(2) for batch in task.epoch(epoch)]
    for update in range(min(num, len(batches) // 2)):
        some = batches[2 * update : 2 * update + 2]
        tokens = sum(map(model.num_counted, some))
        assert replayed(some, tokens, update) == pytest.approx(plain(some, tokens, update), rel=1e-9, abs=0)
        assert grads(model).keys() == grads(other).keys()
        for name, grad in grads(model).items():
            torch.testing.assert_close(grad, grads(other)[name], msg=name, **CLOSE)
        for x, y in zip(leaves(replayed.carried), leaves(plain.carried), strict=True):
            torch.testing.assert_close(x, y, **CLOSE)
    if every_update:
        assert not repeated
    return replayed


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_and_frames_that_fill_change_nothing(family: str, observations: str) -> None:
    """Three sequences in a shape of more rows and frames: the numbers of the three alone."""
    model = drawn_model(family, observations).double()
    graphs = GraphedGradients(model, FrameShapes(DataConfig(sentences=5, tokens=0)), "float32")
    for i, lengths in enumerate([[7, 2, 9], [16, 11, 3], [5]]):
        batch = drawn_batch(observations, lengths, seed=i)
        model.zero_grad(set_to_none=False)
        found = float(graphs(batch, 20, i))
        p = model.potentials(batch)
        value = model.log_z(p).sum()
        expected = torch.autograd.grad(-value / 20, list(model.parameters()))
        assert found == pytest.approx(float(value.detach()), rel=1e-9)
        for (name, x), gradient in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(x.grad, gradient, msg=name, **CLOSE)
    assert sorted(graphs.shapes) == [(5, 8, False, True, False, False), (5, 16, False, True, False, False)]


def test_a_row_that_fills_may_be_impossible() -> None:
    """One frame, where no segment is as short: it weighs nothing all the same."""
    model = drawn_model("hsmm", "gaussian", durations="categorical").double()
    with torch.no_grad():
        model.duration.logits[:, 0] = float("-inf")  # type: ignore[union-attr]
    graphs = GraphedGradients(model, FrameShapes(DataConfig(sentences=3, tokens=0)), "float32")
    batch = drawn_batch("gaussian", [6, 4])
    found = float(graphs(batch, 10, 0))
    value = model.log_likelihood(batch).sum()
    assert found == pytest.approx(float(value.detach()), rel=1e-9)
    (gradient,) = torch.autograd.grad(-value / 10, [model.observation.mean])  # type: ignore[arg-type]
    torch.testing.assert_close(model.observation.mean.grad, gradient, **CLOSE)  # type: ignore[union-attr]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("labelled", [0, 4])
def test_updates_of_recordings(family: str, labelled: int, data: Path) -> None:
    """Labels of some recordings, a prior, batches of two kinds."""
    replayed = compare(tiny(family=family, labelled=labelled, variance_prior=2.0, accumulate=2), data)
    assert {labels for *_, labels, _ in replayed.graphs.shapes} == {labelled > 0}


@pytest.mark.parametrize("dropout", ["exact", "bernoulli"])
def test_dropped_states(dropout: str, data: Path) -> None:
    for family in FAMILIES:
        settings = {"num_states": 9, "state_dropout": 0.4, "state_dropout_kind": dropout, "self_transitions": True}
        compare(tiny(family=family, accumulate=2, **settings), data, num=3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tokens", "state_dropout"), [(0, 0.3), (16, 0.0)], ids=["whole", "in parts"])
def test_windows_carry_their_state(family: str, tokens: int, state_dropout: float, data: Path) -> None:
    """A first window, those between, and one that ends; groups have fewer rows than there are streams."""
    config = tiny(family=family, batching="streams", num_states=5, state_dropout=state_dropout, accumulate=2)
    replayed = compare(config, data, tokens, num=5)
    kinds = {(carried, last) for _, _, carried, last, *_ in replayed.graphs.shapes}
    assert kinds == {(False, False), (True, False), (True, True)}


def test_windows_with_labels_run_without_graphs(data: Path) -> None:
    replayed = compare(tiny(batching="streams", labelled=NUM_TRAIN, accumulate=2), data, every_update=False)
    assert not replayed.graphs.shapes


@pytest.mark.parametrize("family", ["frame_hmm", "hsmm"])
def test_a_state_that_cannot_be_vouched_for_is_not_carried_on(family: str, data: Path) -> None:
    """Frames that are sure to 1e4 nats: the likelihood is sound, what is carried is not, and the update is repeated."""
    config = tiny(family=family, batching="streams", num_states=3, accumulate=2, min_variance=0.0)
    (replayed, model, task), (plain, other, _) = (steps_of(config, data, graphs=graphs) for graphs in (True, False))
    for x in (model, other):
        with torch.no_grad():
            x.observation.mean.copy_(torch.tensor([[-1.0, -1, 0], [1, -1, 0], [-1, 1, 0]]))  # type: ignore[operator,union-attr]
            x.observation.log_spread.fill_(-10.0)  # type: ignore[operator,union-attr]
    first, second, *_ = task.epoch(0)
    value, carried = replayed.graphs.step(first, 9, 1)
    assert carried.isnan().any()
    assert value.isfinite()
    for update, batch in enumerate((first, second)):
        assert replayed([batch], 9, update) == pytest.approx(plain([batch], 9, update), rel=1e-9)
        assert not replayed.carried.isnan().any()
        torch.testing.assert_close(replayed.carried, plain.carried, **CLOSE)


def test_where_graphs_serve() -> None:
    for family in FAMILIES:
        for batching in ("length", "unsorted", "streams"):
            assert graphs_serve(tiny(family=family, batching=batching), "cuda")
            assert not graphs_serve(tiny(family=family, batching=batching), "cpu")
            assert not graphs_serve(tiny(family=family, batching=batching, graphs=False), "cuda")


@pytest.mark.parametrize("batching", ["length", "equal", "unsorted", "streams"])
@pytest.mark.parametrize("rounding", [1, 8, 100])
def test_every_batch_has_a_shape(batching: Any, rounding: int) -> None:
    """Few shapes, none much larger than the budget."""
    tokens = 4096
    config = DataConfig(batching=batching, tokens=tokens, sentences=16 * (batching in ("length", "equal")), window=96)
    if batching == "length":
        config = DataConfig(batching="length", tokens=tokens, rounding=rounding)
    shapes = FrameShapes(config)
    share = torch.rand(400, generator=torch.Generator().manual_seed(1))
    frames = frames_of([np.zeros((int(1 + 2000 * x**3), 1)) for x in share])
    found = set()
    for batch in frame_batches(frames, config):
        shape = shapes.of(batch)
        assert shape is not None
        assert all(size <= filled for size, filled in zip(batch.values.shape[:2], shape, strict=True))
        found.add(shape)
    assert len(found) <= 60
    assert all(num == 1 or num * width <= tokens * 16 / 9 for num, width in found)


def test_a_width_is_filled_up_by_little() -> None:
    shapes = FrameShapes(DataConfig())
    for width in range(1, 3000):
        multiple = shapes.multiple(width)
        padded = -(-width // multiple) * multiple
        assert padded < width + max(8, width / 8 + 1)
        assert shapes.multiple(padded) == multiple


def test_nothing_of_a_plain_step_outlives_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does keeps nodes of the parameters alive that belong to its stream: a capture must not meet them."""
    found, model, task = steps_of(tiny(family="frame_hmm"), data, graphs=False)
    made = []
    own = model.parts

    def parts(generator: torch.Generator) -> Any:
        result = own(generator)
        made.append(weakref.ref(result.log_initial))
        return result

    monkeypatch.setattr(model, "parts", parts)
    found([task.epoch(0)[0]], 20, 0)
    gc.collect()
    assert made
    assert all(x() is None for x in made)
