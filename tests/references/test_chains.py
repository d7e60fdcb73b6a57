"""The plain reference and the models compute the same function: log Z and every gradient, in float64."""

from typing import Any

import pytest
import torch

from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.checks import gradient_error
from benchmarks.steps.step import gradients, reference_gradients, tensors
from rankfold.cli.bench import relative_error
from rankfold.data.batch import Batch
from rankfold.models import ModelConfig
from tests.params.build import stirred
from tests.references.chains import reference_log_z

CPU = torch.device("cpu")
COMMON: dict[str, Any] = {"dim": 3, "num_layers": 1}
# Odd on purpose: one state, rank 1, rank above states, a band above the matrix, one cluster, a state a cluster.
CONFIGS = [
    ModelConfig(family="hmm", num_states=5, **COMMON),
    ModelConfig(family="hmm", num_states=1, dim=3, num_layers=0),
    ModelConfig(family="lhmm", num_states=5, rank=3, **COMMON),
    ModelConfig(family="lhmm", num_states=2, rank=7, feature_map="positive", **COMMON),
    ModelConfig(family="banded", num_states=7, rank=2, band=2, **COMMON),
    ModelConfig(family="banded", num_states=3, rank=1, band=9, feature_map="positive", **COMMON),
    ModelConfig(family="rank", num_states=5, rank=3, plan="rank", **COMMON),
    ModelConfig(family="rank", num_states=2, rank=5, plan="state", dim=3, num_layers=2),
    ModelConfig(family="block", num_states=6, num_clusters=2, **COMMON),
    ModelConfig(family="block", num_states=3, num_clusters=3, **COMMON),
    ModelConfig(family="block", num_states=4, num_clusters=1, **COMMON),
    ModelConfig(family="hmm", num_states=5, neural=False),
]
CASES = [Case(config, batch=4, length=6, num_words=7) for config in CONFIGS]


def ragged(case: Case) -> Batch:
    """Every length from 1 on, and padding that is a word like any other."""
    return case.draw(CPU)._replace(lengths=torch.tensor([6, 1, 2, 5]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reference_is_the_model(case: Case) -> None:
    model = stirred(case.build(CPU)) if case.config.neural else case.build(CPU).double()
    batch = ragged(case)
    ours, plain = gradients(model, batch), reference_gradients(model, batch)
    # The same sums in another order.
    assert relative_error(ours.log_z, plain.log_z) < 1e-12
    assert gradient_error(ours, plain) < 1e-10
    assert max(float(x.abs().max()) for x in plain.parameters) > 1e-3


def test_all_strings_sum_to_one() -> None:
    for case in CASES:
        model = case.build(CPU).double()
        if case.given:  # draws its rows normalised, in float32
            model.transition.data /= model.transition.data.sum(1, keepdim=True)
            model.log_emission.data -= model.log_emission.data.logsumexp(0)
            model.log_initial.data -= model.log_initial.data.logsumexp(0)
        words = torch.cartesian_prod(torch.arange(7), torch.arange(7), torch.arange(7))
        batch = Batch(words, torch.full((len(words),), 3))
        with torch.no_grad():
            total = torch.logsumexp(reference_log_z(tensors(model), model.config, batch), 0)
        assert float(total) == pytest.approx(0.0, abs=1e-12), case.name


def test_small_cases_keep_the_family_and_drop_nothing() -> None:
    case = Case(ModelConfig(family="block", num_states=4096, num_clusters=64, state_dropout=0.5), batch=16)
    tiny = shrink(case)
    assert tiny.config.family == "block"
    assert tiny.config.num_states < 100
    assert not tiny.dropout
    assert case.dropout
