"""`rankfold score`: the log-probability of every line.

Read next: `models/base.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from rankfold.cli.model_of import add_model, expect_room, load, say, tell_unknown
from rankfold.cli.output import to_json
from rankfold.data.batch import length_batches
from rankfold.data.text import BROKEN_GZIP, expect_no_bom, open_bytes, read_sentences
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.grammar_config import GrammarConfig
from rankfold.training.evaluation import tree_batches

NUM_TOKENS = 4096  # of a batch
MAX_LINE_BYTES = 1_000_000  # as `data/text.py` has it
EXAMPLE = """\
example:
  rankfold score runs/small --data sentences.txt
  rankfold score runs/small --json < sentences.txt"""


class Scored(NamedTuple):
    """The log-probability of one line."""

    log_prob: float  # nats
    tokens: int  # <eos> counted, where there is one; of grammars the words
    unknown: int  # words that count as <unk>


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "score",
        help="the log-probability of every line",
        description=(
            "Print the log-probability (natural logarithm) of every line as a sentence, <eos> included. Sentences of a "
            "grammar have no <eos>; -inf where it cannot make one."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model(parser)
    parser.add_argument("--data", type=Path, metavar="FILE", help="one sentence a line (default: standard input)")
    parser.add_argument(
        "--no-eos",
        action="store_true",
        help="score each line as the beginning of a sentence: no <eos> is added, and <eos> is a word like others",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    model, vocabulary = load(arguments.folder, arguments.device)
    lines = read_lines(arguments.data, end_allowed=arguments.no_eos)
    sentences = [line.split() for line in lines]
    tell_unknown(Counter(word for words in sentences for word in words if not vocabulary.knows(word)), vocabulary)
    if arguments.no_eos and not vocabulary.ends:
        raise UnsupportedError(
            "--no-eos is for models of sequences: sentences of a grammar have no <eos> to leave out."
        )
    if isinstance(model.config, GrammarConfig):
        where = "standard input" if arguments.data is None else str(arguments.data)
        expect_room(model, list(map(len, sentences)), f"{where}, line", outside=False)
    single = _num_impossible(model, sentences)
    if single:
        say(f"{single:,} lines of one word: this grammar gives them no probability, hence -inf")
    if model.is_bound:
        say("log-probabilities of this family are lower bounds")
    for line, found in zip(lines, score(model, vocabulary, sentences, end=not arguments.no_eos), strict=True):
        print(to_json({"line": line, **found._asdict()}) if arguments.json else f"{found.log_prob:.6f}\t{line}")
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


def read_lines(path: Path | None, *, end_allowed: bool = False, empty_allowed: bool = False) -> list[str]:
    """The lines of a file, or of standard input, each with a word in it: none is dropped, a bad one is an error.

    A file keeps to the rules of `read_sentences`, unless `<eos>` is allowed in it, which they refuse. With
    `empty_allowed` lines may be empty, and stay in their place.
    """
    if path is not None and not end_allowed:
        read_sentences(path)
    where = "standard input" if path is None else str(path)
    with contextlib.ExitStack() as stack:
        stream: BinaryIO = sys.stdin.buffer
        if path is not None:
            stream = stack.enter_context(open_bytes(path, gzipped=path.suffix == ".gz"))
        try:
            lines = [
                _line(line, f"{where}, line {number}", empty_allowed=empty_allowed, first=number == 1)
                for number, line in enumerate(_bounded(stream), 1)
            ]
        except BROKEN_GZIP as error:
            raise DataError(f"{where}: the gzip data is damaged or ends early ({error}).") from None
    if not lines:
        raise DataError(f"{where}: empty; at least one sentence was expected, one a line.")
    return lines


def _bounded(stream: BinaryIO) -> Iterable[bytes]:
    """Lines, of which at most one byte more than allowed is ever read."""
    return iter(lambda: stream.readline(MAX_LINE_BYTES + 2), b"")


def _line(line: bytes, where: str, *, empty_allowed: bool, first: bool = False) -> str:
    if first:
        expect_no_bom(line, where)
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise DataError(f"{where}: more than {MAX_LINE_BYTES:,} bytes long.\n  One sentence a line was expected.")
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} is 0x{line[error.start]:02x}: not UTF-8.") from None
    if "\0" in text:
        raise DataError(f"{where}: holds NUL: a binary file, or text in UTF-16. Plain UTF-8 text was expected.")
    if not text.split() and not empty_allowed:
        raise DataError(f"{where}: empty, but every line is a sentence.\n  Remove it: no line is dropped silently.")
    return text
