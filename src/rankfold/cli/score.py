"""`rankfold score`: the log-probability of every line."""

from __future__ import annotations

import argparse

import torch

from rankfold.cli.load import Text, add_model, add_text, load_words, text_path
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import stream
from rankfold.errors import UnsupportedError, quantity
from rankfold.models.strings import Scored, expect_memory, score

DESCRIPTION = (
    "Print the log-probability (natural logarithm) of every line as a sentence, <eos> included. Sentences of a "
    "grammar have no <eos>; -inf where it cannot make one. An empty line is no sentence and stays empty."
)
EXAMPLE = """\
example:
  rankfold score runs/small sentences.txt
  rankfold score runs/small - --json < sentences.txt"""


EMPTY = Scored(None, 0, 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_text(parser)
    parser.add_argument(
        "--no-eos",
        action="store_true",
        help="score each line as the beginning of a sentence: no <eos> is added, and <eos> is a word like others",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    model, vocabulary = load_words(arguments.folder, arguments.device)
    if arguments.no_eos and not vocabulary.ends:
        raise UnsupportedError(
            "--no-eos is for models of sequences: sentences of a grammar have no <eos> to leave out."
        )
    single = 0

    def check(text: Text) -> None:
        nonlocal single
        expect_memory(model, list(map(len, text.words)), text.places, outside=False)
        single += 0 if model.config.single_words else sum(len(words) == 1 for words in text.sentences)

    if model.is_bound:
        say("log-probabilities of this family are lower bounds")
    parts = None
    for text in stream(text_path(arguments), vocabulary, ends=arguments.no_eos, check=check, done="scored"):
        with torch.no_grad():
            parts = model.parts() if parts is None else parts
        asked = text.sentences
        scored = text.align(score(model, asked, end=not arguments.no_eos, parts=parts) if asked else (), EMPTY)
        for line, found in zip(text.lines, scored, strict=True):
            if arguments.json:
                print(to_json({"line": line, **found._asdict()}))
            else:
                print(f"{found.log_prob:.6f}\t{line}" if found.tokens else "")
    if single:
        say(f"{quantity(single, 'line')} of one word: this grammar gives none a probability, hence -inf")
    return 0
