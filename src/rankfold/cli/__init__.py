"""The command line: one file per command, each a plain function Python can call too.

A command's module has DESCRIPTION, EXAMPLE, `add_arguments` and `run`; it is loaded, and torch with it, when chosen.
Results go to standard output, progress to standard error. Exit 2 for the user's mistake, 1 for ours.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rankfold.version import __version__

COMMANDS = {  # a module of this package each: its help
    "train": "train a language model by a recipe; interrupted runs can be resumed",
    "evaluate": "the perplexity of a text, and how well states predict tags",
    "parse": "sentences to bracketed trees, by a grammar",
    "score": "the log-probability of every line",
    "sample": "sentences or recordings drawn from a model",
    "segment": "cut recordings into segments",
    "predict": "the likeliest next words",
    "tag": "the hidden state of every word",
    "explain": "operations, memory and the largest batch, before a job starts",
    "data": "list known texts, and get one into a folder",
    "demo": "train a model of 1,024 states on Python's docstrings, and show what it learned",
    "bench": "check a gradient step of your model, then time it on this machine",
    "doctor": "versions, devices, Triton and a 5-second exactness check",
}


class Command(argparse.ArgumentParser):
    """The parser of one command: its arguments come from its module when it is chosen.

    Options may stand before, between and after the arguments that go by their place.
    """

    module: str | None = None  # whose arguments are still to be added
    _mixed = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """By `parse_known_intermixed_args`, which calls this method again; not where subcommands follow."""
        if self.module is not None:
            chosen, self.module = import_module(f"rankfold.cli.{self.module}"), None
            self.description, self.epilog = chosen.DESCRIPTION, chosen.EXAMPLE
            self.set_defaults(run=getattr(chosen, "run", None))  # those of its actions, where it has some
            chosen.add_arguments(self)
        if self._mixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixed = False


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="rankfold", description="Structured latent-variable models with very large state spaces, exactly."
    )
    parser.add_argument("--version", action="version", version=f"rankfold {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Command)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text).module = name
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        return _run(build_parser().parse_args(arguments))
    except KeyboardInterrupt:
        print("rankfold: interrupted", file=sys.stderr)
        return 130


def _run(chosen: argparse.Namespace) -> int:
    from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError  # it loads torch

    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (DataError, DomainError, ShapeError, UnsupportedError, OSError) as error:
        print(f"rankfold: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError, OverflowError) as error:
        if not _is_memory(error):
            raise
        print(
            f"rankfold: not enough memory ({(str(error) or type(error).__name__).splitlines()[0][:120]})\n"
            "  rankfold explain says what a model and a batch need.",
            file=sys.stderr,
        )
        return 2
    return status


def _is_memory(error: Exception) -> bool:
    """Whether an error is of sizes that no memory holds: torch raises plain RuntimeErrors for most of them."""
    text = str(error).lower()
    words = ("allocate memory", "out of memory", "storage size calculation overflow", "too large", "overflow")
    return isinstance(error, MemoryError | OverflowError) or any(word in text for word in words)
