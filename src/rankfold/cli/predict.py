"""`rankfold predict`: the next word after the beginning of a sentence."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from rankfold.cli.load import add_model, load_words, tell_unknown
from rankfold.cli.output import to_json
from rankfold.data.text import read_lines
from rankfold.errors import DomainError
from rankfold.models.strings import Predicted, predict, split_line

DESCRIPTION = (
    "Print the likeliest next words after the beginning of a sentence, or its first words; <eos> is its end. "
    "Of models of sequences, and of grammars but compound ones."
)
EXAMPLE = """\
example:
  rankfold predict runs/small "the company said"
  rankfold predict runs/small --top 3 --prefix "the company said" --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="the beginning of a sentence, right after RUN; - reads beginnings from standard input, one per line",
    )
    parser.add_argument("--data", metavar="FILE", help="beginnings of sentences, one per line; - is standard input")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="the same, wherever it stands (default: nothing)")
    parser.add_argument("--top", type=int, default=10, help="how many words (default: 10)")


def run(arguments: argparse.Namespace) -> int:
    """Print a table for each beginning, in their order; after an empty line come the first words of sentences."""
    model, vocabulary = load_words(arguments.folder, arguments.device)
    if sum(map(bool, (arguments.text, arguments.prefix, arguments.data))) > 1:
        raise DomainError("the beginning of the sentence is given twice: TEXT, --prefix or --data, one of them.")
    if arguments.top < 1:
        raise DomainError(f"--top is {arguments.top}, but must be at least 1.")
    many = arguments.text == ["-"] or arguments.data is not None
    if many:
        file = None if arguments.data in (None, "-") else Path(arguments.data)
        lines = read_lines(file, ends=True)
    else:
        lines = [" ".join(arguments.text or [arguments.prefix])]
    beginnings = [split_line(line, vocabulary, ends=True) for line in lines]
    tell_unknown(beginnings, vocabulary)
    for line, words in zip(lines, beginnings, strict=True):
        found = predict(model, words, top=arguments.top)
        if arguments.json:
            content = {"prefix": words, "next": [_record(entry) for entry in found]}
            print(to_json(content, indent=None if many else 2))
        else:
            print(f"{line}\n{_table(found)}\n" if many else _table(found))
    return 0


def _table(found: list[Predicted]) -> str:
    width = max(len(entry.word) for entry in found)
    return "\n".join(f"{entry.word:<{width}}  {math.exp(entry.log_prob):.6f}" for entry in found)


def _record(entry: Predicted) -> dict[str, str | float]:
    return {"word": entry.word, "probability": math.exp(entry.log_prob), "log_prob": entry.log_prob}
