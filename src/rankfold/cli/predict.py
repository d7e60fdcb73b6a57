"""`rankfold predict`: the next word after the beginning of a sentence.

Read next: `models/base.py`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import torch

from rankfold.cli.model_of import add_model, expect_sequences, known_ids, load
from rankfold.cli.output import to_json
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError
from rankfold.models.catalog import AnyModel

EXAMPLE = """\
example:
  rankfold predict runs/small "the company said"
  rankfold predict runs/small --top 3 --prefix "the company said" --json"""


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "predict",
        help="the likeliest next words",
        description="Print the likeliest next words after the beginning of a sentence, or its first words.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the beginning of a sentence, right after RUN")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="the same, wherever it stands (default: nothing)")
    parser.add_argument("--top", type=int, default=10, help="how many words (default: 10)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    model, vocabulary = load(arguments.folder, arguments.device)
    if arguments.text and arguments.prefix:
        raise DomainError("the beginning of the sentence is given twice: as TEXT and as --prefix.")
    prefix = " ".join(arguments.text or [arguments.prefix]).split()
    found = predict(model, vocabulary, prefix, top=arguments.top)
    if arguments.json:
        print(to_json({"prefix": prefix, "next": found}, indent=2))
    else:
        width = max(len(entry["word"]) for entry in found)
        print("\n".join(f"{entry['word']:<{width}}  {entry['probability']:.6f}" for entry in found))
    return 0


def predict(
    model: AnyModel, vocabulary: Vocabulary, prefix: Sequence[str] = (), *, top: int = 10
) -> list[dict[str, Any]]:
    """The likeliest next words with their probabilities, the likeliest first; `<eos>` is one of them."""
    if top < 1:
        raise DomainError(f"--top is {top}, but must be at least 1.")
    ids = known_ids(prefix, vocabulary)
    model = expect_sequences(model, "predict")
    log_probs = model.predict(model.batch(torch.tensor([ids])) if ids else None)[0]
    if not bool((log_probs > float("-inf")).any()):
        raise DomainError("the text has probability 0 under this model: nothing can follow it.")
    best = log_probs.topk(min(top, len(vocabulary)))
    return [
        {"word": vocabulary.words[i], "probability": math.exp(value), "log_prob": value}
        for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
