"""`rankfold parse`: sentences in, trees out, by a grammar that was induced without trees."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.cli.answer import Row, TextWorker, add_columns, add_engine, answer_text, refuse_elsewhere
from rankfold.cli.load import NUM_SHOWN, Text, add_model, add_text, text_path
from rankfold.cli.output import say
from rankfold.cli.tag import add_k
from rankfold.data.known_brackets import read_brackets
from rankfold.data.text import escape_brackets, expect_no_brackets, holds_trees
from rankfold.data.trees import Tree
from rankfold.data.vocab import EOS, Vocabulary
from rankfold.errors import DataError, quantity
from rankfold.models.catalog import AnyModel
from rankfold.models.parsing import Decode, Parsed, expect_grammar, parse, parse_k_best
from rankfold.models.strings import expect_memory, tell_every
from rankfold.plots.picture import expect_picture
from rankfold.plots.trees import save_tree, tree_text

MANY = 200  # sentences, from which on progress is shown
DESCRIPTION = (
    "Print the tree of every line, in brackets, one per line. A line of one word is a tag over it, an empty line "
    "stays empty, so that lines keep their numbers. Words the grammar does not know are kept, and count as "
    "<unk>."
)
EXAMPLE = """\
example:
  rankfold parse runs/grammar < sentences.txt
  rankfold parse runs/grammar sentences.txt --labels
  rankfold parse runs/grammar sentences.txt --k 5
  rankfold parse runs/grammar sentences.txt --brackets known.txt
  rankfold parse runs/grammar sentences.txt --pretty
  rankfold parse runs/grammar sentences.txt --draw tree.svg --line 3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_text(parser)
    parser.add_argument("--labels", action="store_true", help="the grammar's symbols, NT-k and T-k, instead of X and T")
    parser.add_argument(
        "--decode",
        choices=("mbr", "viterbi"),
        help="mbr: most brackets expected to be right (default); viterbi: the most probable tree",
    )
    add_k(parser, "trees with their labels, one per line: number of the line, log-probability, tree")
    parser.add_argument(
        "--brackets",
        type=Path,
        metavar="FILE",
        help="spans that trees must have, a line for each line of text: 0:2 3:7 are words 0 and 1, and words 3 to 6",
    )
    parser.add_argument(
        "--escape", action="store_true", help="write brackets in words -LRB- and -RRB-, as treebanks do"
    )
    parser.add_argument("--pretty", action="store_true", help="trees for the eye, one constituent per line")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw one tree as a picture that browsers show")
    parser.add_argument("--line", type=int, metavar="N", help="which line to draw (default: the first with a tree)")
    add_columns(parser)
    add_engine(parser)


