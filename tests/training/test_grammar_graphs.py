"""Graphs of grammars without a GPU: filled shapes give the gradients of plain steps, and nothing looks at a value.

A stand-in replays (`tests/training/replays.py`); `tests/cuda/test_grammar_graphs.py` captures.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.data.demo import draw_trees
from rankfold.models import build_model
from rankfold.models.catalog import AnyModel
from rankfold.training import graphs, memory_budget
from rankfold.training.checkpoint import progress_of
from rankfold.training.config import Config
from rankfold.training.gradients import Gradients
from rankfold.training.graphs import GraphedGradients
from rankfold.training.loop import train
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer
from rankfold.training.shapes import TreeShapes
from tests.training.replays import stand_in
from tests.training.runs import StopAfter, expect_same_end
from tests.training.test_grammars import FAMILIES, tiny

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}  # float64, sums in another order


@pytest.fixture(autouse=True)
def _replays(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def gradients_of(config: Config, budget: Budget, *, graphs: bool) -> tuple[Gradients, AnyModel]:
    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    model = build_model(config.model, 12, seed=2).double()
    found = Gradients(model, optimizer(model, config.train), config, budget, never)
    if graphs:
        shapes = TreeShapes(config.data, budget.part_tokens, tree_width=budget.tree_width)
        found.graphs = GraphedGradients(model, shapes, "float32")

        def refuse(*args: Any) -> float:
            raise AssertionError("this update ran without graphs")

        found._batch = refuse  # type: ignore[method-assign]
    return found, model


def batch_of(lengths: list[int], seed: int) -> Batch:
    words = torch.randint(12, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    return Batch(words, torch.tensor(lengths))


@pytest.mark.parametrize("budget", [Budget(), Budget(part_tokens=16, tree_width=8)], ids=["whole", "parts"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "cpcfg"])
def test_filled_shapes_give_the_gradients_of_plain_steps(family: str, budget: Budget) -> None:
    config = tiny(family, sentences=4, tokens=0)
    replayed, model = gradients_of(config, budget, graphs=True)
    plain, other = gradients_of(config, budget, graphs=False)
    for update, lengths in enumerate([[2, 5, 3], [7, 7, 7, 7], [4, 2], [8]]):
        batch = batch_of(lengths, update)
        found = replayed([batch], 20, update)
        assert found == pytest.approx(plain([batch], 20, update), rel=1e-9)
        for (name, x), (_, y) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            assert x.grad is not None
            torch.testing.assert_close(
                x.grad, torch.zeros_like(x) if y.grad is None else y.grad, msg=f"{name}, update {update}", **CLOSE
            )


def test_a_compound_grammar_draws_anew_at_every_replay() -> None:
    config = tiny("cpcfg", sentences=4, tokens=0)
    replayed, _ = gradients_of(config, Budget(), graphs=True)
    batch = batch_of([3, 5], 1)
    first, again, other = (replayed([batch], 10, update)[0] for update in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_in_float64_give_the_gradients_of_plain_steps(family: str) -> None:
    """Of parameters in float32, to its rounding."""
    config = tiny(family, sentences=4, tokens=0)
    replayed, model = gradients_of(config, Budget(), graphs=True)
    plain, other = gradients_of(config, Budget(), graphs=False)
    replayed.progress.recaptured = 1
    model.float()
    other.float()
    for update, lengths in enumerate([[2, 5, 3], [7, 7, 7, 7]]):
        batch = batch_of(lengths, update)
        assert replayed([batch], 20, update) == pytest.approx(plain([batch], 20, update), rel=1e-5)
        for (name, x), (_, y) in zip(model.named_parameters(), other.named_parameters(), strict=True):
            if y.grad is not None:
                assert x.grad is not None
                torch.testing.assert_close(x.grad, y.grad, msg=name, rtol=1e-4, atol=1e-6)
    assert replayed.graphs is not None
    assert replayed.graphs.wide


def with_a_dead_rank(model: AnyModel, nats: float = 80.0) -> AnyModel:
    """A free TN-PCFG, one rank of which gives nonterminals e^-80 as left children: float32 cannot vouch for that."""
    with torch.no_grad():
        model.rules.log_left[: model.config.num_nonterminals, 0] -= nats  # type: ignore[union-attr,operator]
    return model


def doubtful(may_widen: bool = True, nats: float = 80.0) -> tuple[Gradients, list[str], list[int]]:
    """Gradients in float32 of such a grammar; what is said, and the updates that are repeated without graphs."""
    config = tiny("tnpcfg", model={"neural": False}, sentences=4, tokens=0)
    model = with_a_dead_rank(build_model(config.model, 12, seed=2), nats)

    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    found = Gradients(model, optimizer(model, config.train), config, Budget(wide=may_widen), never)
    found.graphs = GraphedGradients(model, TreeShapes(config.data), "float32")
    said, repeated, batch = list[str](), list[int](), found._batch
    found.say = said.append

    def noted(*args: Any) -> float:
        repeated.append(args[2])
        return batch(*args)

    found._batch = noted  # type: ignore[method-assign]
    return found, said, repeated


def take(gradients: Gradients, update: int) -> list[torch.Tensor]:
    """The log-likelihood and the gradients of an update of these."""
    value, _ = gradients([batch_of([2, 5, 3], 3), batch_of([4, 7], update)], 20, update)
    return [torch.tensor(value, dtype=torch.float64), *(x.grad.clone() for x in gradients.model.parameters())]


def plain_of(gradients: Gradients, update: int) -> list[torch.Tensor]:
    """The same without graphs."""
    other = Gradients(gradients.model, gradients.optimizer, gradients.config, Budget(), gradients.not_finite)
    return take(other, update)


@pytest.mark.parametrize("nats", [80.0, 800.0], ids=["small", "zero"])
def test_graphs_in_doubt_are_captured_anew_in_float64(nats: float) -> None:
    gradients, said, repeated = doubtful(nats=nats)
    assert gradients.graphs is not None
    narrow: list[Any] = []
    for update in range(14):
        if update == 8:
            narrow = list(gradients.graphs.shapes.values())
        for x, y in zip(take(gradients, update), plain_of(gradients, update), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)
    assert len(repeated) == 2 * 9  # two batches each
    assert gradients.graphs.wide
    assert narrow
    assert not any(x is y for x in narrow for y in gradients.graphs.shapes.values())
    (line,) = said
    assert line.startswith("update 9: captured graphs could not vouch for 9 of the last 16 updates")


def test_a_resumed_run_goes_on_as_an_uninterrupted_one() -> None:
    """In the middle of the count, and afterwards: to the last bit."""
    whole, *_ = doubtful()
    expected = [take(whole, update) for update in range(14)]
    for stop in (5, 9, 12):
        first, *_ = doubtful()
        for update in range(stop):
            take(first, update)
        second, _, again = doubtful()
        second.progress = progress_of(json.loads(json.dumps(dataclasses.asdict(first.progress))))
        found = [take(second, update) for update in range(stop, 14)]
        for one, other in zip(found, expected[stop:], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))
        assert len(again) == max(0, 18 - 2 * stop)


@pytest.mark.parametrize("why", ["memory", "time"])
def test_graphs_stay_where_float64_does_not_serve(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, said, repeated = doubtful(may_widen=why != "memory")
    if why == "time":
        monkeypatch.setattr(graphs, "QUICK", 0.0)
    for update in range(20):
        take(gradients, update)
    if why == "memory":  # there was more before the run was resumed
        gradients.progress.recaptured = 1
        take(gradients, 20)
    assert len(repeated) == 2 * (21 if why == "memory" else 20)
    assert gradients.graphs is not None
    assert not gradients.graphs.wide
    assert [line.split("; ")[1][:23] for line in said] == (["float64 would take long"] if why == "time" else [])


def test_float64_that_does_not_help_is_given_up() -> None:
    """Once; a few updates that are repeated are no reason."""
    gradients, said, repeated = doubtful()
    held = gradients.graphs
    assert held is not None
    step, bad = held.step, set(range(20, 31)) | {9, 10, 11}

    def spoilt(batch: Batch, tokens: int, seed: int, carried: Any) -> Any:
        value, after = step(batch, tokens, seed, carried)
        return (value * float("nan") if update in bad else value), after

    held.step = spoilt  # type: ignore[method-assign]
    wide = []
    for update in range(45):
        take(gradients, update)
        wide.append(held.wide)
    assert wide == [9 <= update < 29 for update in range(45)]
    assert [line.split(":")[0] for line in said] == ["update 9", "update 29"]
    assert len(repeated) == 2 * (9 + 3 + 9 + 16)


def test_a_run_says_it_once_and_is_resumed_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees = draw_trees(30, seed=1, max_words=7)
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.txt").write_text("".join(" ".join(tree.words) + "\n" for tree in trees))
    (data / "valid.trees").write_text("".join(f"{tree}\n" for tree in trees[:4]))
    monkeypatch.setattr(graphs, "graphs_serve", lambda config, device: True)
    monkeypatch.setattr(memory_budget, "fit", lambda *args: Budget())
    step = GraphedGradients.step

    def spoilt(self: GraphedGradients, *args: Any) -> Any:
        value, after = step(self, *args)
        return value if self.wide else value * float("nan"), after

    monkeypatch.setattr(GraphedGradients, "step", spoilt)
    config = tiny("tnpcfg", model={"neural": False}, updates=16, evaluate_every=8, checkpoint_every=20)
    whole = train(config, data, tmp_path / "whole", report=(report := StopAfter(0)))
    assert sum("in float64" in line for line in report.said) == 1
    assert (tmp_path / "whole" / "log.txt").read_text().count("update 9: captured graphs could not vouch") == 1
    for stop in (5, 12):
        broken = train(config, data, tmp_path / f"{stop}", report=StopAfter(stop))
        assert not broken.finished
        expect_same_end(train(config, data, tmp_path / f"{stop}", resume=True, quiet=True), whole)
