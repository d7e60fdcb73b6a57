"""Recipes that come with the library, and those of a user, with single values set on top."""

import dataclasses
import json
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DataError, DomainError
from rankfold.models import FrameConfig, ModelConfig, build_model
from rankfold.models.config import GrammarConfig
from rankfold.settings import differences, to_mapping, to_toml
from rankfold.training.recipes import GROUPS, load_recipe, recipe_groups, recipe_names
from tests.folded import folded
from tests.training.runs import FAMILIES, tiny

# Every recipe of version 0.1 as it was resolved then: the values that most have, by kind of model, and what differs.
BEFORE = json.loads(Path(__file__).with_name("recipes_0_1.json").read_text(encoding="utf-8"))


def test_there_are_recipes() -> None:
    assert recipe_names() == sorted(recipe_names())
    assert {f"small-{family}" for family in FAMILIES} <= set(recipe_names())


def test_recipes_to_pick_from_are_few_and_described() -> None:
    """Each is a file with a group that is listed; the papers' rows are apart, and together they are all."""
    groups, everything = recipe_groups(), recipe_groups(papers=True)
    assert tuple(groups) == GROUPS == tuple(everything)[: len(GROUPS)]
    assert all(groups.values())
    picked = {name: text for group in groups.values() for name, text in group.items()}
    files_there = {path.name for path in (files("rankfold") / "recipes").iterdir()}
    assert files_there == {f"{name}.toml" for name in picked} | {"papers.toml"}
    assert 15 <= len(picked) <= 25
    assert len(set(picked.values())) == len(picked)
    described = {name: text for group in everything.values() for name, text in group.items()}
    assert sorted(described) == recipe_names()
    assert all(text[0].isupper() and text.endswith(".") and "\n" not in text for text in described.values())


def test_names_of_version_0_1_are_all_known() -> None:
    assert set(BEFORE["recipes"]) <= set(recipe_names())


@folded("name", list(BEFORE["recipes"]))
def test_a_name_of_version_0_1_means_what_it_meant(name: str) -> None:
    """Every value is the same, of the same type; keys that are newer than that are not looked at."""
    kind, changed = BEFORE["recipes"][name]
    found = to_mapping(load_recipe(name))
    expected = {
        (table, key): value for table, values in BEFORE["common"][kind].items() for key, value in values.items()
    }
    expected |= {tuple(place.split(".")): value for place, value in changed.items()}
    assert {at: repr(found[at[0]][at[1]]) for at in expected} == {at: repr(value) for at, value in expected.items()}


