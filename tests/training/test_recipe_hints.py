"""A recipe that is nearly named, or cannot be a base: the message leads to one that can be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankfold.errors import DataError
from rankfold.training.recipes import load_recipe


@pytest.mark.parametrize(
    ("name", "near"),
    [("lhmm", "small-lhmm"), ("rank", "small-rank"), ("lhm", "small-lhmm"), ("vlhmm-16384", "vlhmm-16384-ptb")],
)
def test_a_name_that_contains_it_comes_first(name: str, near: str) -> None:
    with pytest.raises(DataError, match=rf"Did you mean {near}\?"):
        load_recipe(name)


@pytest.mark.parametrize("base", ["vlhmm-16384-ptb", "hmm-16384-ptb-faithful"])
def test_the_advice_for_a_base_of_a_base_gives_the_same_recipe(base: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "{base}"\n')
    with pytest.raises(DataError) as refused:
        load_recipe(path)
    found = re.search(r"take (\S+), and set what \S+ sets: (.*)\.$", str(refused.value))
    assert found is not None
    path.write_text(f'base = "{found[1]}"\n')
    assert load_recipe(path, found[2].split(", ")) == load_recipe(base)
