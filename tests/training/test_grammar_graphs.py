"""Graphs of grammars without a GPU: filled shapes give the gradients of plain steps, and nothing looks at a value.

A stand-in replays (`tests/training/replays.py`); `tests/cuda/test_grammar_graphs.py` captures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.models import build_model
from rankfold.models.catalog import AnyModel
from rankfold.training.config import Config
from rankfold.training.gradients import Gradients
from rankfold.training.graphs import GraphedGradients
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer
from rankfold.training.shapes import TreeShapes
from tests.training.replays import stand_in
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