class Parser(TextWorker):
    """Trees; its notes are the lines that the grammar cannot make."""

    ends, done = True, "parsed"  # check says what is wrong with <eos>

    def __init__(self, model: Any, vocabulary: Vocabulary, arguments: argparse.Namespace) -> None:
        super().__init__(model, vocabulary, arguments)
        expect_grammar(model)
        self.drawing = _Drawing(arguments.line) if arguments.draw else None
        self.whole = bool(arguments.draw)
        self.known = read_brackets(arguments.brackets) if arguments.brackets else None
        self.num_checked = 0  # lines, of which the last may be behind the one that is answered

    def check(self, text: Text) -> None:
        if self.known is not None:
            self.known.of_lines(text.first, text.words)
            self.num_checked = text.first - 1 + len(text.words)
        for place, words in zip(text.places, _escaped(text, self.arguments.escape).words, strict=True):
            expect_no_brackets(words, place, remedy="Give --escape to write them -LRB- and -RRB-")
            if EOS in words:
                raise DataError(
                    f"{place}: word {words.index(EOS) + 1} is {EOS}, which no sentence of a grammar has.\n"
                    "  Remove it: a line is a sentence."
                )
        expect_memory(self.model, list(map(len, text.words)), text.places, outside=True)
        if self.drawing is not None:
            self.drawing.look(text)

    def answer(self, text: Text) -> tuple[list[list[Row]], _Doubts]:
        if self.drawing is not None:
            self.drawing.expect_chosen(text.where)
        text, asked, doubts = _escaped(text, self.arguments.escape), self.arguments, _Doubts()
        brackets = None
        if self.known is not None:
            if asked.file is not None or asked.data is not None:  # the whole of it has been checked
                self.known.expect_all_used(self.num_checked)
            own = zip(self.known.of_lines(text.first, text.words), text.words, strict=True)
            brackets = [spans for spans, words in own if words]
        if asked.k is not None:
            trees = text.align(
                parse_k_best(self.model, text.sentences, asked.k, brackets=brackets, parts=self.parts), []
            )
            doubts.see(text, [bool(some) for some in trees])
            return _best(text, trees, in_json=asked.json), doubts
        decode: Decode = asked.decode or "mbr"
        parsed = parse(
            self.model, text.sentences, decode=decode, labels=asked.labels, brackets=brackets, parts=self.parts
        )
        found: list[Parsed | None] = text.align(parsed)
        doubts.see(text, [one is not None and one.possible for one in found])
        if self.drawing is not None:
            self.drawing.keep(found, text.first)
        if asked.json:
            lines = enumerate(zip(text.words, found, strict=True), text.first)
            return [[_record(number, words, one)] for number, (words, one) in lines], doubts
        return [[_shown(one, pretty=asked.pretty)] for one in found], doubts


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    if arguments.k is not None:
        for name in ("decode", "pretty", "draw"):
            if getattr(arguments, name):
                raise DataError(f"--k lists trees, one per line: it goes without --{name}.\n  Leave one of them out.")
    if arguments.line is not None and arguments.draw is None:
        raise DataError("--line says which tree to draw, but there is no --draw SVG.")
    if arguments.draw is not None and arguments.draw.suffix.lower() != ".svg":
        raise DataError(f"--draw is {arguments.draw}, but pictures are SVG: a name in .svg was expected.")
    if arguments.ids is not None and arguments.pretty:
        raise DataError("--ids begins each line with an id: it goes without --pretty.\n  Leave one of them out.")
    refuse_elsewhere(arguments, ["draw", "brackets"])
    path = None if arguments.file is None and arguments.data is None else text_path(arguments)
    if path is not None and holds_trees(path):
        raise DataError(
            f"{path} is a file of trees by its name, but sentences are parsed, one per line.\n"
            f"  To compare the grammar's trees with these: rankfold evaluate {arguments.folder} --trees {path}"
        )
    if arguments.draw:
        expect_picture(arguments.draw)  # before the work
    doubts = _Doubts() if arguments.k is None else _Doubts("without any tree", "no tree")
    worker = answer_text(arguments, "parse", Parser, doubts.add)
    doubts.tell()
    if isinstance(worker, Parser) and worker.known is not None:
        worker.known.expect_all_used(worker.num_checked)
    drawing = worker.drawing if isinstance(worker, Parser) else None
    if drawing is not None:
        assert drawing.tree is not None
        say(f"drawn {save_tree(drawing.tree, arguments.draw)}: line {drawing.number}")
    return 0


def _shown(parsed: Parsed | None, *, pretty: bool) -> str:
    if parsed is None:
        return ""
    return tree_text(parsed.tree) + "\n" if pretty else str(parsed.tree)


def _best(text: Text, trees: Sequence[Sequence[Parsed]], *, in_json: bool) -> list[list[Row]]:
    lines = enumerate(zip(text.words, trees, strict=True), text.first)
    if not in_json:
        return [[f"{number}\t{one.score:.6f}\t{one.tree}" for one in some] for number, (_, some) in lines]
    return [
        [
            {
                "line": number,
                "words": words,
                "best": [{"tree": str(one.tree), "log_prob": one.score} for one in some],
            }
        ]
        for number, (words, some) in lines
    ]


