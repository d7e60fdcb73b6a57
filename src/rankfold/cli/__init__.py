"""The command line: one file a command, each a plain function Python can call too.

Results go to standard output, progress to standard error. Exit 2 for the user's mistake, 1 for ours.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from rankfold.cli import (
    bench,
    data,
    demo,
    doctor,
    evaluate,
    explain,
    parse,
    predict,
    sample,
    score,
    segment,
    tag,
    train,
)
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.version import __version__

COMMANDS = (train, evaluate, parse, score, sample, segment, predict, tag, explain, data, demo, bench, doctor)


class Command(argparse.ArgumentParser):
    """The parser of one command: options may stand before, between and after the arguments that go by their place."""

    _mixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """By argparse's own way of mixing them, which comes back here twice; not where further commands follow."""
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
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    chosen = build_parser().parse_args(arguments)
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (DataError, DomainError, ShapeError, UnsupportedError, OSError) as error:
        print(f"rankfold: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("rankfold: interrupted", file=sys.stderr)
        return 130
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
