"""Recipes by name or by file, with single values set from the command line. Read next: `training/config.py`.

A recipe may begin with `base = "name"`: it is then that recipe with the values it gives itself. One step only, so that
two files say all there is; a run keeps every value in its own recipe.toml.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rankfold.errors import DataError
from rankfold.settings import assign, build, read_toml
from rankfold.training.config import Config


def recipe_names() -> list[str]:
    """The recipes that come with the library."""
    folder = files("rankfold") / "recipes"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_recipe(name: str | Path, settings: Sequence[str] = ()) -> Config:
    """A recipe by its name, or from a TOML file, with `a.b=c` settings on top; unknown keys are refused."""
    text = str(name)
    mapping = _read(text)
    if "base" in mapping:
        mapping = _on_base(mapping, text)
    for setting in settings:
        assign(mapping, setting)
    source = f"recipe {text}" + (" with --set " + " --set ".join(settings) if settings else "")
    return build(Config, mapping, source=source)


def _read(text: str) -> dict[str, Any]:
    """The content of a recipe by its name, or of a file."""
    if text in recipe_names():
        with as_file(files("rankfold") / "recipes" / f"{text}.toml") as path:
            return read_toml(path)
    if Path(text).exists() or text.endswith(".toml"):
        return read_toml(text)
    raise DataError(f"no recipe and no file is called {text!r}.\n  {_hint(text)} A file of your own ends in .toml.")


def _on_base(mapping: dict[str, Any], text: str) -> dict[str, Any]:
    """The recipe that a recipe names as its base, with the recipe's own values in place of those it has."""
    own = dict(mapping)
    base = own.pop("base")
    if base not in recipe_names():
        raise DataError(
            f"recipe {text}: its base is {base!r}, but the name of a shipped recipe was expected.\n  {_hint(str(base))}"
        )
    merged = _read(base)
    if "base" in merged:
        below = merged.pop("base")
        values = ", ".join(f"{table}.{key}={value}" for table, own in merged.items() for key, value in own.items())
        raise DataError(
            f"recipe {text}: its base {base} has a base itself, {below}.\n"
            f"  One step is allowed: take {below}, and set what {base} sets: {values}."
        )
    for table, values in own.items():
        both = isinstance(values, dict) and isinstance(merged.get(table), dict)
        merged[table] = {**merged[table], **values} if both else values
    return merged


def _hint(name: str) -> str:
    """The shipped recipe that is most like a name, one that contains it before others, or where they are listed."""
    containing = [known for known in recipe_names() if name in known and len(name) > 2]
    near = difflib.get_close_matches(name, containing or recipe_names(), n=1, cutoff=0.0 if containing else 0.6)
    return f"Did you mean {near[0]}?" if near else "rankfold train --list shows those that come along."
