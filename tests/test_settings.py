"""Settings: strict reading, the way back through TOML, and what a user is told."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.settings import assign, build, choose, differences, read_toml, to_mapping, to_toml


@dataclass(frozen=True)
class Optim:
    lr: float = 1e-3
    clip: float | None = None
    schedule: Literal["constant", "cosine"] = "constant"


@dataclass(frozen=True)
class Model:
    num_states: int
    family: Literal["dense", "lhmm"] = "dense"
    tie: bool = False
    sizes: tuple[int, ...] = ()
    optim: Optim = field(default_factory=Optim)

    def __post_init__(self) -> None:
        if self.num_states < 1:
            raise DomainError(f"num_states is {self.num_states}, but at least 1 was expected.")


@dataclass(frozen=True)
class Recipe:
    model: Model
    name: str = "run"
    seed: int = 0
    tags: tuple[str, ...] = ()
    warm: Optim | None = None
    note: str | None = None
    limit: float | None = 5.0
    label: str = field(init=False, default="derived")


FULL: dict[str, Any] = {
    "model": {"num_states": 4, "family": "lhmm", "tie": True, "sizes": [1, 2], "optim": {"lr": 1, "clip": 0.5}},
    "name": "a",
    "tags": ["x", "y"],
    "warm": {"schedule": "cosine"},
    "note": None,
}


def read(text: str) -> Recipe:
    return build(Recipe, tomllib.loads(text), source="recipe.toml")


def test_a_tree_is_built_with_its_defaults() -> None:
    recipe = build(Recipe, FULL, source="recipe.toml")
    model = Model(4, "lhmm", True, (1, 2), Optim(lr=1.0, clip=0.5))
    assert recipe == Recipe(model, name="a", tags=("x", "y"), warm=Optim(schedule="cosine"))
    assert type(recipe.model.optim.lr) is float
    assert read("model.num_states = 3") == Recipe(Model(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.famly=lhmm", ["unknown key model.famly", "Did you mean model.family?"]),
        ("model.optim.zzz=1", ["unknown key model.optim.zzz", "lr, clip, schedule"]),
        ("label=x", ["unknown key label"]),
        ("model.family=lhm", ["model.family is 'lhm'", "dense, lhmm", "Did you mean lhmm?"]),
        ("model.family=9", ["model.family is 9", "dense, lhmm"]),
        ("model.num_states=4.0", ["model.num_states is 4.0", "a whole number"]),
        ("model.num_states=true", ["model.num_states is True", "a whole number"]),
        ("model.optim.lr=true", ["model.optim.lr is True", "a finite number"]),
        ("model.optim.lr=fast", ["model.optim.lr is 'fast'", "a finite number"]),
        ("model.optim.lr=inf", ["model.optim.lr is inf", "a finite number"]),
        ("model.optim.clip=nan", ["model.optim.clip is nan", "a finite number"]),
        ("model.optim.lr=1" + "0" * 400, ["model.optim.lr", "a finite number"]),
        ("model.tie=1", ["model.tie is 1", "true or false"]),
        ("name=3", ["name is 3", "a string, in double quotes"]),
        ("name=2026-01-01", ["name is datetime.date", "a string, in double quotes"]),
        ("name=\udcff", ["name is '\\udcff'", "a string"]),
        ("model.sizes=3", ["model.sizes is 3", "a list"]),
        ("model.sizes=[1, 2.5]", ["model.sizes[1] is 2.5", "a whole number"]),
        ("tags=abc", ["tags is 'abc'", "a list"]),
        ("model=3", ["model is 3", "a table"]),
        ("warm=3", ["warm is 3", "a table"]),
        ("model={}", ["model.num_states is missing"]),
    ],
)
def test_bad_values_are_refused_by_name(change: str, words: list[str]) -> None:
    mapping = to_mapping(build(Recipe, FULL, source="recipe.toml"))
    assign(mapping, change)
    with pytest.raises(DataError) as caught:
        build(Recipe, mapping, source="recipe.toml")
    assert str(caught.value).startswith("recipe.toml: ")
    for word in words:
        assert word in str(caught.value)


def test_what_is_not_a_table_or_lacks_one_is_refused() -> None:
    with pytest.raises(DataError, match=r"recipe.toml: model is missing"):
        build(Recipe, {}, source="recipe.toml")
    with pytest.raises(DataError, match=r"x.json: the whole is \[\], but a table"):
        build(Recipe, [], source="x.json")  # type: ignore[arg-type]


def test_rules_of_a_class_are_passed_on_with_their_place() -> None:
    with pytest.raises(DomainError, match=r"^recipe.toml: \[model\] num_states is 0, but"):
        read("model.num_states = 0")
    with pytest.raises(DomainError, match=r"^m.toml: num_states is -1, but"):
        build(Model, {"num_states": -1}, source=Path("m.toml"))


@dataclass(frozen=True)
class Unreadable:
    x: int | str = 0


def test_a_field_of_another_type_is_our_mistake() -> None:
    with pytest.raises(UnsupportedError, match=r"x has the type int \| str"):
        build(Unreadable, {"x": 1}, source="s")


finite = st.floats(allow_nan=False, allow_infinity=False)
optims = st.builds(Optim, finite, st.none() | finite, st.sampled_from(["constant", "cosine"]))
models = st.builds(
    Model,
    st.integers(1, 2**63 - 1),
    st.sampled_from(["dense", "lhmm"]),
    st.booleans(),
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
    optims,
)
recipes = st.builds(
    Recipe,
    models,
    name=st.text(),
    seed=st.integers(-(2**63), 2**63 - 1),
    tags=st.lists(st.text()).map(tuple),
    warm=st.none() | optims,
    note=st.none() | st.text(),
    limit=finite,
)


@given(recipes)
def test_toml_reads_back_equal(recipe: Recipe) -> None:
    again = read(to_toml(recipe))
    assert again == recipe
    assert math.copysign(1, again.model.optim.lr) == math.copysign(1, recipe.model.optim.lr)
    assert build(Recipe, to_mapping(recipe), source="mapping") == recipe


@given(st.text(st.characters(max_codepoint=0xFF)))
def test_control_characters_read_back_equal(text: str) -> None:
    assert read(to_toml(Recipe(Model(1), name=text + '\x7f\x00\r\n\\"'))).name == text + '\x7f\x00\r\n\\"'


def test_toml_is_readable() -> None:
    recipe = Recipe(Model(4, sizes=(1, 2), optim=Optim(lr=1e-5)), tags=('a"b',))
    assert to_toml(recipe) == (
        'name = "run"\nseed = 0\ntags = ["a\\"b"]\nlimit = 5.0\n'
        '\n[model]\nnum_states = 4\nfamily = "dense"\ntie = false\nsizes = [1, 2]\n'
        '\n[model.optim]\nlr = 1e-05\nschedule = "constant"\n'
    )


def test_what_could_not_be_read_back_is_not_written() -> None:
    with pytest.raises(UnsupportedError, match="limit is None"):
        to_toml(Recipe(Model(1), limit=None))
    with pytest.raises(DomainError, match=r"model.optim.lr is inf"):
        to_toml(Recipe(Model(1, optim=Optim(lr=math.inf))))


def test_mappings_are_plain() -> None:
    mapping = to_mapping(Recipe(Model(4, sizes=(1, 2)), tags=("x",)))
    assert mapping["model"]["sizes"] == [1, 2]
    assert mapping["note"] is None
    assert "label" not in mapping


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("a.b=3", 3),
        ("a.b = 1e-3", 1e-3),
        ("a.b=lhmm", "lhmm"),
        ('a.b="3"', "3"),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=x=y", "x=y"),
        ("a.b=", ""),
        ("a.b=1\nc = 2", "1\nc = 2"),
        ("a.b=true", True),
    ],
)
def test_assignments(argument: str, value: Any) -> None:
    mapping: dict[str, Any] = {"a": {"old": 1}}
    assign(mapping, argument)
    assert mapping == {"a": {"old": 1, "b": value}}
    empty: dict[str, Any] = {}
    assign(empty, argument)
    assert empty == {"a": {"b": value}}


@pytest.mark.parametrize("argument", ["rank", "", "=3", ".a=3", "a..b=3", "a b=3", "a.=3"])
def test_malformed_assignments_show_an_example(argument: str) -> None:
    mapping: dict[str, Any] = {}
    with pytest.raises(DataError, match=r"key=value(.|\n)*--set model.rank=64"):
        assign(mapping, argument)
    assert mapping == {}


def test_an_assignment_below_a_value_is_refused() -> None:
    with pytest.raises(DataError, match=r"a.b is the value 3, not a table"):
        assign({"a": {"b": 3}}, "a.b.c=1")


def test_differences_name_key_and_values() -> None:
    recipe = build(Recipe, FULL, source="s")
    assert differences(recipe, recipe) == []
    other = replace(recipe, seed=1, warm=None, model=replace(recipe.model, sizes=(1,), optim=Optim(lr=2.0, clip=0.5)))
    lines = differences(recipe, other)
    assert lines[:2] == ["model.sizes: [1, 2] -> [1]", "model.optim.lr: 1.0 -> 2.0"]
    assert lines[2] == "seed: 0 -> 1"
    assert re.fullmatch(r"warm: \{.*\} -> None", lines[3])


def test_files_are_read_or_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_bytes(b'name = "\xc3\xa4"\n')
    assert read_toml(path) == {"name": "\u00e4"}
    for content, words in [
        (b"a = 1\nb = = 2\n", r"r.toml: not valid TOML: .*line 2"),
        (b"a = 1\na = 2\n", r"r.toml: not valid TOML: .*line 2"),
        (b'a = 1\nb = "\xff"\n', r"r.toml: line 2 holds the byte 0xff, which is not UTF-8"),
        (b"a = " + b"[" * 1900, r"r.toml: not valid TOML"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_toml(path)
    with pytest.raises(DataError, match=r"none.toml: no such file"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(DataError, match="is a folder"):
        read_toml(tmp_path)


@dataclass(frozen=True)
class Chain:
    family: Literal["hmm", "lhmm"] = "hmm"
    num_states: int = 3


@dataclass(frozen=True)
class Grammar:
    family: Literal["npcfg", "spcfg"] = "npcfg"
    kinds: tuple[Literal["span", "leaf"], ...] = ("span",)


@dataclass(frozen=True)
class Either:
    model: Chain | Grammar = field(default_factory=Chain)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("", Chain()),
        ("[model]\nnum_states = 4", Chain(num_states=4)),
        ('[model]\nfamily = "lhmm"', Chain("lhmm")),
        ('[model]\nfamily = "spcfg"\nkinds = ["leaf", "span"]', Grammar("spcfg", ("leaf", "span"))),
    ],
)
def test_a_table_of_several_classes_is_chosen_by_its_family(text: str, model: Chain | Grammar) -> None:
    found = build(Either, tomllib.loads(text), source="r.toml")
    assert found == Either(model)
    assert build(Either, tomllib.loads(to_toml(found)), source="r.toml") == found


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"model": {"family": "spcg"}}, ["model.family is 'spcg'", "hmm, lhmm, npcfg, spcfg", "Did you mean spcfg?"]),
        ({"model": {"family": 3}}, ["model.family is 3"]),
        (
            {"model": {"family": "npcfg", "num_states": 3}},
            ["model.num_states is a setting of hmm, lhmm, but", "family, kinds"],
        ),
        ({"model": {"kinds": ["span"]}}, ["model.kinds is a setting of npcfg, spcfg, but model.family is 'hmm'"]),
        ({"model": {"family": "npcfg", "state": 3}}, ["unknown key model.state", "family, kinds"]),
        ({"model": 3}, ["model is 3", "a table was expected"]),
        ({"model": {"family": "npcfg", "kinds": ["span", "lef"]}}, ["model.kinds[1]", "Did you mean leaf?"]),
    ],
)
def test_a_table_of_several_classes_is_refused_by_name(mapping: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        build(Either, mapping, source="r.toml")
    for word in words:
        assert word in str(error.value)


def test_choosing_by_hand() -> None:
    assert choose((Chain, Grammar), {"family": "spcfg"}, source="x") is Grammar
    assert choose((Chain, Grammar), {}, source="x") is Chain
    with pytest.raises(DataError, match="x: family is 'z'"):
        choose((Chain, Grammar), {"family": "z"}, source="x")


def test_differences_of_tables_of_different_classes() -> None:
    found = differences(Either(Chain()), Either(Grammar()))
    assert found == ["model.family: 'hmm' -> 'npcfg'", "model.num_states: 3 -> None", "model.kinds: None -> ['span']"]


def test_more_settings_than_there_are(tmp_path: Path) -> None:
    """The parser of TOML takes the square of a key's length."""
    path = tmp_path / "r.toml"
    path.write_text("[" + "a." * 100_000 + "a]")
    with pytest.raises(DataError, match=r"r.toml: has 200,003 bytes, but a file of settings at most 65,536"):
        read_toml(path)
    mapping: dict[str, Any] = {}
    assign(mapping, "a={" + "a." * 100_000 + "a=1}")
    assert isinstance(mapping["a"], str)
    path.write_text("x = 1\na" + ".b" * 10_000 + " = 1\n")
    with pytest.raises(DataError, match=r"r.toml: line 2 has 20,005 bytes, but one of settings at most 2,000"):
        read_toml(path)
