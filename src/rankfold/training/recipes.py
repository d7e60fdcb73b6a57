"""Recipes by name or by file, with single values set from the command line. Read next: `training/config.py`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

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
    if text in recipe_names():
        with as_file(files("rankfold") / "recipes" / f"{text}.toml") as path:
            mapping = read_toml(path)
    elif Path(text).exists() or text.endswith(".toml"):
        mapping = read_toml(text)
    else:
        near = difflib.get_close_matches(text, recipe_names(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(recipe_names())}."
        raise DataError(f"no recipe and no file is called {text!r}.\n  {hint} A file of your own ends in .toml.")
    for setting in settings:
        assign(mapping, setting)
    source = f"recipe {text}" + (" with --set " + " --set ".join(settings) if settings else "")
    return build(Config, mapping, source=source)
