"""Graphs without a GPU: filled shapes, masked states and carried buffers give the gradients of plain steps.

A stand-in replays (`tests/training/replays.py`); `tests/cuda/test_graphs.py` captures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.models.catalog import AnyModel
from rankfold.training.carried import leaves
from rankfold.training.config import Config
from rankfold.training.corpus import Corpus
from rankfold.training.gradients import Gradients
from rankfold.training.graphs import GraphedGradients, graphs_serve
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer
from rankfold.training.shapes import Shapes
from tests.training.replays import capturing, stand_in
from tests.training.runs import DROPOUT, FAMILIES, corpus_of, fresh_model, tiny, write_corpus

CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}  # float64, sums in another order


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tiny(), write_corpus(tmp_path_factory.mktemp("data")))


@pytest.fixture(autouse=True)
def _replays(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def gradients_of(config: Config, corpus: Corpus, tokens: int = 0, *, graphs: bool) -> tuple[Gradients, AnyModel]:
    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    model = fresh_model(config, corpus).double()
    found = Gradients(model, optimizer(model, config.train), config, Budget(tokens), never)
    if graphs:
        found.graphs = GraphedGradients(model, Shapes(config.data, tokens), "float32")
    return found, model


def grads(model: AnyModel) -> dict[str, Tensor]:
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def expect_alike(replayed: AnyModel, plain: AnyModel) -> None:
    assert grads(replayed).keys() == grads(plain).keys()
    for name, grad in grads(replayed).items():
        torch.testing.assert_close(grad, grads(plain)[name], msg=name, **CLOSE)


def only_graphs(gradients: Gradients) -> None:
    """Raise where an update is not taken by graphs."""

    def refuse(*args: Any) -> float:
        raise AssertionError("this update ran without graphs")

    gradients._batch = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (family, kind)
        for family in FAMILIES
        for kind in ("exact", "bernoulli")
        if (family, kind) != ("block", "bernoulli")
    ],
)
def test_unsorted_batches_with_dropout(family: str, kind: str, corpus: Corpus) -> None:
    config = tiny(family=family, batching="unsorted", tokens=30, state_dropout_kind=kind, accumulate=2, **DROPOUT)
    (replayed, model), (plain, other) = (gradients_of(config, corpus, graphs=graphs) for graphs in (True, False))
    only_graphs(replayed)
    every = list(corpus.epoch(config.data, 1, 0))
    for update in range(len(every) // 2):
        batches = every[2 * update : 2 * update + 2]
        num = sum(batch.num_tokens for batch in batches)
        assert replayed(batches, num, update) == pytest.approx(plain(batches, num, update), rel=1e-10, abs=0)
        expect_alike(model, other)
    assert replayed.graphs is not None
    assert 1 < len(replayed.graphs.shapes) < len(every)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("tokens", [0, 17], ids=["whole", "in parts"])
@pytest.mark.parametrize("state_dropout", [0.0, 0.5])
def test_streams_of_block_models(tied: bool, tokens: int, state_dropout: float, corpus: Corpus) -> None:
    """Over two epochs, each of which starts afresh; the last window is narrower and has fewer rows."""
    sizes = {"family": "block", "tied": tied, "reset_eos": tied, "num_states": 16, "state_dropout": state_dropout}
    config = tiny(batching="streams", accumulate=2, **sizes)
    (replayed, model), (plain, other) = (gradients_of(config, corpus, tokens, graphs=x) for x in (True, False))
    if not tokens:
        only_graphs(replayed)
    every = [batch for epoch in range(2) for batch in corpus.epoch(config.data, 1, epoch)]
    assert len({batch.values.shape for batch in every}) > 1
    assert sum(batch.first for batch in every) == 2
    for update, start in enumerate(range(0, len(every), 2)):  # an update may end one epoch and begin the next
        batches = every[start : start + 2]
        num = sum(batch.num_tokens for batch in batches)
        assert replayed(batches, num, update) == pytest.approx(plain(batches, num, update), rel=1e-10, abs=0)
        expect_alike(model, other)
        assert type(replayed.carried) is type(plain.carried)
        for x, y in zip(leaves(replayed.carried), leaves(plain.carried), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
    assert replayed.graphs is not None
    assert {carries for _, _, carries, *_ in replayed.graphs.shapes} == {False, True}
    assert len(replayed.graphs.shapes) == 2


def test_what_is_carried_on_is_not_overwritten(corpus: Corpus) -> None:
    config = tiny(family="block", batching="streams", state_dropout=0.5)
    gradients, _ = gradients_of(config, corpus, graphs=True)
    first, second, *_ = corpus.epoch(config.data, 1, 0)
    assert gradients.graphs is not None
    _, one = gradients.graphs.step(first, 9, 1)
    before = [x.clone() for x in one]
    _, two = gradients.graphs.step(second, 9, 2, one)
    gradients.graphs.step(second, 9, 3, two)
    assert all(torch.equal(x, y) for x, y in zip(one, before, strict=True))


@pytest.mark.parametrize("refused", [False, True])
def test_an_update_that_is_repeated_goes_on_from_where_it_began(refused: bool, corpus: Corpus) -> None:
    """A graph that cannot vouch for the second of two batches must not have moved the streams by the first.

    Nor may one that is not even tried leave gradients of before, here of the start, which has none.
    """
    config = tiny(family="block", batching="streams", state_dropout=0.5, accumulate=2)
    (replayed, model), (plain, other) = (gradients_of(config, corpus, graphs=graphs) for graphs in (True, False))
    every = corpus.epoch(config.data, 1, 0)
    graphs = replayed.graphs
    assert graphs is not None
    step, seen = graphs.step, []

    def doubtful(batch: Batch, *args: Any) -> tuple[Tensor, Any]:
        value, after = step(batch, *args)
        seen.append(batch)
        return (value * float("nan") if len(seen) == 4 and not refused else value), after

    graphs.step = doubtful  # type: ignore[method-assign]
    for update in range(3):
        if refused:
            graphs.takes = lambda batch, update=update: update != 1  # type: ignore[method-assign,misc]
        batches = every[2 * update : 2 * update + 2]
        num = sum(batch.num_tokens for batch in batches)
        assert replayed(batches, num, update) == pytest.approx(plain(batches, num, update), rel=1e-10, abs=0)
        expect_alike(model, other)
    assert len(seen) == (4 if refused else 6)


def test_rows_that_fill_a_shape_count_nothing(corpus: Corpus) -> None:
    """Also where the buffers of a carried state still hold numbers that are none, from an update that failed."""
    config = tiny(family="block", batching="streams", state_dropout=0.5)
    gradients, model = gradients_of(config, corpus, graphs=True)
    first, second, *_ = corpus.epoch(config.data, 1, 0)
    graphs = gradients.graphs
    assert graphs is not None
    _, carried = graphs.step(first, 9, 1)
    some, kept = second.rows(slice(2)), type(carried)(*(x[:2] for x in carried))
    found = []
    for spoilt in (False, True):
        if spoilt:
            graphs.step(second, 9, 2, carried._replace(log_filtered=carried.log_filtered * float("nan")))
        model.zero_grad(set_to_none=False)
        value, _ = graphs.step(some, 9, 2, kept)
        found.append((float(value), grads(model)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


@pytest.mark.parametrize(
    ("family", "batching", "serves"),
    [(family, "streams", family == "block") for family in FAMILIES]
    + [(family, batching, True) for family in FAMILIES for batching in ("length", "unsorted")],
)
def test_where_graphs_serve(family: str, batching: str, serves: bool) -> None:
    config = tiny(family=family, batching=batching, state_dropout_kind="bernoulli")
    assert graphs_serve(config, "cuda") is serves
    assert not graphs_serve(config, "cpu")
    assert not graphs_serve(tiny(family=family, batching=batching, graphs=False), "cuda")


def test_the_stand_in_refuses_what_a_capture_would() -> None:
    x = torch.tensor([1.0, 0.0])
    looks = [
        lambda: float(x.sum()),
        x.nonzero,
        lambda: x[x > 0],
        lambda: bool((x > 0).any()),
        lambda: x[x.argmax()],
    ]
    for look in looks:
        with capturing(), pytest.raises(AssertionError, match="in a capture"):
            look()


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_in_float64_give_the_gradients_of_plain_steps(family: str, corpus: Corpus) -> None:
    """Of parameters in float32, to its rounding."""
    config = tiny(family=family, batching="unsorted", tokens=30, **DROPOUT)
    (replayed, model), (plain, other) = (gradients_of(config, corpus, graphs=graphs) for graphs in (True, False))
    only_graphs(replayed)
    replayed.progress.recaptured = 1
    model.float()
    other.float()
    for update, batch in enumerate(list(corpus.epoch(config.data, 1, 0))[:3]):
        found = (each([batch], batch.num_tokens, update) for each in (replayed, plain))
        assert next(found) == pytest.approx(next(found), rel=1e-5, abs=0)
        for name, grad in grads(model).items():
            torch.testing.assert_close(grad, grads(other)[name], msg=name, rtol=1e-4, atol=1e-6)
    assert replayed.graphs is not None
    assert replayed.graphs.wide
