"""`rankfold tag`: the hidden state of every word."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from rankfold.cli.load import Text, add_model, add_text, load_words, text_path
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import stream
from rankfold.data.batch import Batch, length_batches
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


def add_k(parser: argparse.ArgumentParser, what: str) -> None:
    """The argument --k."""
    parser.add_argument("--k", type=_count, metavar="K", help=f"the K most probable {what}")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def add_method(parser: argparse.ArgumentParser) -> None:
    """The argument --method."""
    parser.add_argument(
        "--method",
        choices=("posterior", "viterbi"),
        help="posterior: the likeliest state of each word (default); viterbi: the likeliest path",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each sentence, or with --k one for each of its paths."""
    if arguments.k is not None and arguments.method == "posterior":
        raise DataError("--k lists paths, but --method posterior has one state for each word.\n  Leave --method out.")
    model, vocabulary = load_words(arguments.folder, arguments.device)
    of = getattr(expect_sequences(model, "tag"), "of", "states")
    say(f"the tags are {of}")
    parts = None
    for text in stream(text_path(arguments), vocabulary, done="tagged"):
        with torch.no_grad():
            parts = model.parts() if parts is None else parts
        rows = vocabulary.encode_all(text.sentences).sentences
        if arguments.k is not None:
            _print_k_best(text, tag_k_best(model, rows, arguments.k, parts=parts) if rows else [], of, arguments.json)
            continue
        found = tag(model, rows, arguments.method or "posterior", parts=parts).states if rows else []
        for words, states in zip(text.words, text.align(found, []), strict=True):
            if arguments.json:
                print(to_json({"words": words, "states": states, "of": of}))
            else:
                print(" ".join(f"{word}/{state}" for word, state in zip(words, states, strict=True)))
    return 0


class TaggedPath(NamedTuple):
    """A path of states through the words of a sentence."""

    states: list[int]
    log_prob: float  # of words and states; the state of `<eos>` is summed out


def _print_k_best(text: Text, found: list[list[TaggedPath]], of: str, in_json: bool) -> None:
    for number, (words, paths) in enumerate(zip(text.words, text.align(found, []), strict=True), text.first):
        if in_json:
            best = [path._asdict() for path in paths]
            print(to_json({"line": number, "words": words, "best": best, "of": of}))
            continue
        for path in paths:
            tags = " ".join(f"{word}/{state}" for word, state in zip(words, path.states, strict=True))
            print(f"{number}\t{path.log_prob:.6f}\t{tags}")


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
