"""Configurations that are refused, and the model each family becomes."""

from typing import Any

import pytest

from rankfold import DomainError
from rankfold.models import HMM, BlockHMM, ModelConfig, RankHMM, build_model
from rankfold.params.dynamics.features import FeatureKind
from tests.models.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_families(case: Case) -> None:
    expected = {"rank": RankHMM, "block": BlockHMM}.get(case.config.family, HMM)
    model = case.plain()
    assert type(model) is expected
    assert model.config == case.config
    assert model.num_words == 3
    assert model.vocabulary is None


@pytest.mark.parametrize("kind", ["exp", "positive"])
def test_every_choice_arrives(kind: FeatureKind) -> None:
    sizes: dict[str, Any] = {"num_states": 5, "rank": 3, "dim": 2, "num_layers": 3, "feature_map": kind}
    low_rank = build_model(ModelConfig(family="lhmm", **sizes), 4)
    banded = build_model(ModelConfig(family="banded", band=2, band_init=-9.0, **sizes), 4)
    for transition in (low_rank.transition, banded.transition.low_rank):
        assert transition.features.kind == kind
        assert transition.features.projection.shape == (2, 3)
        assert transition.source.shape == (5, 2)
        assert len(transition.start.mlp) == 4
    assert banded.transition.log_band.shape == (5, 5)
    assert float(banded.transition.log_band.detach().max()) < -7
    assert len(low_rank.emission.mlp) == 3
    assert low_rank.emission.word.shape == (4, 2)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_states": 0}, "num_states is 0, but must be at least 1"),
        ({"rank": 0}, "rank is 0, but must be at least 1"),
        ({"dim": -1}, "dim is -1, but must be at least 1"),
        ({"num_clusters": 0}, "num_clusters is 0"),
        ({"num_layers": -1}, "num_layers is -1, but must be at least 0"),
        ({"band": -1}, "band is -1, but must be at least 0"),
        ({"state_dropout": 1.0}, r"state_dropout is 1\.0, but must be at least 0 and below 1"),
        ({"feature_dropout": -0.1}, r"feature_dropout is -0\.1"),
        ({"logit_dropout": float("nan")}, "logit_dropout is nan"),
        ({"family": "block", "num_states": 7, "num_clusters": 3}, "7, which 3 clusters.*\n.*num_states = 6"),
        ({"family": "block", "num_states": 2, "num_clusters": 3}, "2, which 3 clusters.*\n.*num_states = 3"),
        ({"family": "block", "state_dropout": 0.5, "state_dropout_kind": "bernoulli"}, "bernoulli.*exact"),
        ({"family": "block", "tied": True, "neural": False}, "tied is true, but neural is false"),
    ],
)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DomainError, match=text):
        ModelConfig(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"family": "hmmm"}, {"feature_map": "relu"}, {"plan": "ranks"}, {"state_dropout_kind": "bernouli"}],
    ids=lambda fields: next(iter(fields)),
)
def test_unknown_choices_are_refused(fields: dict[str, Any]) -> None:
    """Not built as something else in silence."""
    with pytest.raises(ValueError, match=next(iter(fields.values()))):
        build_model(ModelConfig(num_states=3, rank=2, dim=2, **fields), 3)


def test_no_words() -> None:
    with pytest.raises(DomainError, match="num_words is 0"):
        build_model(ModelConfig(num_states=3, rank=2, dim=2), 0)
