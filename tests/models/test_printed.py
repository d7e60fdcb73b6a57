"""The papers' equations as printed, written out in plain torch, where the authors' code differs from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold.data.demo import write_toy_corpus
from rankfold.errors import DomainError
from rankfold.models import ModelConfig, build_model
from rankfold.models.config import Family
from rankfold.training.recipes import load_recipe, recipe_names

SIZES = {"num_states": 5, "rank": 3, "dim": 4, "num_layers": 2, "band": 1}


def layers(network: Tensor, mlp: torch.nn.Module, leading: bool) -> Tensor:
    """h(x) = g(g(W x)), g(y) = ReLU(V ReLU(U y)) + y, by the parameters in their order; without W where not leading."""
    weights = list(mlp.parameters())
    x = network
    if leading:
        x, weights = x @ weights[0].mT + weights[1], weights[2:]
    for u, b, v, c in zip(*[iter(weights)] * 4, strict=True):
        x = torch.relu(torch.relu(x @ u.mT + b) @ v.mT + c) + x
    return x


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded"])
def test_words_come_from_the_embedding_of_the_source(family: Family) -> None:
    """Chiu, Deng, Rush 2021, eq. 10: p(x | z) proportional to exp(u_z . f2(v_x)), u_z that of the transitions."""
    model = build_model(ModelConfig(family=family, printed=True, **SIZES), 7, seed=0).double()
    parts = model.parts()
    wanted = (model.transition.source @ layers(model.emission.word, model.emission.mlp, False).mT).softmax(1)
    torch.testing.assert_close(parts.emission.log_rows(torch.arange(5)).exp(), wanted, rtol=1e-12, atol=1e-14)
    other = build_model(ModelConfig(family=family, **SIZES), 7, seed=0)
    assert model.num_parameters == other.num_parameters - 5 * 4  # no embedding of states of its own
    model.log_likelihood(model.batch(torch.tensor([[2, 3, 1]]))).sum().backward()
    assert all(x.grad is not None and bool(x.grad.any()) for x in (model.transition.source, model.emission.word))


def test_the_start_has_an_embedding_for_each_state() -> None:
    """Yang, Liu, Tu 2022, App. B: s_z proportional to exp(u . h(w_z)); App. D: Xavier normal but for embeddings."""
    config = ModelConfig(family="rank", printed=True, **{**SIZES, "num_states": 400, "rank": 300, "dim": 64})
    model = build_model(config, 50, seed=0).double()
    own = model.factors
    assert own.start.shape == (400, 64)
    logits = layers(own.start, own.start_mlp, True) @ own.start_out.weight[0]
    found = own(0.0, None)
    torch.testing.assert_close(found.log_start, logits.log_softmax(0), rtol=1e-12, atol=1e-12)
    spread = (2 / (300 + 64)) ** 0.5
    for weights in (own.projection, own.word_out):
        assert float(weights.detach().std()) == pytest.approx(spread, rel=0.05)
        assert float(weights.detach().abs().max()) > 3 * spread  # a uniform one ends at 1.73
    assert float(own.source.detach().std()) == pytest.approx(1, rel=0.05)


def test_the_recipes_as_printed() -> None:
    chain, ranks = load_recipe("lhmm-4096-1024-ptb-printed"), load_recipe("rank-16384-4096-ptb-printed")
    assert (chain.train.weight_decay, chain.data.batching, chain.model.printed) == (0.01, "length", True)
    assert (ranks.train.betas, ranks.data.batching, ranks.model.printed) == ((0.99, 0.999), "length", True)


def test_free_tables_have_no_network_to_choose() -> None:
    with pytest.raises(DomainError, match="printed is true, but neural is false"):
        ModelConfig(family="lhmm", printed=True, neural=False)


PRINTED = [name for name in recipe_names() if name.endswith("-printed")]


def test_the_recipes_as_printed_are_known() -> None:
    sizes = ("hmm-4096", "lhmm-16384-2048", "lhmm-4096-1024", "rank-16384-4096")
    assert [f"{name}-ptb-printed" for name in sizes] == PRINTED


@pytest.mark.parametrize("name", PRINTED)
def test_every_recipe_as_printed_trains(name: str, tmp_path: Path) -> None:
    """All but the sizes of the recipe, its schedule by evaluations included: the likelihood rises."""
    write_toy_corpus(tmp_path / "corpus", num=120, num_held_out=20)
    small = ["num_states=24", "rank=8", "dim=16"]
    settings = [f"model.{setting}" for setting in small]
    settings += ["train.updates=24", "train.evaluate_every=8", "train.log_every=8", "train.precision=float32"]
    result = rankfold.train(name, tmp_path / "corpus", tmp_path / "run", settings=settings, quiet=True)
    curve = [record["valid_perplexity"] for record in result.metrics if record.get("valid_perplexity") is not None]
    assert len(curve) >= 3
    assert curve[-1] < curve[0]
    config = rankfold.load(tmp_path / "run").config
    assert isinstance(config, ModelConfig)
    assert config.printed
