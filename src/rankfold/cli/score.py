"""`rankfold score`: the log-probability of every line.

Read next: `models/base.py`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from rankfold.cli.model_of import add_model, add_text, expect_memory, load, say, tell_empty, tell_unknown, text_path
from rankfold.cli.output import to_json
from rankfold.data.batch import length_batches
from rankfold.data.text import STDIN, read_lines
from rankfold.data.vocab import Vocabulary
from rankfold.errors import UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.grammar_config import GrammarConfig
from rankfold.training.evaluation import tree_batches

NUM_TOKENS = 4096  # of a batch
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
    """Describe the command and its arguments."""
    parser.description = (
        "Print the log-probability (natural logarithm) of every line as a sentence, <eos> included. Sentences of a "
        "grammar have no <eos>; -inf where it cannot make one. An empty line is no sentence and stays empty."
    )
    parser.epilog = EXAMPLE
    add_model(parser)
    add_text(parser)
    parser.add_argument(
        "--no-eos",
        action="store_true",
        help="score each line as the beginning of a sentence: no <eos> is added, and <eos> is a word like others",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    model, vocabulary = load(arguments.folder, arguments.device)
    path = text_path(arguments)
    lines = read_lines(path, ends=arguments.no_eos)
    where = STDIN if path is None else path
    every = [line.split() for line in lines]
    sentences = [words for words in every if words]
    tell_empty(where, len(every) - len(sentences))
    tell_unknown(Counter(word for words in sentences for word in words if not vocabulary.knows(word)), vocabulary)
    if arguments.no_eos and not vocabulary.ends:
        raise UnsupportedError(
            "--no-eos is for models of sequences: sentences of a grammar have no <eos> to leave out."
        )
    if isinstance(model.config, GrammarConfig):
        expect_memory(model, list(map(len, every)), f"{where}, line", outside=False)
    single = _num_impossible(model, sentences)
    if single:
        say(f"{single:,} lines of one word: this grammar gives them no probability, hence -inf")
    if model.is_bound:
        say("log-probabilities of this family are lower bounds")
    scored = iter(score(model, vocabulary, sentences, end=not arguments.no_eos))
    for line in lines:
        found = next(scored) if line.split() else EMPTY
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
    values = [0.0] * len(rows)
    grammar = isinstance(model.config, GrammarConfig)
    batches = tree_batches(model, rows, NUM_TOKENS) if grammar else length_batches(rows, NUM_TOKENS)
    with torch.no_grad():
        parts = model.parts()
        for group, batch in zip(batches.groups, batches, strict=True):
            found = model.log_likelihood(batch.to(model.device), parts=parts).tolist()
            for i, value in zip(group, found, strict=True):
                values[i] = value
    strange = [sum(not vocabulary.knows(word) for word in words) for words in sentences]
    return [Scored(value, len(row), count) for value, row, count in zip(values, rows, strange, strict=True)]


def _num_impossible(model: AnyModel, sentences: Sequence[Sequence[str]]) -> int:
    """How many sentences of one word there are, if the model is a grammar that has none."""
    if not isinstance(model.config, GrammarConfig) or model.config.single_words:
        return 0
    return sum(len(words) == 1 for words in sentences)
