"""`rankfold symbols`: what the symbols of a grammar yield, their rules and words, and how often they are used."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from rankfold.analysis.symbol_profiles import (
    SymbolUse,
    expect_shared_rules,
    generated_trees,
    symbol_number,
    symbol_profile,
    symbol_use,
)
from rankfold.cli.load import add_model, load_words, read_text, tell_unknown
from rankfold.cli.output import printable, say, to_json
from rankfold.cli.parse import parse_lines
from rankfold.data.text import escape_brackets
from rankfold.decoding.parsed_tree import LABEL, TAG
from rankfold.errors import DomainError, quantity
from rankfold.models.pcfg import PCFG
from rankfold.models.strings import expect_memory
from rankfold.plots.picture import expect_picture

NUM_DRAWN = 500  # sentences of the grammar itself, where no text is given
LEAST = 5e-4  # printed as 0.1%; --json has all
DESCRIPTION = (
    "Print the symbols of a grammar that are used most: what each yields in the trees of a text (--data) or of "
    "sentences that the grammar makes, the most probable rules of a nonterminal (NT-k), the most probable words of a "
    "preterminal (T-k), and the share of spans or words that have it. The trees of a text are those of "
    "rankfold parse --labels."
)
EXAMPLE = """\
example:
  rankfold symbols runs/grammar
  rankfold symbols runs/grammar --data sentences.txt --top 5
  rankfold symbols runs/grammar --symbol NT-3 T-17 --json
  rankfold symbols runs/grammar --data sentences.txt --plot symbols.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--data", metavar="FILE", help="a text, one sentence per line; - is standard input")
    parser.add_argument("--symbol", nargs="+", action="extend", metavar="S", help="these symbols alone: NT-3, T-17")
    parser.add_argument("--top", type=int, default=8, metavar="K", help="symbols of each kind (default: 8)")
    parser.add_argument("--entries", type=int, default=6, metavar="K", help="entries of each list (default: 6)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a picture of the most used symbols")


def run(arguments: argparse.Namespace) -> int:
    """Print the symbols, and save the picture."""
    if arguments.plot is not None:
        expect_picture(arguments.plot)  # before the work
    for name in ("top", "entries"):
        if getattr(arguments, name) < 1:
            raise DomainError(f"--{name} is {getattr(arguments, name)}, but must be at least 1.")
    model, _ = load_words(arguments.folder, arguments.device)
    grammar = expect_shared_rules(model)
    for symbol in arguments.symbol or ():
        symbol_number(symbol, grammar)
    use, counted = read_symbol_use(grammar, arguments.data)
    chosen = arguments.symbol or [x for kind in (LABEL, TAG) for x in use.most_used(kind, arguments.top)]
    with torch.no_grad():
        parts = grammar.parts()
    found = [symbol_profile(grammar, parts, one, use, top=arguments.entries) for one in dict.fromkeys(chosen)]
    if arguments.plot is not None:
        from rankfold.plots.profiles import plot_symbols

        say(f"wrote {plot_symbols(found, arguments.plot, counted=counted)}")
    if arguments.json:
        print(to_json({"counted": counted, "trees": use.num_trees, "symbols": found}, indent=2))
    else:
        print(_text(grammar, found, counted))
    return 0


def read_symbol_use(grammar: PCFG, data: str | None) -> tuple[SymbolUse, str]:
    """The use of all symbols, in the trees of a text or of the grammar's own sentences, and in words in which."""
    if data is None:
        use = symbol_use(generated_trees(grammar, NUM_DRAWN))
        return use, f"{quantity(use.num_trees, 'sentence')} that the grammar makes"
    assert grammar.vocabulary is not None
    text = read_text(None if data == "-" else Path(data), grammar.vocabulary, ends=True)
    text = text._replace(words=[[escape_brackets(word) for word in words] for words in text.words])
    expect_memory(grammar, list(map(len, text.words)), f"{text.where}, line", outside=True)
    tell_unknown(text.sentences, grammar.vocabulary)
    found = parse_lines(grammar, text, labels=True)
    use = symbol_use(parsed.tree for parsed in found if parsed is not None and parsed.possible)
    return use, f"the trees of {quantity(use.num_trees, 'sentence')} of {text.where}"


def _text(grammar: PCFG, found: list[dict[str, Any]], counted: str) -> str:
    lines = [f"{grammar.config.size}; use in {counted}"]
    for symbol in found:
        what = "spans" if "rules" in symbol else "words"
        entropy = "" if "rules" in symbol else f"   words {symbol['word_entropy']:.2f} nats"
        lines += ["", f"{symbol['symbol']}   {symbol['use']:.2%} of the {what}, {symbol['count']:,} times{entropy}"]
        if "rules" in symbol:
            rules = [f"{left} {right} {p:.1%}" for left, right, p in symbol["rules"] if p >= LEAST]
            lines.append("  rules     " + ("   ".join(rules) or "none above 0.1%"))
        else:
            words = [f"{printable(word)} {p:.1%}" for word, p in symbol["words"] if p >= LEAST]
            lines.append("  words     " + ("  ".join(words) or "none above 0.1%"))
        yields = [f"{printable(text)}" + (f" ({num:,})" if num > 1 else "") for text, num in symbol["yields"]]
        lines.append("  yields    " + (" | ".join(yields) or "nothing here"))
    return "\n".join(lines)
