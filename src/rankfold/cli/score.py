"""`rankfold score`: the log-probability of every line."""

from __future__ import annotations

import argparse
from typing import Any

from rankfold.cli.answer import Row, TextWorker, add_columns, add_engine, answer_text
from rankfold.cli.load import Text, add_model, add_text
from rankfold.cli.output import say
from rankfold.data.vocab import Vocabulary
from rankfold.errors import UnsupportedError, quantity
from rankfold.models.strings import Scored, expect_memory, score

DESCRIPTION = (
    "Print the log-probability (natural logarithm) of every line as a sentence, <eos> included. Sentences of a "
    "grammar have no <eos>; -inf where it cannot make one. An empty line is no sentence and stays empty."
)
EXAMPLE = """\
example:
  rankfold score runs/small sentences.txt
  rankfold score runs/small - --json < sentences.txt
  rankfold score runs/small texts/ --engine processes --workers 2 --out scores/"""


EMPTY = Scored(None, 0, 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_text(parser)
    parser.add_argument(
        "--no-eos",
        action="store_true",
        help="score each line as the beginning of a sentence: no <eos> is added, and <eos> is a word like others",
    )
    add_columns(parser)
    add_engine(parser)


class Scorer(TextWorker):
    """Log-probabilities; its notes are how many lines of one word a grammar cannot make."""

    done = "scored"

    def __init__(self, model: Any, vocabulary: Vocabulary, arguments: argparse.Namespace) -> None:
        super().__init__(model, vocabulary, arguments)
        self.ends = arguments.no_eos
        self.remark = "log-probabilities of this family are lower bounds" if model.is_bound else ""
        if arguments.no_eos and not vocabulary.ends:
            raise UnsupportedError(
                "--no-eos is for models of sequences: sentences of a grammar have no <eos> to leave out."
            )

    def check(self, text: Text) -> None:
        expect_memory(self.model, list(map(len, text.words)), text.places, outside=False)

    def answer(self, text: Text) -> tuple[list[list[Row]], int]:
        asked = text.sentences
        found = score(self.model, asked, end=not self.ends, parts=self.parts) if asked else ()
        single = 0 if self.model.config.single_words else sum(len(words) == 1 for words in asked)
        pairs = zip(text.lines, text.align(found, EMPTY), strict=True)
        if self.arguments.json:
            return [[{"line": line, **one._asdict()}] for line, one in pairs], single
        return [[f"{one.log_prob:.6f}\t{line}" if one.tokens else ""] for line, one in pairs], single


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    single = 0

    def tell(notes: int) -> None:
        nonlocal single
        single += notes

    answer_text(arguments, "score", Scorer, tell)
    if single:
        say(f"{quantity(single, 'line')} of one word: this grammar gives none a probability, hence -inf")
    return 0
