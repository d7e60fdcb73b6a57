"""`rankfold evaluate RUN --trees FILE`: brackets of a grammar against gold ones, next to trees that need no grammar.

F1 in every published convention, each by its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from rankfold.analysis.bracketing import (
    BracketScores,
    binarise,
    evaluate_brackets,
    left_branching,
    random_binary,
    right_branching,
)
from rankfold.cli.load import Text, data_config, load_words, tell_unknown
from rankfold.cli.output import say
from rankfold.cli.parse import parse_lines
from rankfold.data.brackets import expect_words, read_trees
from rankfold.data.sources import count_left_out, left_out_text, prepare_trees
from rankfold.data.text import STDIN, find_split, read_sentences
from rankfold.data.trees import Tree
from rankfold.errors import DataError, quantity
from rankfold.models.catalog import AnyModel
from rankfold.models.parsing import Decode, expect_grammar
from rankfold.models.strings import expect_memory
from rankfold.training import evaluation
from rankfold.training.config import DataConfig

CONVENTIONS = ("uf1", "uf1_distinct", "kim", "kim_nonempty")
LAW: Literal["splits"] = "splits"
NUM_LABELS = 12  # shown in text
COLUMNS = (
    ("sentence", "uf1"),
    ("corpus", "uf1"),
    ("corpus", "uf1_distinct"),
    ("sentence", "kim"),
    ("corpus", "kim"),
)
WIDTHS = {column: max(15, len(", ".join(column)) + 2) for column in COLUMNS}


def evaluate_trees(
    path: Path,
    trees: Sequence[Path],
    *,
    split: str = "test",
    text: Path | None = None,
    replaced: Mapping[str, str] | None = None,
    decode: Decode = "mbr",
    seed: int = 1,
    device: str = "auto",
) -> dict[str, Any]:
    """Scores of a grammar's trees, of the baselines, and perplexity, as plain data.

    `replaced` words of the trees are written otherwise before they are looked up. With `text`, the trees must have its
    words. Counts of trees and words left out, and of words read as <unk>, go to standard error.
    """
    model, vocabulary = load_words(path, device)
    expect_grammar(model)
    config = data_config(path)
    gold, places, left_out = read_gold(trees, split, config)
    if text is not None:
        given = read_sentences(None if text is STDIN else text)
        if given.num_empty_lines:
            say(f"{text}: {quantity(given.num_empty_lines, 'empty line')}, no sentence")
        try:
            expect_words(gold, given.sentences, places)
        except DataError as error:
            raise DataError(f"{', '.join(map(str, trees))} and {text}: {error}") from None
    others = replaced or {}
    gold = [tree.rewrite(of_word=lambda word: others.get(word, word)) if others else tree for tree in gold]
    num_single = sum(len(tree.words) == 1 for tree in gold)
    dropped = 0 if model.config.single_words else num_single
    kept = [tree for tree in gold if len(tree.words) > 1 or not dropped]
    places = [place for tree, place in zip(gold, places, strict=True) if len(tree.words) > 1 or not dropped]
    if not kept:
        raise DataError(f"{trees[0]}: every tree is of one word, which have no brackets.")
    sentences = [tree.words for tree in kept]
    expect_memory(model, list(map(len, sentences)), places, outside=True)
    if left_out:
        say(f"left out of the trees: {left_out_text(left_out)}")
    if dropped:
        say(f"left out: {quantity(dropped, 'sentence')} of one word, which this grammar does not generate")
    unknown = tell_unknown(sentences, vocabulary)
    say(f"parsing {quantity(len(kept), 'sentence')} on {model.device.type}")
    predicted = [
        found.tree
        for found in parse_lines(model, Text(str(trees[0]), [], sentences), decode=decode)
        if found is not None
    ]
    return {
        "trees": len(kept),
        "words": sum(map(len, sentences)),
        "left_out": {**left_out, **({"sentences_of_one_word": dropped} if dropped else {})},
        "unknown_words": unknown,
        "decode": decode,
        **_perplexity(model, vocabulary.encode_all(sentences).sentences, config),
        "scores": {
            decode: _scores(evaluate_brackets(predicted, kept)),
            **{name: _scores(found) for name, found in baselines(kept, seed).items()},
        },
    }


def read_gold(paths: Sequence[Path], split: str, config: DataConfig) -> tuple[list[Tree], list[str], dict[str, int]]:
    """The trees of files, or of the split of folders, in order; file and line of each; what preparation left out."""
    gold: list[Tree] = []
    places: list[str] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        file = path if path.is_file() else find_split(path, split, trees=True)
        bank = read_trees(file)
        clean = prepare_trees(bank.trees, word_tags=config.word_tags)
        gold += clean.trees
        places += [f"{file}, line {bank.lines[i]}" for i in clean.kept]
        left_out.update(count_left_out(clean))
    return gold, places, dict(left_out)


def baselines(gold: Sequence[Tree], seed: int = 1) -> dict[str, BracketScores]:
    """Scores of trees that need no grammar, and of the best binary ones."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "right-branching": evaluate_brackets([right_branching(tree.words) for tree in gold], gold),
        "left-branching": evaluate_brackets([left_branching(tree.words) for tree in gold], gold),
        "random": evaluate_brackets([random_binary(tree.words, generator=generator, law=LAW) for tree in gold], gold),
        "best binary": evaluate_brackets([binarise(tree) for tree in gold], gold),
    }


