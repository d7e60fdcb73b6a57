"""Recipes by name or from a file, with single values set on top.

A shipped recipe is a file of its own, listed in groups to pick from, or a row of the table `papers.toml`. With
`base = "name"` it is that shipped recipe and the values it gives itself; a run keeps every value in its recipe.toml.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rankfold.errors import DataError, refuse_mps
from rankfold.files import read_json
from rankfold.settings import assign, build, read_toml
from rankfold.training.config import Config
from rankfold.training.run_dir import CONFIG, RECIPE, RunDir, model_folder, recipe_path

PAPERS = "papers.toml"
GROUPS = (
    "text on a laptop",
    "text on a GPU",
    "grammars on a laptop",
    "grammars on a GPU",
    "segments of recordings",
    "music",
)


def recipe_names() -> list[str]:
    """Every shipped recipe, the papers' rows included, in alphabetical order."""
    return sorted(_shipped())


def recipe_groups(*, papers: bool = False) -> dict[str, dict[str, str]]:
    """Recipes to pick from, by group: a description by name. `papers`: the rows of the papers' tables as well."""
    groups: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name, recipe in _shipped().items():
        if papers or recipe["group"] in GROUPS:
            groups.setdefault(recipe["group"], {})[name] = recipe["description"]
    return groups


def load_recipe(name: str | Path, settings: Sequence[str] = ()) -> Config:
    """A recipe by its name, or from a TOML file, with `a.b=c` settings on top; unknown keys are refused."""
    text = str(name)
    mapping = _resolve(_read(text), text)
    for setting in settings:
        assign(mapping, setting)
    source = f"recipe {text}" + (" with --set " + " --set ".join(settings) if settings else "")
    return build(Config, mapping, source=source)


def run_config(
    recipe: Config | str | Path | None,
    settings: Sequence[str],
    out: str | Path,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    device: str | None = None,
) -> Config:
    """The configuration of a run: a recipe with settings on top.

    Without a recipe, that of the run that is resumed, or of the run or model that this one starts from. `device`: the
    setting train.device.
    """
    if device is not None:
        refuse_mps(device)
    if isinstance(recipe, Config):
        if settings:
            raise DataError("settings change a recipe by name or file: of a Config take dataclasses.replace.")
        chosen: Any = recipe.train.device if device is None else device
        return replace(recipe, train=replace(recipe.train, device=chosen))
    if device is not None:
        settings = [*settings, f"train.device={device}"]
    if recipe is not None:
        return load_recipe(recipe, settings)
    if init_from is not None and not resume:
        return _config_of(Path(init_from), settings)
    if not resume:
        names = ", ".join(name for group in recipe_groups().values() for name in group)
        raise DataError(f"train needs --recipe: a TOML file, or one of {names}.\n  rankfold train --list says more.")
    with RunDir.open(out) as run:
        path = run.path / RECIPE
        mapping = read_toml(path)
    for setting in settings:
        assign(mapping, setting)
    return build(Config, mapping, source=path)


def _config_of(origin: Path, settings: Sequence[str]) -> Config:
    """The recipe of the run at a path, or of a model by itself the defaults for that model; with settings on top."""
    recipe = recipe_path(origin)
    if recipe is not None:
        mapping = read_toml(recipe)
    else:
        recipe = model_folder(origin) / CONFIG
        content = read_json(recipe, "the config.json of a model")
        mapping = {"model": content.get("model")} if isinstance(content, dict) else {}
    for setting in settings:
        assign(mapping, setting)
    return build(Config, mapping, source=recipe)


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The content of every shipped recipe, by name: files first, then the rows of `papers.toml` in its order."""
    with as_file(files("rankfold") / "recipes") as folder:
        names = sorted(path.stem for path in folder.glob("*.toml") if path.name != PAPERS)
        single = {name: read_toml(folder / f"{name}.toml") for name in names}
        table = read_toml(folder / PAPERS)
    return single | {name: {"group": group, **row} for group, rows in table.items() for name, row in rows.items()}


def _read(text: str) -> dict[str, Any]:
    """The content of a recipe by its name, or of a file."""
    if text in _shipped():
        return copy.deepcopy(_shipped()[text])
    if Path(text).exists() or text.endswith(".toml"):
        return read_toml(text)
    raise DataError(f"no recipe and no file is called {text!r}.\n  {_nearest(text)} A file of your own ends in .toml.")


def _resolve(mapping: dict[str, Any], text: str) -> dict[str, Any]:
    """The tables of a recipe, on top of those of its base; without description and group."""
    for key in ("description", "group"):
        value = mapping.pop(key, "")
        if not isinstance(value, str):
            raise DataError(f"recipe {text}: {key} is {value!r}, but a string, in double quotes was expected.")
    if "base" not in mapping:
        return mapping
    base = mapping.pop("base")
    if not isinstance(base, str) or base not in _shipped():
        raise DataError(
            f"recipe {text}: its base is {base!r}, but the name of a shipped recipe was expected.\n  "
            f"{_nearest(str(base))}"
        )
    merged = _resolve(_read(base), base)
    for table, values in mapping.items():
        both = isinstance(values, dict) and isinstance(merged.get(table), dict)
        merged[table] = {**merged[table], **values} if both else values
    return merged


def _nearest(name: str) -> str:
    """The shipped recipes that are most like a name, ones that contain it first, or how to list them."""
    containing = [known for known in recipe_names() if name in known and len(name) > 2]
    near = difflib.get_close_matches(name, containing or recipe_names(), n=4, cutoff=0.0 if containing else 0.6)
    if not near:
        return "rankfold train --list shows those to pick from, --list --all also the papers' rows."
    others = f" Others like it: {', '.join(near[1:])}." if near[1:] else ""
    return f"Did you mean {near[0]}?{others}"
