"""The command line: one file per command, each a plain function Python can call too.

A command's module has DESCRIPTION, EXAMPLE, `add_arguments` and `run`; it is loaded, and torch with it, when chosen.
Results go to standard output, progress to standard error. Exit 2 for the user's mistake, 1 for ours. Every command has
--quiet, and --threads unless its module says COMPUTES = False.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from rankfold.version import __version__

COMMANDS = {  # a module of this package each: its help
    "train": "train a model of text, trees or recordings; interrupted runs can be resumed",
    "runs": "compare runs: the settings that differ, results, and curves in one picture",
    "evaluate": "the likelihood of a text or recordings; how well trees, states or segments agree with the truth",
    "parse": "sentences to bracketed trees, by a grammar",
    "score": "the log-probability of every line",
    "sample": "sentences or recordings drawn from a model",
    "segment": "cut recordings into segments",
    "predict": "the likeliest next words",
    "tag": "the hidden state of every word",
    "states": "what each hidden state says, how often, and what follows and precedes it",
    "segments-report": "what each state of a model of frames is: durations, features, labels",
    "report": "write the report.html of a run again: curve, results, what it learned",
    "symbols": "what each symbol of a grammar yields, its rules or words, and how often",
    "analyse": "ranks of tables, entropies of rules, use of states, losses by length and frequency",
    "explore": "a model in a browser: its states, sentences, trees or segments in one page",
    "explain": "operations, memory and the largest batch, before a job starts",
    "data": "list known texts, get one into a folder, prepare your own",
    "demo": "train a model of 2,048 states on Python's docstrings, and show what it learned",
    "bench": "check a gradient step of your model, then time it on this machine",
    "doctor": "versions, devices, Triton and a 5-second exactness check",
    "completion": "a script that completes commands and options, for bash, zsh or fish",
}


class Command(argparse.ArgumentParser):
    """The parser of one command: its arguments come from its module when it is chosen.

    Options may stand before, between and after the arguments that go by their place.
    """

    module: str | None = None  # whose arguments are still to be added
    _mixed = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def load(self) -> None:
        """Import the command's module, once, and take its arguments."""
        if self.module is None:
            return
        chosen, self.module = import_module(f"rankfold.cli.{self.module}"), None
        self.description, self.epilog = chosen.DESCRIPTION, chosen.EXAMPLE
        self.set_defaults(run=getattr(chosen, "run", None))  # those of its actions, where it has some
        chosen.add_arguments(self)
        actions = self._subparsers._group_actions if self._subparsers is not None else []
        inner = [parser for action in actions if action.choices for parser in dict(action.choices).values()]
        for parser in inner or [self]:
            _add_common(parser, computes=getattr(chosen, "COMPUTES", True))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """By `parse_known_intermixed_args`, which calls this method again; not where subcommands follow."""
        self.load()
        if self._mixed or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixed = False


def _add_common(parser: argparse.ArgumentParser, *, computes: bool) -> None:
    """--quiet and --threads."""
    parser.add_argument(
        "--quiet", action="store_true", help="no progress and no remarks on standard error; errors stay"
    )
    if computes:
        parser.add_argument(
            "--threads", type=_whole, metavar="N", help="threads that one product may use (default: one for each core)"
        )


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, but a whole number, at least 1, was expected")
    return int(text)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="rankfold", description="Structured latent-variable models with very large state spaces, exactly."
    )
    parser.add_argument("--version", action="version", version=f"rankfold {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Command)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text).module = name.replace("-", "_")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        return _run(build_parser().parse_args(arguments))
    except KeyboardInterrupt:
        print("rankfold: interrupted", file=sys.stderr)
        return 130


def _run(chosen: argparse.Namespace) -> int:
    try:
        with _quiet(getattr(chosen, "quiet", False)), _threads(getattr(chosen, "threads", None)):
            status: int = chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, RuntimeError, MemoryError, OverflowError) as error:  # those that may be told
        told = _told(error)
        if told is None:
            raise
        print(f"rankfold: {_named(told)}", file=sys.stderr)
        return 2
    return status


def _named(told: str) -> str:
    """An error with the rank of the process that tells it, where there are several."""
    from rankfold.training.distributed import alone, rank  # it loads torch

    return told if alone() or told.startswith(f"rank {rank()} ") else f"(on rank {rank()}) {told}"


def _told(error: Exception) -> str | None:
    """What a person is told of an error; None of our own mistakes."""
    from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError  # it loads torch

    if isinstance(error, DataError | DomainError | ShapeError | UnsupportedError | OSError):
        return str(error)
    if isinstance(error, RuntimeError | MemoryError | OverflowError) and _is_memory(error):
        return (
            f"not enough memory ({(str(error) or type(error).__name__).splitlines()[0][:120]})\n"
            "  rankfold explain says what a model and a batch need."
        )
    return None


@contextlib.contextmanager
def _quiet(quiet: bool) -> Iterator[None]:
    """Standard error leads nowhere until an error leaves the command."""
    if not quiet:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _threads(num: int | None) -> contextlib.AbstractContextManager[None]:
    """Torch has so many threads, and afterwards as many as before."""
    if num is None:
        return contextlib.nullcontext()
    from rankfold.training.setup import num_threads  # it loads torch

    return num_threads(num)


def _is_memory(error: Exception) -> bool:
    """Whether an error is of sizes that no memory holds: torch raises plain RuntimeErrors for most of them."""
    text = str(error).lower()
    words = ("allocate memory", "out of memory", "storage size calculation overflow", "too large", "overflow")
    return isinstance(error, MemoryError | OverflowError) or any(word in text for word in words)
