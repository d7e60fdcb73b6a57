"""Grammars that come with the package, as text in `structures/`: the papers' models, and what they name as next."""

from __future__ import annotations

from importlib.resources import files

from rankfold.errors import DataError
from rankfold.fgg.grammar import Grammar
from rankfold.fgg.names import suggestion
from rankfold.fgg.text import parse

_FOLDER = files("rankfold.fgg").joinpath("structures")


def library_names() -> list[str]:
    """The names of the grammars."""
    return sorted(entry.name.removesuffix(".fgg") for entry in _FOLDER.iterdir() if entry.name.endswith(".fgg"))


def library_text(name: str) -> str:
    """The text of a grammar."""
    if name not in library_names():
        raise DataError(f"There is no grammar {name!r} in the library. {suggestion(name, library_names())}")
    return _FOLDER.joinpath(f"{name}.fgg").read_text(encoding="utf-8")


def library(name: str, **sizes: int) -> Grammar:
    """A grammar of the library, with these sizes of its domains: `library("hmm", Z=64, V=1000)`."""
    return parse(library_text(name)).with_domains(sizes)
