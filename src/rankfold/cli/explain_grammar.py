"""`rankfold explain` of a grammar: what its sum costs as written and in rank space."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.cli.output import to_json
from rankfold.errors import DataError, DomainError
from rankfold.fgg import Grammar, explain, read
from rankfold.fgg.cost import compare

SUFFIX = ".fgg"
BATCH = 1  # sentences, where none are asked for


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison, or with --json its numbers."""
    for name in ("batch", "length", "rank"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise DomainError(f"--{name} is {value}, but must be at least 1.")
    g = sized(arguments.model, arguments.settings)
    options: dict[str, Any] = {"batch": arguments.batch or BATCH, "rank": arguments.rank}
    if arguments.json:
        print(to_json(compare(g, arguments.length, **options), indent=2))
    else:
        print(explain(g, arguments.length, **options))
    return 0


def sized(path: str, settings: Sequence[str]) -> Grammar:
    """The grammar of a file, with the sizes of domains that `--set N=30` gives."""
    if not Path(path).exists():
        raise DataError(f"There is no file {path}.")
    sizes: dict[str, int] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not value.strip().isdigit():
            raise DataError(f"--set {setting} is not a size of a domain; write --set N=30.")
        sizes[name.strip()] = int(value)
    return read(path).with_domains(sizes)
