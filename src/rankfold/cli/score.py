"""`rankfold score`: the log-probability of every line."""

from __future__ import annotations

import argparse

from rankfold.cli.load import add_model, add_text, load_words, read_text, tell_unknown, text_path
from rankfold.cli.output import say, to_json
from rankfold.errors import UnsupportedError
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
    """The arguments of the command."""
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
    text = read_text(text_path(arguments), vocabulary, ends=arguments.no_eos)
    text.tell_empty()
    tell_unknown(text.sentences, vocabulary)
    if arguments.no_eos and not vocabulary.ends:
        raise UnsupportedError(
            "--no-eos is for models of sequences: sentences of a grammar have no <eos> to leave out."
        )
    expect_memory(model, list(map(len, text.words)), f"{text.where}, line", outside=False)
    single = 0 if model.config.single_words else sum(len(words) == 1 for words in text.sentences)
    if single:
        say(f"{single:,} lines of one word: this grammar gives them no probability, hence -inf")
    if model.is_bound:
        say("log-probabilities of this family are lower bounds")
    scored = text.align(score(model, text.sentences, end=not arguments.no_eos), EMPTY)
    for line, found in zip(text.lines, scored, strict=True):
        if arguments.json:
            print(to_json({"line": line, **found._asdict()}))
        else:
            print(f"{found.log_prob:.6f}\t{line}" if found.tokens else "")
    return 0
