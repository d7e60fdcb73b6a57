"""`rankfold parse`: sentences in, trees out, by a grammar that was induced without trees."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rankfold.cli.load import NUM_SHOWN, Text, add_model, add_text, load_words, text_path
from rankfold.cli.output import say, to_json
from rankfold.cli.stream import stream
from rankfold.cli.tag import add_k
from rankfold.data.known_brackets import read_brackets
from rankfold.data.text import escape_brackets, expect_no_brackets, holds_trees
from rankfold.data.trees import Tree
from rankfold.data.vocab import EOS
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
        help="spans that trees must have, a line for each line of the text: 0:2 3:7 are words 0 and 1, and words 3 to 6",
    )
    parser.add_argument(
        "--escape", action="store_true", help="write brackets in words -LRB- and -RRB-, as treebanks do"
    )
    parser.add_argument("--pretty", action="store_true", help="trees for the eye, one constituent per line")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw one tree as a picture that browsers show")
    parser.add_argument("--line", type=int, metavar="N", help="which line to draw (default: the first with a tree)")


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
    model, vocabulary = load_words(arguments.folder, arguments.device)
    grammar = expect_grammar(model)
    path = text_path(arguments)
    if path is not None and holds_trees(path):
        raise DataError(
            f"{path} is a file of trees by its name, but sentences are parsed, one per line.\n"
            f"  To compare the grammar's trees with these: rankfold evaluate {arguments.folder} --trees {path}"
        )
    if arguments.draw:
        expect_picture(arguments.draw)  # before the work
    drawing = _Drawing(arguments.line) if arguments.draw else None
    known = read_brackets(arguments.brackets) if arguments.brackets else None
    num_checked = 0
    doubts = _Doubts() if arguments.k is None else _Doubts("without any tree", "no tree")

    def check(text: Text) -> None:
        nonlocal num_checked
        if known is not None:
            known.of_lines(text.first, text.words)
            num_checked = text.first - 1 + len(text.words)
        for place, words in zip(text.places, _escaped(text, arguments.escape).words, strict=True):
            expect_no_brackets(words, place, remedy="Give --escape to write them -LRB- and -RRB-")
            if EOS in words:
                raise DataError(
                    f"{place}: word {words.index(EOS) + 1} is {EOS}, which no sentence of a grammar has.\n"
                    "  Remove it: a line is a sentence."
                )
        expect_memory(model, list(map(len, text.words)), text.places, outside=True)
        if drawing is not None:
            drawing.look(text)

    parts = None
    for text in stream(path, vocabulary, ends=True, check=check, done="parsed", whole=bool(drawing)):
        with torch.no_grad():
            parts = grammar.parts() if parts is None else parts
        if drawing is not None:
            drawing.expect_chosen(text.where)
        if known is not None and path is not None:
            known.expect_all_used(num_checked)
        text = _escaped(text, arguments.escape)
        brackets = None
        if known is not None:
            own = zip(known.of_lines(text.first, text.words), text.words, strict=True)
            brackets = [spans for spans, words in own if words]
        if arguments.k is not None:
            trees = text.align(parse_k_best(model, text.sentences, arguments.k, brackets=brackets, parts=parts), [])
            _print_k_best(text, trees, in_json=arguments.json)
            doubts.see(text, [bool(some) for some in trees])
            continue
        decode: Decode = arguments.decode or "mbr"
        labels = arguments.labels
        found = text.align(parse(model, text.sentences, decode=decode, labels=labels, brackets=brackets, parts=parts))
        doubts.see(text, [parsed is not None and parsed.possible for parsed in found])
        for number, (words, parsed) in enumerate(zip(text.words, found, strict=True), text.first):
            if drawing is not None and number == drawing.number and parsed is not None:
                drawing.tree = parsed.tree
            if arguments.json:
                print(to_json(_record(number, words, parsed)))
            elif parsed is None:
                print()
            else:
                print(tree_text(parsed.tree) + "\n" if arguments.pretty else parsed.tree)
    if known is not None:
        known.expect_all_used(num_checked)
    doubts.tell()
    if drawing is not None:
        assert drawing.tree is not None
        say(f"drawn {save_tree(drawing.tree, arguments.draw)}: line {drawing.number}")
    return 0


def _print_k_best(text: Text, trees: Sequence[Sequence[Parsed]], *, in_json: bool) -> None:
    for number, (words, some) in enumerate(zip(text.words, trees, strict=True), text.first):
        if in_json:
            best = [{"tree": str(parsed.tree), "log_prob": parsed.score} for parsed in some]
            print(to_json({"line": number, "words": words, "best": best}))
            continue
        for parsed in some:
            print(f"{number}\t{parsed.score:.6f}\t{parsed.tree}")


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
        self.lines: list[int] = []  # the first impossible ones

    def see(self, text: Text, possible: Sequence[bool]) -> None:
        for number, (words, can) in enumerate(zip(text.words, possible, strict=True), text.first):
            if words and not can:
                self.num_single += len(words) == 1
                self.num_impossible += len(words) > 1
                self.lines += [number] if len(words) > 1 and len(self.lines) < NUM_SHOWN else []

    def tell(self) -> None:
        """Say it on standard error."""
        if self.num_single:
            say(f"{quantity(self.num_single, 'line')} of one word, which this grammar does not generate: {self.single}")
        if self.num_impossible:
            shown = ", ".join(map(str, self.lines))
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