def _perplexity(model: AnyModel, rows: list[list[int]], config: DataConfig) -> dict[str, Any]:
    found = evaluation.evaluate(model, rows, config)
    return {
        "perplexity": found.perplexity,
        "log_likelihood": found.log_likelihood,
        "tokens": found.tokens,
        "denominator": model.denominator,
        "bound": found.is_bound,
    }


def _scores(found: BracketScores) -> dict[str, Any]:
    return {
        **{name: getattr(found, name)._asdict() for name in CONVENTIONS},
        "by_length": [row._asdict() for row in found.by_length],
        "by_label": [row._asdict() for row in found.by_label],
    }


def trees_text(result: dict[str, Any]) -> str:
    """The evaluation for a person."""
    scores, own = result["scores"], result["scores"][result["decode"]]
    bound = " (a bound: the perplexity is lower)" if result["bound"] else ""
    lines = [
        f"trees            {result['trees']:,} of {result['words']:,} words, {result['unknown_words']:,} unknown",
        f"perplexity       {result['perplexity']:.3f}{bound}",
        f"tokens           {result['tokens']:,} ({result['denominator']})",
        "",
        f"{'F1, percent':<18}" + "".join(f"{', '.join(column):>{WIDTHS[column]}}" for column in COLUMNS),
    ]
    for name, found in scores.items():
        shown = "".join(f"{100 * found[kind][of]:>{WIDTHS[of, kind]}.2f}" for of, kind in COLUMNS)
        lines.append(f"{_title(name):<18}{shown}")
    lines += ["", f"{'words':<18}{'sentences':>15}{'sentence, uf1':>15}{'sentence, kim':>15}"]
    for row in (row for row in own["by_length"] if row["num_sentences"]):
        span = f"{row['shortest']} to {row['longest']}"
        lines.append(f"{span:<18}{row['num_sentences']:>15,}{100 * row['uf1']:>15.2f}{100 * row['kim']:>15.2f}")
    lines += ["", f"{'label':<18}{'gold brackets':>14}{'found, percent':>16}{'right-branching':>17}"]
    right = {row["label"]: row["recall"] for row in scores["right-branching"]["by_label"]}
    for row in own["by_label"][:NUM_LABELS]:
        label, recall = row["label"], 100 * row["recall"]
        lines.append(f"{label[:17]:<18}{row['num_gold']:>14,}{recall:>16.1f}{100 * right[label]:>17.1f}")
    more = len(own["by_label"]) - NUM_LABELS
    return "\n".join(lines + ([f"and {more} labels more (--json has all)"] if more > 0 else []))


def _title(name: str) -> str:
    return {"mbr": "this grammar", "viterbi": "this, viterbi", "random": f"random ({LAW})"}.get(name, name)
