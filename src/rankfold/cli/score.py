"""`rankfold score`: the log-probability of every line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch

from rankfold.cli.load import (
    add_model,
    add_text,
    answer_each,
    expect_memory,
    load_words,
    read_text,
    tell_unknown,
    text_path,
)
from rankfold.cli.output import say, to_json
from rankfold.data.batch import length_batches
from rankfold.data.vocab import Vocabulary
from rankfold.errors import UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.training.evaluation import tree_batches

NUM_TOKENS = 4096  # of a batch
DESCRIPTION = (
    "Print the log-probability (natural logarithm) of every line as a sentence, <eos> included. Sentences of a "
    "grammar have no <eos>; -inf where it cannot make one. An empty line is no sentence and stays empty."
)
EXAMPLE = """\
example:
  rankfold score runs/small sentences.txt
  rankfold score runs/small - --json < sentences.txt"""


class Scored(NamedTuple):
    """The log-probability of one line."""

    log_prob: float | None  # nats; None of an empty line, which is no sentence
    tokens: int  # <eos> counted, where there is one; of grammars the words
    unknown: int  # words that count as <unk>


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
    scored = text.align(score(model, vocabulary, text.sentences, end=not arguments.no_eos), EMPTY)
    for line, found in zip(text.lines, scored, strict=True):
        if arguments.json:
            print(to_json({"line": line, **found._asdict()}))
        else:
            print(f"{found.log_prob:.6f}\t{line}" if found.tokens else "")
    return 0


def score(
    model: AnyModel, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]], *, end: bool = True
) -> list[Scored]:
    """The log-probability of each sentence, in order; with `end` false, of each as the beginning of one.

    Then `<eos>` is a word like others, and the probabilities of all strings of one length sum to 1.
    """
    if end:
        rows = vocabulary.encode_all(sentences).sentences
    else:
        rows = [list(map(vocabulary.id_of, words)) for words in sentences]
    grammar = model.config.data == "sentences"
    batches = tree_batches(model, rows, NUM_TOKENS) if grammar else length_batches(rows, NUM_TOKENS)
    with torch.no_grad():
        parts = model.parts()
    values = answer_each(
        model, batches.groups, batches, lambda batch: model.log_likelihood(batch, parts=parts).tolist()
    )
    strange = [sum(not vocabulary.knows(word) for word in words) for words in sentences]
    return [Scored(value, len(row), count) for value, row, count in zip(values, rows, strange, strict=True)]