@folded("name", recipe_names())
def test_every_recipe_is_a_model(name: str) -> None:
    """At a 64th of its size, with dropout, on a vocabulary of 50 words."""
    full = load_recipe(name).model
    if isinstance(full, FrameConfig):
        expect_frames_model(full)
        return
    shrunk = (
        "num_states",
        "num_nonterminals",
        "num_preterminals",
        "rank",
        "dim",
        "encoder_dim",
        "num_clusters",
        "band",
    )
    sizes = {field: max(1, getattr(full, field) // 64) for field in shrunk if hasattr(full, field)}
    config = dataclasses.replace(full, **sizes)
    block = isinstance(config, ModelConfig) and config.family == "block"
    clusters = uniform_clusters(50, config.num_clusters, seed=0) if block else None
    model = build_model(config, 50, clusters=clusters)
    batch = model.batch(torch.arange(48).reshape(4, 12))
    loss = model.log_likelihood(batch, generator=torch.Generator().manual_seed(0)).sum()
    loss.backward()
    assert loss.isfinite()


def expect_frames_model(full: FrameConfig) -> None:
    """At a 64th of its size, with dropout, on frames of 8 features."""
    sizes = {field: max(4, getattr(full, field) // 64) for field in ("num_states", "rank", "dim", "max_duration")}
    model = build_model(dataclasses.replace(full, **sizes), 8)
    batch = model.batch([np.arange(80).reshape(10, 8) % 2.0, np.zeros((6, 8))])
    loss = model.log_likelihood(batch, generator=torch.Generator().manual_seed(0)).sum()
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("tail", "trained"),
    [
        ("", ["train.updates: 6000 -> 8000", "train.lr: 0.002 -> 0.003"]),
        ("-long", ["train.lr: 0.002 -> 0.003"]),
        ("-faithful", []),
    ],
)
def test_recipes_of_music_differ_by_the_rank(tail: str, trained: list[str]) -> None:
    """And ours by the rate: the same in windows as in whole pieces."""
    dense, low = load_recipe(f"music-hmm-2048{tail}"), load_recipe(f"music-lhmm-2048-512{tail}")
    assert differences(dense, low) == ["model.family: 'frame_hmm' -> 'frame_lhmm'", "model.rank: 16 -> 512", *trained]
    assert dense.train.schedule == ("plateau" if tail == "-faithful" else "linear")
    assert dense.data == low.data
    assert (dense.data.batching == "streams") == (tail == "-long")


OF_A_PAPER = [name for name in recipe_names() if re.search(r"-(ptb|wt2)(-faithful)?$", name) and "pcfg" not in name]
GRAMMARS = [name for name in recipe_names() if re.search(r"pcfg-.*-ptb(-faithful)?$", name)]
GRAMMAR_FAMILIES = ("npcfg", "cpcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg")
FAMILY_OF = {"hmm": "hmm", "lhmm": "lhmm", "banded": "banded", "rank": "rank", "sehmm": "block", "vlhmm": "block"}


@folded("name", OF_A_PAPER)
def test_a_recipe_is_what_its_name_says(name: str) -> None:
    config = load_recipe(name)
    family, *sizes = re.findall(r"[a-z]+|\d+", name.partition("-ptb")[0].partition("-wt2")[0])
    assert config.model.family == FAMILY_OF[family]
    numbers = [int(size) for size in sizes if size.isdigit()]
    assert numbers == [config.model.num_states, config.model.rank][: len(numbers)]
    assert len(numbers) == (2 if family in ("lhmm", "banded", "rank") else 1)
    assert config.model.tied == (family == "vlhmm" and "free" not in sizes)
    assert config.model.neural == ("free" not in sizes)
    assert (config.model.clusters == "uniform") == ("uniform" in sizes)
    if family == "vlhmm":
        assert config.model.state_dropout == (0.0 if "whole" in sizes else 0.5)
    assert config.train.schedule == ("plateau" if name.endswith("-faithful") else "linear")


@pytest.mark.parametrize("name", [name for name in OF_A_PAPER if name.endswith("-faithful")])
def test_two_ways_to_train_one_model(name: str) -> None:
    faithful, best = load_recipe(name), load_recipe(name.removesuffix("-faithful"))
    found = {line.partition(":")[0] for line in differences(best, faithful) if line.startswith("model.")}
    if best.model.family == "block":
        found -= {"model.rank", "model.feature_dropout"}  # which it has not
    assert found <= {"model.init", "model.state_dropout_kind", "model.band_init", "model.reset_eos"}


@pytest.mark.parametrize("family", FAMILIES)
def test_small_recipes_differ_by_the_family_alone(family: str) -> None:
    found = differences(load_recipe("small-lhmm"), load_recipe(f"small-{family}"))
    assert found == ([] if family == "lhmm" else [f"model.family: 'lhmm' -> '{family}'"])


@pytest.mark.parametrize("family", GRAMMAR_FAMILIES)
def test_small_recipes_of_grammars_differ_by_the_family_alone(family: str) -> None:
    found = differences(load_recipe("small-rankpcfg"), load_recipe(f"small-{family}"))
    assert found == ([] if family == "rankpcfg" else [f"model.family: 'rankpcfg' -> '{family}'"])


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_recipe_of_a_grammar_is_what_its_name_says(name: str) -> None:
    config = load_recipe(name)
    assert isinstance(config.model, GrammarConfig)
    family, *parts = name.partition("-ptb")[0].split("-")
    numbers = [int(part) for part in parts if part.isdigit()]
    sizes = [config.model.num_nonterminals, config.model.num_preterminals, config.model.rank]
    if name == "rankpcfg-4500-9000-ptb-faithful":  # the released configuration has them the other way round
        sizes[:2] = reversed(sizes[:2])
    assert config.model.family == family
    assert numbers == sizes[: len(numbers)]
    assert len(numbers) == (3 if family == "lpcfg" else 2)
    assert config.train.betas == (0.75, 0.999)
    assert config.train.clip == 3.0
    faithful = name.endswith("-faithful")
    assert config.train.schedule == ("constant" if faithful else "linear")
    assert config.data.batching == ("equal" if faithful else "length")
    kinds = {"none": 0, "inner": 3, "all": 4}.get(parts[-1], 1)
    assert family != "lpcfg" or len(config.model.low_rank) == kinds
    assert not faithful or name.removesuffix("-faithful") in recipe_names()


def test_a_recipe_nobody_knows() -> None:
    with pytest.raises(DataError, match=r"'smal-lhmm'.\n  Did you mean small-lhmm\?.*\.toml"):
        load_recipe("smal-lhmm")
    with pytest.raises(DataError, match=r"'qqq'.\n  rankfold train --list shows"):
        load_recipe("qqq")
    with pytest.raises(DataError, match=r"nowhere.toml: no such file"):
        load_recipe("nowhere.toml")


@pytest.mark.parametrize(
    ("name", "near"),
    [("lhmm", "small-lhmm"), ("rank", "small-rank"), ("lhm", "small-lhmm"), ("vlhmm-16384", "vlhmm-16384-ptb")],
)
def test_a_name_that_contains_it_comes_first(name: str, near: str) -> None:
    with pytest.raises(DataError, match=rf"Did you mean {near}\?"):
        load_recipe(name)


def test_the_nearest_names_are_of_both_lists() -> None:
    with pytest.raises(DataError, match=r"Did you mean lhmm-16384-2048-ptb\? Others like it: .*lhmm-16384-8192-ptb"):
        load_recipe("lhmm-16384-2048-pbt")


def test_a_recipe_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(to_toml(tiny()))
    assert load_recipe(tmp_path / "mine.toml") == tiny()
    assert load_recipe(str(tmp_path / "mine.toml"), ["model.rank=3"]) == tiny(rank=3)
    (tmp_path / "bare").write_text("[model]\nrank = 5\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("bare").model.rank == 5
    (tmp_path / "broken.toml").write_text("[model\n")
    with pytest.raises(DataError, match=r"broken.toml: not valid TOML"):
        load_recipe("broken.toml")


def test_a_base_gives_what_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "small-lhmm"\n[model]\nrank = 7\n[train]\nlr = 1.0\n')
    found = differences(load_recipe("small-lhmm"), load_recipe(path))
    assert found == ["model.rank: 256 -> 7", "train.lr: 0.005 -> 1.0"]
    assert load_recipe(path, ["model.rank=9"]).model.rank == 9
    for base in ("small-lhmm", "small-hmm", "vlhmm-16384-ptb", "rank-2048-4096-ptb"):  # which have bases, too
        path.write_text(f'base = "{base}"\n')
        assert load_recipe(path) == load_recipe(base)


def test_a_copy_of_a_shipped_file_may_keep_its_description(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((files("rankfold") / "recipes" / "small-hmm.toml").read_text(encoding="utf-8"))
    assert load_recipe(path) == load_recipe("small-hmm")
    path.write_text("group = 3\n")
    with pytest.raises(DataError, match="group is 3, but a string"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('base = "smal-lhmm"', r"its base is 'smal-lhmm'(.|\n)*Did you mean small-lhmm\?"),
        ("base = 3", r"its base is 3, but the name of a shipped recipe"),
        ('base = "mine.toml"', "its base is 'mine.toml'"),
        ('base = "small-lhmm"\n[modell]\nrank = 3', "unknown key modell"),
        ('base = "small-lhmm"\nmodel = 3', "model is 3, but a table"),
    ],
)
def test_a_base_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mine.toml").write_text(text + "\n")
    with pytest.raises(DataError, match=words):
        load_recipe(tmp_path / "mine.toml")


def test_settings_are_on_top_and_the_last_one_counts() -> None:
    settings = ["model.rank=64", "train.lr=1e-2", "train.betas=[0.8, 0.9]", "data.batching=unsorted", "model.rank=32"]
    found = differences(load_recipe("small-lhmm"), load_recipe("small-lhmm", settings))
    assert [line.partition(":")[0] for line in found] == ["model.rank", "data.batching", "train.lr", "train.betas"]
    assert load_recipe("small-lhmm", settings).model.rank == 32
    assert load_recipe("small-lhmm").model.rank == 256  # and the recipe is as before


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.rnak=64", r"unknown key model.rnak.\n  Did you mean model.rank\?"),
        ("train.zzz=1", r"unknown key train.zzz.\n  Known here: updates, "),
        ("modell.rank=64", r"unknown key modell.\n  Did you mean model\?"),
        ("model.rank=many", "model.rank is 'many', but a whole number was expected"),
        ("model.rank=1.5", "model.rank is 1.5, but a whole number"),
        ("model.rank=true", "model.rank is True, but a whole number"),
        ("train.lr=inf", "train.lr is inf, but a finite number"),
        ("train.betas=0.9", "train.betas is 0.9, but a list"),
        ("train.betas=[0.9, 'x']", r"train.betas\[1\] is 'x', but a finite number"),
        ("train.tensorboard=yes", "train.tensorboard is 'yes', but true or false"),
        ("data.batching=stream", r"data.batching is 'stream'(.|\n)*Did you mean streams\?"),
        ("model.family=lhm", r"model.family is 'lhm'(.|\n)*Did you mean lhmm\?"),
        ("model=3", "model is 3, but a table"),
        ("rank", "'rank' is not of the form key=value"),
    ],
)
def test_settings_that_are_wrong(setting: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_recipe("small-lhmm", [setting])


def test_the_text_names_recipe_and_settings() -> None:
    with pytest.raises(DataError, match=r"^recipe small-hmm with --set model.band=9 --set a.b=c: unknown key a"):
        load_recipe("small-hmm", ["model.band=9", "a.b=c"])
    with pytest.raises(DomainError, match=r"^recipe small-hmm with --set train.updates=0: \[train\] updates is 0"):
        load_recipe("small-hmm", ["train.updates=0"])
    with pytest.raises(DomainError, match=r"num_states is 1000, which 32 clusters cannot share"):
        load_recipe("small-block", ["model.num_states=1000"])
