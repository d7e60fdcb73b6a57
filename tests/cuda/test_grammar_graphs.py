"""Captured gradients of grammars: the numbers of eager steps, for every family but the one that draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.models import build_model
from rankfold.numerics.precision import Precision
from rankfold.training.config import DataConfig
from rankfold.training.gradients import Gradients
from rankfold.training.graphs import GraphedGradients
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer
from rankfold.training.shapes import TreeShapes
from tests.training.test_grammar_graphs import batch_of, with_a_dead_rank
from tests.training.test_grammars import FAMILIES, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("early", [0, 2], ids=["all_trees", "early"])  # updates with short constituents
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "cpcfg"])
def test_graphs_give_the_gradients_of_eager_steps(family: str, early: int) -> None:
    config = tiny(family, model={"early_width": early, "early_updates": early}).model
    model = build_model(config, 12, seed=3).to(CUDA)
    graphs = GraphedGradients(model, TreeShapes(DataConfig(sentences=4, tokens=0)), "float32")
    for i, lengths in enumerate([[2, 5, 3], [7, 7, 7, 7], [4, 2], [8]]):
        words = torch.randint(12, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(i))
        batch = Batch(words, torch.tensor(lengths))
        model.zero_grad()
        model.begin_update(i)
        total = graphs(batch, 20, i).clone()
        log_likelihood = model.log_likelihood(batch.to(CUDA), generator=torch.Generator(CUDA)).sum()
        expected = torch.autograd.grad(-log_likelihood / 20, list(model.parameters()), allow_unused=True)
        torch.testing.assert_close(total, log_likelihood.detach(), rtol=1e-5, atol=1e-5)
        del log_likelihood  # a graph kept alive has its own stream, which a capture must not wait for
        for (name, x), gradient in zip(model.named_parameters(), expected, strict=True):
            if gradient is not None:
                assert x.grad is not None
                torch.testing.assert_close(x.grad, gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "cpcfg"])
def test_the_next_word_is_that_of_a_cpu(family: str) -> None:
    model = build_model(tiny(family).model, 12, seed=3).double()
    words, lengths = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 0]]), torch.tensor([4, 3])
    wanted = model.predict_ids(model.batch(words, lengths))
    model.to(CUDA)
    for found, cpu in zip(model.predict_ids(model.batch(words, lengths)), wanted, strict=True):
        torch.testing.assert_close(found.cpu(), cpu, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nats", [80.0, 800.0], ids=["small", "zero"])
def test_graphs_in_float64_serve_where_float32_is_in_doubt(nats: float) -> None:
    """One rank gives e^-80 or 0 to all nonterminals as left children: NaN in float32, in float64 the eager gradient."""
    config = tiny("tnpcfg", model={"neural": False}, sentences=4, tokens=0)
    model = with_a_dead_rank(build_model(config.model, 12, seed=3), nats).to(CUDA)
    graphs = GraphedGradients(model, TreeShapes(config.data), "float32")

    def step(i: int) -> None:
        batch = batch_of([[2, 5, 3], [7, 7, 7, 7], [8]][i % 3], i)
        total = graphs(batch, 20, i).clone()
        log_likelihood = model.log_likelihood(batch.to(CUDA), generator=torch.Generator(CUDA)).sum()
        expected = torch.autograd.grad(-log_likelihood / 20, list(model.parameters()))
        torch.testing.assert_close(total, log_likelihood.detach(), rtol=1e-6, atol=1e-6)
        del log_likelihood  # a graph kept alive has its own stream, which a capture must not wait for
        for (name, x), gradient in zip(model.named_parameters(), expected, strict=True):
            assert x.grad is not None
            torch.testing.assert_close(x.grad, gradient, rtol=1e-6, atol=1e-6, msg=name)

    assert graphs(batch_of([2, 5, 3], 0), 20, 0).isnan()
    graphs.recapture(wide=True)
    for i in range(6):
        model.zero_grad(set_to_none=False)
        step(i)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_training_goes_over_to_graphs_in_float64(precision: Precision) -> None:
    settings = {"sentences": 4, "tokens": 0, "device": "cuda", "precision": precision}
    config = tiny("tnpcfg", model={"neural": False}, **settings)
    model = with_a_dead_rank(build_model(config.model, 12, seed=3)).to(CUDA)

    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    replayed, plain = (
        Gradients(model, optimizer(model, config.train), config, Budget(graphs=graphs), never)
        for graphs in (True, False)
    )
    said: list[str] = []
    replayed.say = said.append
    for update in range(14):
        found = []
        for one in (replayed, plain):
            value, _ = one([batch_of([2, 5, 3], 3), batch_of([4, 7], update)], 20, update)
            found.append([torch.tensor(value), *(x.grad.clone() for x in model.parameters() if x.grad is not None)])
        # Steps without graphs keep sentences of two words in TF32, whose operands are rounded to 2^-11.
        near = {"rtol": 1e-6, "atol": 1e-6} if precision == "float32" else {"rtol": 1e-2, "atol": 1e-3}
        for x, y in zip(*found, strict=True):
            torch.testing.assert_close(x, y, **near)  # type: ignore[arg-type]
    assert replayed.graphs is not None
    assert replayed.graphs.wide
    assert len(said) == 1
