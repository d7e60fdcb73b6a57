"""What a recipe may hold: every bound is refused by its name, and what `to_toml` writes is read back equal."""

import tomllib
from typing import Any

import pytest

from rankfold.errors import DataError, DomainError
from rankfold.settings import build, differences, to_mapping, to_toml
from rankfold.training.config import Config, DataConfig, TrainConfig
from tests.training.runs import FAMILIES, tiny

ONES = ("min_count", "tokens", "rounding", "num_streams", "window", "eval_tokens")
TRAIN_ONES = ("updates", "accumulate", "evaluate_every", "checkpoint_every", "log_every")
ZEROS = ("seed", "clip", "weight_decay", "warmup", "min_lr", "plateau_patience", "patience")
ZEROS += ("memory", "checkpoint_shard_mb")


@pytest.mark.parametrize("name", ONES)
def test_sizes_of_data_are_at_least_one(name: str) -> None:
    assert getattr(DataConfig(**{name: 1}), name) == 1
    with pytest.raises(DomainError, match=rf"^{name} is 0, but must be at least 1"):
        DataConfig(**{name: 0})


def test_a_vocabulary_has_room_for_unknown_words_and_ends() -> None:
    assert DataConfig(max_vocabulary=None).max_vocabulary is None
    assert DataConfig(max_vocabulary=2).max_vocabulary == 2
    with pytest.raises(DomainError, match=r"^max_vocabulary is 1, but must be at least 2"):
        DataConfig(max_vocabulary=1)


@pytest.mark.parametrize(
    ("name", "least"), [*((name, 1) for name in TRAIN_ONES), *((name, 0) for name in ZEROS)], ids=[*TRAIN_ONES, *ZEROS]
)
def test_numbers_of_training_have_a_least_value(name: str, least: int) -> None:
    assert getattr(TrainConfig(**{name: least}), name) == least
    with pytest.raises(DomainError, match=rf"^{name} is {least - 1}, but must be at least {least}"):
        TrainConfig(**{name: least - 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", -1e-3),
        ("lr", float("nan")),
        ("betas", (0.9,)),
        ("betas", (0.9, 0.99, 0.999)),
        ("betas", (0.9, 1.0)),
        ("betas", (-0.1, 0.9)),
        ("betas", (float("nan"), 0.9)),
        ("plateau_factor", 0.0),
        ("plateau_factor", 1.0),
        ("plateau_factor", float("nan")),
        ("plateau_threshold", -1.0),
        ("plateau_threshold", 1.0),
        ("plateau_threshold", float("nan")),
        ("average", -0.1),
        ("average", 1.0),
        ("average", float("nan")),
        ("seed", 2**63),
    ],
)
def test_other_bounds_of_training(name: str, value: Any) -> None:
    with pytest.raises(DomainError, match=rf"^{name} is "):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(
    ("table", "name"),
    [(DataConfig, "batching"), *((TrainConfig, name) for name in ("optimizer", "schedule", "precision", "device"))],
)
def test_choices_nobody_knows(table: Any, name: str) -> None:
    """From Python, too, where no recipe is read: otherwise another choice is taken without a word."""
    with pytest.raises(DomainError, match=rf"{name} is 'other'"):
        table(**{name: "other"})


def test_values_on_the_right_side_of_a_bound() -> None:
    config = TrainConfig(lr=1e-30, betas=(0.0, 0.999999), plateau_factor=0.999, seed=2**63 - 1)
    assert config.seed == 2**63 - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_keep_their_states(family: str) -> None:
    assert tiny(family=family, batching="streams", feature_dropout=0.5, logit_dropout=0.5)
    assert tiny(family=family, batching="unsorted", state_dropout=0.5)
    if family in ("rank", "block"):  # the one has no dropout of states, the other carries them by number
        assert tiny(family=family, batching="streams", state_dropout=0.5)
        return
    with pytest.raises(DomainError, match=r'batching is "streams"(.|\n)*state_dropout=0'):
        tiny(family=family, batching="streams", state_dropout=0.5)


def test_the_table_of_a_bound_is_named() -> None:
    with pytest.raises(DomainError, match=r"x.toml: \[train\] updates is 0"):
        build(Config, {"train": {"updates": 0}}, source="x.toml")
    with pytest.raises(DomainError, match=r"x.toml: \[data\] window is -1"):
        build(Config, {"data": {"window": -1}}, source="x.toml")
    with pytest.raises(DomainError, match=r"x.toml: \[model\] rank is 0"):
        build(Config, {"model": {"rank": 0}}, source="x.toml")
    with pytest.raises(DataError, match=r"x.toml: unknown key modle.\n  Did you mean model\?"):
        build(Config, {"modle": {}}, source="x.toml")


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        tiny(),
        tiny(max_vocabulary=7, lr=0.1 + 0.2, betas=(1 / 3, 0.9999999999999999), clusters='a "b"\\c', band_init=-1e-300),
        tiny(schedule="plateau", batching="streams", optimizer="adam", tensorboard=True, precision="bf16"),
    ],
    ids=["default", "tiny", "odd", "choices"],
)
def test_recipes_survive_the_disk(config: Config) -> None:
    again = build(Config, tomllib.loads(to_toml(config)), source="again")
    assert again == config
    assert differences(config, again) == []
    assert build(Config, to_mapping(config), source="mapping") == config


def test_widths_are_not_rounded_beyond_a_batch() -> None:
    with pytest.raises(DomainError, match="rounding is 513, but a batch has only tokens = 512"):
        DataConfig(rounding=513)


def test_batches_of_an_update_are_held_at_once() -> None:
    with pytest.raises(DomainError, match="accumulate is 9,999,999, but the batches of an update, at most 65,536"):
        TrainConfig(accumulate=9_999_999)
