"""`rankfold parse`: sentences in, trees out, by a grammar that was induced without trees."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.cli.load import Text, add_model, add_text, load_words, read_text, tell_unknown, text_path
from rankfold.cli.output import say, to_json
from rankfold.data.text import escape_brackets, expect_no_brackets, holds_trees
from rankfold.data.vocab import EOS
from rankfold.errors import DataError
from rankfold.models.catalog import AnyModel
from rankfold.models.parsing import Decode, Parsed, expect_grammar, parse
from rankfold.models.strings import expect_memory
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
  rankfold parse runs/grammar sentences.txt --pretty
  rankfold parse runs/grammar sentences.txt --draw tree.svg --line 3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_model(parser)
    add_text(parser)
    parser.add_argument("--labels", action="store_true", help="the grammar's symbols, NT-k and T-k, instead of X and T")
    parser.add_argument(
        "--decode",
        choices=("mbr", "viterbi"),
        default="mbr",
        help="mbr: most brackets expected to be right (default); viterbi: the most probable tree",
    )
    parser.add_argument(
        "--escape", action="store_true", help="write brackets in words -LRB- and -RRB-, as treebanks do"
    )
    parser.add_argument("--pretty", action="store_true", help="trees for the eye, one constituent per line")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw one tree as a picture that browsers show")
    parser.add_argument("--line", type=int, metavar="N", help="which line to draw (default: the first with a tree)")


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each."""
    if arguments.line is not None and arguments.draw is None:
        raise DataError("--line says which tree to draw, but there is no --draw SVG.")
    if arguments.draw is not None and arguments.draw.suffix.lower() != ".svg":
        raise DataError(f"--draw is {arguments.draw}, but pictures are SVG: a name in .svg was expected.")
    model, vocabulary = load_words(arguments.folder, arguments.device)
    expect_grammar(model)
    path = text_path(arguments)
    if path is not None and holds_trees(path):
        raise DataError(
            f"{path} is a file of trees by its name, but sentences are parsed, one per line.\n"
            f"  To compare the grammar's trees with these: rankfold evaluate {arguments.folder} --trees {path}"
        )
    text = read_text(path, vocabulary, ends=True)
    if arguments.escape:
        text = text._replace(words=[[escape_brackets(word) for word in words] for words in text.words])
    for number, words in enumerate(text.words, 1):
        place = f"{text.where}, line {number}"
        expect_no_brackets(words, place, remedy="Give --escape to write them -LRB- and -RRB-")
        if EOS in words:
            raise DataError(
                f"{place}: word {words.index(EOS) + 1} is {EOS}, which no sentence of a grammar has.\n"
                "  Remove it: a line is a sentence."
            )
    if arguments.draw:
        expect_picture(arguments.draw)  # before the work
    expect_memory(model, list(map(len, text.words)), f"{text.where}, line", outside=True)
    at = _line_to_draw(text, arguments.line) if arguments.draw else 0
    tell_unknown(text.words, vocabulary)
    found = parse_lines(model, text, decode=arguments.decode, labels=arguments.labels)
    for number, (words, parsed) in enumerate(zip(text.words, found, strict=True), 1):
        if arguments.json:
            print(to_json(_record(number, words, parsed)))
        elif parsed is None:
            print()
        else:
            print(tree_text(parsed.tree) + "\n" if arguments.pretty else parsed.tree)
    if arguments.draw:
        chosen = found[at]
        assert chosen is not None
        say(f"drawn {save_tree(chosen.tree, arguments.draw)}: line {at + 1}")
    return 0


def parse_lines(model: AnyModel, text: Text, *, decode: Decode = "mbr", labels: bool = False) -> list[Parsed | None]:
    """The tree of every line, None for one without words; lines that have no parse are reported on standard error."""
    sentences = text.sentences
    told = [0]

    def progress(done: int) -> None:
        if len(sentences) >= MANY and 10 * done // len(sentences) > 10 * told[0] // len(sentences):
            say(f"parsed {done:,} of {len(sentences):,} sentences")
        told[0] = done

    found: list[Parsed | None] = text.align(parse(model, sentences, decode=decode, labels=labels, progress=progress))
    text.tell_empty()
    cannot = [number for number, parsed in enumerate(found, 1) if parsed is not None and not parsed.possible]
    impossible = [number for number in cannot if len(text.words[number - 1]) > 1]
    if len(cannot) > len(impossible):
        num = len(cannot) - len(impossible)
        many = "line" if num == 1 else "lines"
        say(f"{num:,} {many} of one word, which this grammar does not generate: a tag and no more")
    if impossible:
        shown = ", ".join(map(str, impossible[:5]))
        say(f"{len(impossible):,} sentences are impossible under the grammar, their trees flat: lines {shown}")
    return found


def _line_to_draw(text: Text, number: int | None) -> int:
    """The index of the line to draw."""
    if number is None:
        return next(i for i, words in enumerate(text.words) if words)
    if not 1 <= number <= len(text.words):
        raise DataError(f"--line is {number}, but {text.where} has lines 1 to {len(text.words)}.")
    if not text.words[number - 1]:
        raise DataError(f"--line is {number}, but that line is empty: there is no tree to draw.")
    return number - 1


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