def _escaped(text: Text, escape: bool) -> Text:
    """The text, if asked for with brackets in words as treebanks write them."""
    return text._replace(words=[list(map(escape_brackets, words)) for words in text.words]) if escape else text


def parse_lines(model: AnyModel, text: Text, *, decode: Decode = "mbr", labels: bool = False) -> list[Parsed | None]:
    """The tree of every line, None for one without words; lines that have no parse are reported on standard error."""
    sentences, num = text.sentences, len(text.sentences)
    every_tenth = tell_every(num / 10, lambda done: say(f"parsed {done:,} of {num:,} sentences"))
    progress = every_tenth if num >= MANY else None
    found: list[Parsed | None] = text.align(parse(model, sentences, decode=decode, labels=labels, progress=progress))
    doubts = _Doubts()
    doubts.see(text, [parsed is not None and parsed.possible for parsed in found])
    doubts.tell()
    return found


class _Doubts:
    """Lines that the grammar cannot make."""

    def __init__(self, outcome: str = "their trees flat", single: str = "a tag and no more") -> None:
        self.outcome, self.single = outcome, single
        self.num_single = self.num_impossible = 0
        self.lines: list[tuple[str, int]] = []  # the first impossible ones, with their files

    def see(self, text: Text, possible: Sequence[bool]) -> None:
        for number, (words, can) in enumerate(zip(text.words, possible, strict=True), text.first):
            if words and not can:
                self.num_single += len(words) == 1
                self.num_impossible += len(words) > 1
                self.lines += [(text.where, number)] if len(words) > 1 and len(self.lines) < NUM_SHOWN else []

    def add(self, other: _Doubts) -> None:
        """Take in those of the next piece."""
        self.num_single += other.num_single
        self.num_impossible += other.num_impossible
        self.lines = (self.lines + other.lines)[:NUM_SHOWN]

    def tell(self) -> None:
        """Say it on standard error."""
        if self.num_single:
            say(f"{quantity(self.num_single, 'line')} of one word, which this grammar does not generate: {self.single}")
        if self.num_impossible:
            several = len({where for where, _ in self.lines}) > 1
            shown = ", ".join(f"{where}:{number}" if several else str(number) for where, number in self.lines)
            many = quantity(self.num_impossible, "sentence")
            say(f"impossible under the grammar, {self.outcome}: {many}, lines {shown}")


class _Drawing:
    """Which line is drawn: the one asked for, or the first that has words."""

    def __init__(self, asked: int | None) -> None:
        self.asked, self.number, self.num_lines, self.empty = asked, asked, 0, False
        self.tree: Tree | None = None

    def look(self, text: Text) -> None:
        """See the lines of a piece before they are parsed."""
        for number, words in enumerate(text.words, text.first):
            if self.number is None and words:
                self.number = number
            self.empty = self.empty or (number == self.asked and not words)
        self.num_lines = text.first + len(text.words) - 1

    def keep(self, found: Sequence[Parsed | None], first: int) -> None:
        """Take the tree of the line from a piece, if it is there."""
        at = -1 if self.number is None else self.number - first
        one = found[at] if 0 <= at < len(found) else None
        if one is not None:
            self.tree = one.tree

    def expect_chosen(self, where: str) -> None:
        """Raise if the line asked for is not there, or has no words."""
        if self.empty:
            raise DataError(f"--line is {self.asked}, but that line is empty: there is no tree to draw.")
        if self.asked is not None and not 1 <= self.asked <= self.num_lines:
            raise DataError(f"--line is {self.asked}, but {where} has lines 1 to {self.num_lines}.")


def _record(number: int, words: Sequence[str], parsed: Parsed | None) -> dict[str, Any]:
    if parsed is None:
        return {"line": number, "words": [], "tree": None, "spans": [], "possible": None, "score": None}
    spans = [[span.start, span.end, span.label] for span in parsed.tree.spans()]
    return {
        "line": number,
        "words": list(words),
        "tree": str(parsed.tree),
        "spans": spans,
        "possible": parsed.possible,
        "score": parsed.score,
    }
