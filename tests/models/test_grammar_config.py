"""Configurations of grammars that are refused, and a recipe's table for either kind of model."""

from typing import Any

import pytest

from rankfold import DataError, DomainError
from rankfold.models import GrammarConfig, ModelConfig
from rankfold.models.config import CONFIGS
from rankfold.settings import build, choose, to_mapping, to_toml


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_nonterminals": 0}, "num_nonterminals is 0, but must be at least 1"),
        ({"num_preterminals": -1}, "num_preterminals is -1"),
        ({"rank": 0}, "rank is 0"),
        ({"dim": 0}, "dim is 0"),
        ({"latent_dim": 0}, "latent_dim is 0"),
        ({"encoder_dim": 0}, "encoder_dim is 0"),
        ({"num_layers": -1}, "num_layers is -1, but must be at least 0"),
        ({"family": "pcfg"}, "family is 'pcfg'"),
        ({"low_rank": ("span_word",)}, "low_rank is .*span_word.*leaf_leaf may be there once"),
        ({"low_rank": ("span_span", "span_span")}, "may be there once"),
        ({"family": "cpcfg", "neural": False}, "neural is false"),
        ({"family": "npcfg", "plan": "rank"}, 'plan is "rank", but npcfg has no ranks'),
        ({"family": "spcfg", "plan": "rank"}, 'plan is "rank", but spcfg has no ranks'),
        ({"init": "zeros"}, "init is 'zeros'"),
    ],
)
def test_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(DomainError, match=text):
        GrammarConfig(**fields)


@pytest.mark.parametrize("config", [ModelConfig(), GrammarConfig(family="lpcfg", low_rank=("leaf_leaf",))], ids=str)
def test_a_table_is_of_the_model_its_family_names(config: ModelConfig | GrammarConfig) -> None:
    mapping = to_mapping(config)
    assert build(choose(CONFIGS, mapping, source="x"), mapping, source="x") == config
    assert "family" in to_toml(config)


def test_an_unknown_family() -> None:
    with pytest.raises(
        DataError, match=r"rankpcg.*hmm, .*frame_hmm, .*rank_hsmm was expected(?s:.*)Did you mean rankpcfg"
    ):
        choose(CONFIGS, {"family": "rankpcg"}, source="x")
