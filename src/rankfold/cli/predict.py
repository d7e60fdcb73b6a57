"""`rankfold predict`: the next word after the beginning of a sentence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfold.cli.load import add_model, expect_memory, known_ids, load_words, split_line
from rankfold.cli.output import to_json
from rankfold.data.text import read_lines
from rankfold.data.vocab import EOS, Vocabulary
from rankfold.errors import DomainError
from rankfold.models.catalog import AnyModel

DESCRIPTION = (
    "Print the likeliest next words after the beginning of a sentence, or its first words; <eos> is its end. "
    "Of models of sequences, and of grammars but compound ones."
)
EXAMPLE = """\
example:
  rankfold predict runs/small "the company said"
  rankfold predict runs/small --top 3 --prefix "the company said" --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
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
    """Print the table."""
    model, vocabulary = load_words(arguments.folder, arguments.device)
    if sum(map(bool, (arguments.text, arguments.prefix, arguments.data))) > 1:
        raise DomainError("the beginning of the sentence is given twice: TEXT, --prefix or --data, one of them.")
    if arguments.text == ["-"] or arguments.data is not None:
        file = None if arguments.data in (None, "-") else Path(arguments.data)
        return _run_lines(model, vocabulary, read_lines(file, ends=True), arguments)
    prefix = split_line(" ".join(arguments.text or [arguments.prefix]), vocabulary, ends=True)
    found = predict(model, vocabulary, prefix, top=arguments.top)
    if arguments.json:
        print(to_json({"prefix": prefix, "next": found}, indent=2))
    else:
        print(_table(found))
    return 0


def _run_lines(model: AnyModel, vocabulary: Vocabulary, lines: list[str], arguments: argparse.Namespace) -> int:
    """A table for each line, in their order; after an empty line come the first words of sentences."""
    for line in lines:
        words = split_line(line, vocabulary, ends=True)
        found = predict(model, vocabulary, words, top=arguments.top)
        if arguments.json:
            print(to_json({"prefix": words, "next": found}))
        else:
            print(f"{line}\n{_table(found)}\n")
    return 0


def _table(found: list[dict[str, Any]]) -> str:
    width = max(len(entry["word"]) for entry in found)
    return "\n".join(f"{entry['word']:<{width}}  {entry['probability']:.6f}" for entry in found)


def predict(
    model: AnyModel, vocabulary: Vocabulary, prefix: Sequence[str] = (), *, top: int = 10
) -> list[dict[str, Any]]:
    """The likeliest next words with their probabilities, the likeliest first; `<eos>` is one of them."""
    if top < 1:
        raise DomainError(f"--top is {top}, but must be at least 1.")
    ids = known_ids(prefix, vocabulary)
    log_probs, names = _next(model, ids, vocabulary)
    if not bool((log_probs > float("-inf")).any()):
        raise DomainError("the text has probability 0 under this model: nothing can follow it.")
    best = log_probs.topk(min(top, len(names)))
    return [
        {"word": names[i], "probability": math.exp(value), "log_prob": value}
        for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _next(model: AnyModel, ids: list[int], vocabulary: Vocabulary) -> tuple[Tensor, list[str]]:  # "v"
    """Log-probabilities and their words; a grammar's end has no id, it comes last."""
    expect_memory(model, [len(ids)], "sentence", outside=True)  # float64: as much as two passes hold
    found: Any = model.predict(model.batch(torch.tensor([ids])) if ids else None)
    if vocabulary.ends:
        return found[0], list(vocabulary.words)
    return torch.cat([found.log_words[0], found.log_end]), [*vocabulary.words, EOS]
