"""`rankfold tag`: the hidden state of every word."""

from __future__ import annotations

import argparse

import torch

from rankfold.cli.load import add_model, add_text, load_words, text_path
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import stream
from rankfold.models.strings import expect_sequences, tag

DESCRIPTION = (
    "Print every sentence as word/STATE; an empty line stays empty. A rank-space "
    "model has summed its states out: its tags are ranks."
)
EXAMPLE = """\
example:
  rankfold tag runs/small sentences.txt
  rankfold tag runs/small sentences.txt --method viterbi --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_model(parser)
    add_text(parser)
    add_method(parser)


def add_method(parser: argparse.ArgumentParser) -> None:
    """The argument --method."""
    parser.add_argument(
        "--method",
        choices=("posterior", "viterbi"),
        default="posterior",
        help="posterior: the likeliest state of each word (default); viterbi: the likeliest path",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each sentence."""
    model, vocabulary = load_words(arguments.folder, arguments.device)
    of = getattr(expect_sequences(model, "tag"), "of", "states")
    say(f"the tags are {of}")
    parts = None
    for text in stream(text_path(arguments), vocabulary, done="tagged"):
        with torch.no_grad():
            parts = model.parts() if parts is None else parts
        rows = vocabulary.encode_all(text.sentences).sentences
        found = tag(model, rows, arguments.method, parts=parts).states if rows else []
        for words, states in zip(text.words, text.align(found, []), strict=True):
            if arguments.json:
                print(to_json({"words": words, "states": states, "of": of}))
            else:
                print(" ".join(f"{word}/{state}" for word, state in zip(words, states, strict=True)))
    return 0
