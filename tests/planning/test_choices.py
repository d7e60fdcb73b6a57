"""The order that plan="auto" takes at the sizes of recipes and tests and on a grid, as it was on 2026-11-17.

`python -m tests.planning.test_choices` writes the choices anew: only where a measurement says that another is faster.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rankfold.models import GrammarConfig, ModelConfig
from rankfold.models.catalog import sized_model
from rankfold.training.recipes import load_recipe, recipe_names

CHOICES = Path(__file__).with_name("choices.json")
MACHINES = ("cpu float32", "cuda float32", "cuda tf32", "cuda bf16")
BATCHES = (1, 2, 3, 4, 8, 16, 17, 32, 64, 65, 100, 128, 512)
LENGTHS = {ModelConfig: (1, 3, 8, 32, 64, 128, 450), GrammarConfig: (2, 5, 8, 10, 16, 20, 24, 30, 40, 80)}
CHAINS = [(6, 4), (8, 4), (16, 4), (64, 64), (256, 64), (512, 64), (1024, 512), (1024, 2048), (2048, 512)]
CHAINS += [(4096, 256), (4096, 1024), (4096, 4096), (8192, 1024), (16384, 512), (32768, 4096), (65536, 1024)]
GRAMMARS = [(5, 10, 4), (30, 60, 8), (60, 120, 100), (250, 500, 500), (900, 1800, 500), (4500, 9000, 128)]


def configs() -> Iterator[Any]:
    """Every size once: those of the recipes that have two orders, and the grid."""
    found: dict[str, Any] = {}
    for name in recipe_names():
        config = load_recipe(name).model
        if config.family in ("rank", "tnpcfg", "rankpcfg"):
            found[key(config)] = config
    for num_states, rank in CHAINS:
        config = ModelConfig(family="rank", num_states=num_states, rank=rank, dim=16)
        found.setdefault(key(config), config)
    for family, (num_spans, num_leaves, rank) in product(("tnpcfg", "rankpcfg"), GRAMMARS):
        config = GrammarConfig(family=family, num_nonterminals=num_spans, num_preterminals=num_leaves, rank=rank)
        found.setdefault(key(config), config)
    yield from found.values()


def key(config: Any) -> str:
    names = ("num_states",) if isinstance(config, ModelConfig) else ("num_nonterminals", "num_preterminals")
    return " ".join(map(str, (config.family, *(getattr(config, name) for name in names), config.rank)))


def choices(config: Any) -> dict[str, list[str]]:
    """For each machine and length, the first letter of the order of every batch."""
    model = sized_model(config, 1000)
    return {
        machine: [
            "".join(model.order("auto", batch, length, *machine.split())[0] for batch in BATCHES)
            for length in LENGTHS[type(config)]
        ]
        for machine in MACHINES
    }


@pytest.mark.parametrize("config", list(configs()), ids=key)
def test_the_order_is_the_one_it_was(config: Any) -> None:
    assert choices(config) == json.loads(CHOICES.read_text())[key(config)]


def test_every_size_is_there() -> None:
    known = json.loads(CHOICES.read_text())
    assert set(known) == {key(config) for config in configs()}
    assert len(known) > 20
    assert {letter for size in known.values() for rows in size.values() for row in rows for letter in row} == {"r", "s"}


if __name__ == "__main__":
    lines = [f"{json.dumps(key(config))}: {json.dumps(choices(config))}" for config in configs()]
    CHOICES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
