"""The page of a recipe's keys: every key and every family of models stands there."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from rankfold.models.config import Family, FrameConfig, FrameFamily, GrammarConfig, GrammarFamily, ModelConfig
from rankfold.training.config import DataConfig, TrainConfig

PAGE = Path(__file__).parents[2] / "docs" / "recipes-keys.md"
PARTS: dict[str, tuple[type[Any], Any]] = {
    "## `[model]` of language models": (ModelConfig, Family),
    "## `[model]` of grammars": (GrammarConfig, GrammarFamily),
    "## `[model]` of frames": (FrameConfig, FrameFamily),
    "## `[data]`": (DataConfig, None),
    "## `[train]`": (TrainConfig, None),
}


@pytest.mark.parametrize("title", PARTS)
def test_every_key_is_named(title: str) -> None:
    settings, families = PARTS[title]
    _, found, rest = PAGE.read_text().partition(title + "\n")
    assert found
    part = rest.partition("\n## ")[0]
    wanted = [*(field.name for field in fields(settings)), *(get_args(families) if families else ())]
    assert [name for name in wanted if f"`{name}`" not in part] == []
