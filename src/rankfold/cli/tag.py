"""`rankfold tag`: the hidden state of every word."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rankfold.cli.answer import Row, TextWorker, add_columns, add_engine, answer_text
from rankfold.cli.load import Text, add_model, add_text, count
from rankfold.data.batch import Batch, length_batches
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.k_best import k_best
from rankfold.errors import DataError
from rankfold.models.base import Model
from rankfold.models.strings import TAGGED_TOKENS, answer_each, expect_sequences, tag

DESCRIPTION = (
    "Print every sentence as word/STATE; an empty line stays empty. A rank-space "
    "model has summed its states out: its tags are ranks."
)
EXAMPLE = """\
example:
  rankfold tag runs/small sentences.txt
  rankfold tag runs/small sentences.txt --method viterbi --json
  rankfold tag runs/small sentences.txt --k 5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_text(parser)
    add_method(parser)
    add_k(parser, "paths, one per line: number of the sentence, log-probability, word/STATE")
    add_columns(parser)
    add_engine(parser)


def add_k(parser: argparse.ArgumentParser, what: str) -> None:
    """The argument --k."""
    parser.add_argument("--k", type=count, metavar="K", help=f"the K most probable {what}")


def add_method(parser: argparse.ArgumentParser) -> None:
    """The argument --method."""
    parser.add_argument(
        "--method",
        choices=("posterior", "viterbi"),
        help="posterior: the likeliest state of each word (default); viterbi: the likeliest path",
    )


class Tagger(TextWorker):
    """Words with their states, or with --k the best paths."""

    done = "tagged"

    def __init__(self, model: Any, vocabulary: Vocabulary, arguments: argparse.Namespace) -> None:
        super().__init__(model, vocabulary, arguments)
        self.of = getattr(expect_sequences(model, "tag"), "of", "states")
        self.remark = f"the tags are {self.of}"

    def answer(self, text: Text) -> tuple[list[list[Row]], None]:
        rows = self.vocabulary.encode_all(text.sentences).sentences
        k = self.arguments.k
        if k is not None:
            return self._best(text, tag_k_best(self.model, rows, k, parts=self.parts) if rows else []), None
        found = tag(self.model, rows, self.arguments.method or "posterior", parts=self.parts).states if rows else []
        pairs = zip(text.words, text.align(found, []), strict=True)
        if self.arguments.json:
            return [[{"words": words, "states": states, "of": self.of}] for words, states in pairs], None
        return [[_tags(words, states)] for words, states in pairs], None

    def _best(self, text: Text, found: list[list[TaggedPath]]) -> list[list[Row]]:
        lines = enumerate(zip(text.words, text.align(found, []), strict=True), text.first)
        if self.arguments.json:
            return [
                [{"line": number, "words": words, "best": [path._asdict() for path in paths], "of": self.of}]
                for number, (words, paths) in lines
            ]
        return [
            [f"{number}\t{path.log_prob:.6f}\t{_tags(words, path.states)}" for path in paths]
            for number, (words, paths) in lines
        ]


def _tags(words: Sequence[str], states: Sequence[int]) -> str:
    return " ".join(f"{word}/{state}" for word, state in zip(words, states, strict=True))


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each sentence, or with --k one for each of its paths."""
    if arguments.k is not None and arguments.method == "posterior":
        raise DataError("--k lists paths, but --method posterior has one state for each word.\n  Leave --method out.")
    answer_text(arguments, "tag", Tagger, lambda _: None)
    return 0


class TaggedPath(NamedTuple):
    """A path of states through the words of a sentence."""

    states: list[int]
    log_prob: float  # of words and states; the state of `<eos>` is summed out


def tag_k_best(
    model: Model[Any, Any], sentences: Sequence[Sequence[int]], k: int, *, parts: Any = None
) -> list[list[TaggedPath]]:
    """The k most probable paths of each sentence in ids, the best first; fewer where there are fewer.

        p(words, <eos>, states of the words) = sum over the state of <eos>

    So no two paths have the same tags. The best need not be that of `method="viterbi"`, which is best with one state
    of `<eos>`.
    """
    expect_sequences(model, "tag")
    with torch.no_grad():
        parts = model.parts() if parts is None else parts

    def best_paths(batch: Batch) -> list[list[TaggedPath]]:
        found = k_best(model.potentials(batch, parts=parts).sum_out_end(), k)
        rows = zip(found.path.transpose(0, 1).tolist(), found.log_prob.mT.tolist(), strict=True)
        return [[TaggedPath(*pair) for pair in zip(*row, strict=True) if pair[1] > float("-inf")] for row in rows]

    batches = length_batches(sentences, max(1, TAGGED_TOKENS // k))
    paths = answer_each(model, batches.groups, batches, best_paths)
    return [
        [path._replace(states=path.states[: len(words) - 1]) for path in found]
        for found, words in zip(paths, sentences, strict=True)
    ]
