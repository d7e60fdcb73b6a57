"""Captured gradients of grammars: the numbers of eager steps, for every family but the one that draws."""

from __future__ import annotations

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.models import build_model
from rankfold.training.config import DataConfig
from rankfold.training.graphs import GraphedGradients
from rankfold.training.shapes import TreeShapes
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
