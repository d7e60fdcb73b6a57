"""The sentences a grammar is induced from: those of a text, or the words of bracketed trees, cleaned.

Treebanks as grammar induction wants them: words only, bare labels, lower case, numbers as N; all that is left out is
counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rankfold.data.brackets import read_trees
from rankfold.data.text import holds_trees, iterate_lines, read_sentences
from rankfold.data.trees import Tree
from rankfold.data.vocab import number_to_n
from rankfold.errors import DataError, UnsupportedError

TRACE = "-NONE-"
# The tags of words in the Penn Treebank. Not among them: punctuation, brackets, quotes, currency ($ and #), traces.
PENN_WORD_TAGS = frozenset(
    {
        *("CC", "CD", "DT", "EX", "FW", "IN", "JJ", "JJR", "JJS", "LS", "MD", "NN", "NNS", "NNP", "NNPS", "PDT", "POS"),
        *("PRP", "PRP$", "RB", "RBR", "RBS", "RP", "SYM", "TO", "UH", "VB", "VBD", "VBG", "VBN", "VBP", "VBZ"),
        *("WDT", "WP", "WP$", "WRB"),
    }
)
ROOTS = frozenset({"ROOT", "TOP", "S1", "VROOT"})

Unary = Literal["keep", "top", "join"]


@dataclass
class CleaningReport:
    """Counts of the changes made and of the words, constituents and trees dropped."""

    trees_read: int = 0
    words_read: int = 0
    trees: int = 0
    words: int = 0
    traces: int = 0
    dropped_words: Counter[str] = field(default_factory=Counter)  # by part of speech, traces apart
    empty_constituents: int = 0
    roots: int = 0
    function_tags: int = 0
    unary: int = 0
    lowered: int = 0
    numbers: int = 0
    trees_without_words: int = 0
    trees_of_one_word: int = 0

    def __str__(self) -> str:
        tags = ", ".join(f"{tag} {count:,}" for tag, count in self.dropped_words.most_common()) or "none"
        lines = [
            f"{self.trees:,} of {self.trees_read:,} trees, {self.words:,} of {self.words_read:,} words kept",
            f"trees dropped: {self.trees_without_words:,} without words, {self.trees_of_one_word:,} of one word",
            f"words dropped: {self.traces:,} traces, {self.dropped_words.total():,} by tag"
            + (f" ({tags})" * bool(tags)),
            f"constituents dropped: {self.empty_constituents:,} empty, {self.roots:,} roots, {self.unary:,} unary",
            f"changed: {self.function_tags:,} labels, {self.lowered:,} words to lower case, {self.numbers:,} to N",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class CleanTrees:
    """The trees that are left, the number of each in the input (from 0), and the report."""

    trees: list[Tree]
    kept: list[int]
    report: CleaningReport


def clean_trees(
    trees: Iterable[Tree],
    *,
    keep_tags: Collection[str] | None = PENN_WORD_TAGS,
    drop_traces: bool = True,
    drop_roots: bool = True,
    strip_functions: bool = True,
    unary: Unary = "keep",
    lower: bool = True,
    numbers: bool = True,
    drop_single: bool = True,
) -> CleanTrees:
    """The trees, prepared as unsupervised parsing does it (the defaults), with what was done.

    In this order: words whose tag is not in `keep_tags` are dropped (None keeps them all), and traces, then
    constituents left without words; a `ROOT`, `TOP`, `S1` or `VROOT` around a single constituent; function tags,
    indices and second labels of constituents (NP-SBJ-1, NP=2 and NP|QP become NP); constituents that are the only
    child of a constituent, with `unary="top"` (the uppermost label stays) or `"join"` (S+VP); capitals; digits, which
    become N together with commas and points after them (1,000.5 is N, 1980s Ns); trees of one word. Trees without
    words are always dropped.
    Source: Kim, Dyer, Rush 2019, whose code keeps the same words and brackets.
    """
    if unary not in ("keep", "top", "join"):
        raise UnsupportedError(f'unary={unary!r} is not known: "keep", "top" or "join" was expected.')
    kept, indices, report = [], [], CleaningReport()
    for index, tree in enumerate(trees):
        report.trees_read += 1
        report.words_read += len(tree.words)
        if keep_tags is not None:
            _expect_tags(tree, index)
        left = _drop_words(tree, keep_tags, drop_traces, report)
        if left is None:
            report.trees_without_words += 1
            continue
        if drop_roots:
            left = _drop_root(left, report)
        if strip_functions:
            left = _strip_functions(left, report)
        if unary != "keep":
            left = _collapse(left, unary, report)
        left = _spell(left, report, lower=lower, numbers=numbers)
        num_words = len(left.words)
        if drop_single and num_words == 1:
            report.trees_of_one_word += 1
            continue
        kept.append(left)
        indices.append(index)
        report.words += num_words
    report.trees = len(kept)
    return CleanTrees(kept, indices, report)


def base_label(label: str) -> str:
    """The label without function tags, indices and second labels: NP-SBJ-1, NP=2, NP|QP are NP; -NONE- stays."""
    return re.split("[-=|]", label, maxsplit=1)[0] or label


def _expect_tags(tree: Tree, index: int) -> None:
    tags = tree.tags
    if None in tags:
        at = tags.index(None)
        raise DataError(
            f"tree {index + 1}: word {at + 1}, {tree.words[at]!r}, has no part of speech, such as (NN dog).\n"
            "  keep_tags=None keeps words whatever their tags."
        )


def _drop_words(tree: Tree, keep: Collection[str] | None, drop_traces: bool, report: CleaningReport) -> Tree | None:
    def of_tree(node: Tree, children: list[Tree | str | None]) -> Tree | None:
        if node.is_tag:
            if node.label == TRACE and drop_traces:
                report.traces += 1
                return None
            if keep is not None and node.label not in keep and node.label != TRACE:
                report.dropped_words[node.label] += 1
                return None
        left = tuple(child for child in children if child is not None)
        if not left:
            report.empty_constituents += 1
            return None
        return Tree(node.label, left)

    def of_word(word: str) -> Tree | str | None:
        return word

    whole = tree.fold(of_word, of_tree)
    assert not isinstance(whole, str)
    return whole


def _drop_root(tree: Tree, report: CleaningReport) -> Tree:
    while tree.label in ROOTS and len(tree.children) == 1:
        only = tree.children[0]
        if isinstance(only, str):
            break
        report.roots += 1
        tree = only
    return tree


def _strip_functions(tree: Tree, report: CleaningReport) -> Tree:
    def of_tree(node: Tree, children: list[Tree | str]) -> Tree:
        label = node.label if node.is_tag else base_label(node.label)
        report.function_tags += label != node.label
        return Tree(label, tuple(children))

    return tree.rewrite(of_tree)


def _collapse(tree: Tree, unary: Unary, report: CleaningReport) -> Tree:
    def of_tree(node: Tree, children: list[Tree | str]) -> Tree:
        only = children[0]
        if len(children) > 1 or isinstance(only, str) or only.is_tag:
            return Tree(node.label, tuple(children))
        report.unary += 1
        return Tree(node.label if unary == "top" else f"{node.label}+{only.label}", only.children)

    return tree.rewrite(of_tree)


def _spell(tree: Tree, report: CleaningReport, *, lower: bool, numbers: bool) -> Tree:
    def of_word(word: str) -> str:
        small = word.lower() if lower else word
        spelt = number_to_n(small) if numbers else small
        report.lowered += small != word
        report.numbers += spelt != small
        return spelt

    return tree.rewrite(of_word=of_word)


@dataclass(frozen=True)
class Source:
    """Sentences of a file, and counts of everything left out of it, by name. Iterates over the sentences."""

    sentences: list[list[str]]
    left_out: dict[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[list[str]]:
        return iter(self.sentences)

    def __len__(self) -> int:
        return len(self.sentences)

    def longer_than_one(self) -> Source:
        """Without sentences of one word, which have no tree of two children."""
        return self._kept([words for words in self.sentences if len(words) > 1], "sentences_of_one_word")

    def up_to(self, max_length: int) -> Source:
        """Without sentences of more words."""
        kept = [words for words in self.sentences if len(words) <= max_length]
        return self._kept(kept, f"sentences_of_more_than_{max_length}_words")

    def _kept(self, kept: list[list[str]], name: str) -> Source:
        missing = len(self.sentences) - len(kept)
        return Source(kept, {**self.left_out, name: missing} if missing else dict(self.left_out))


class TextFile:
    """Sentences of a text file, read again each time they are asked for: one is in memory at a time.

    `left_out` counts what the latest reading left out: empty lines, and sentences of more than `max_length` words, if
    that is not 0. `progress` is called with the bytes read so far, about.
    """

    def __init__(self, path: Path, max_length: int = 0, progress: Callable[[int], None] | None = None) -> None:
        self.path, self.max_length, self.progress = path, max_length, progress
        self.left_out: dict[str, int] = {}

    def __iter__(self) -> Iterator[list[str]]:
        empty, long, done = 0, 0, 0
        for number, line in enumerate(iterate_lines(self.path)):
            words = line.split()
            done += len(line) + 1
            if self.progress is not None and number % 10_000 == 0:
                self.progress(done)
            if not words:
                empty += 1
            elif self.max_length and len(words) > self.max_length:
                long += 1
            else:
                yield words
        counts = {"empty_lines": empty, f"sentences_of_more_than_{self.max_length}_words": long}
        self.left_out = {name: count for name, count in counts.items() if count}

    def up_to(self, max_length: int) -> TextFile:
        """Without sentences of more words."""
        return TextFile(self.path, max_length, self.progress)


def read_source(path: Path, *, word_tags: Literal["all", "penn"] = "all", brackets: bool = False) -> Source:
    """The sentences of a file of text, or of trees by its name (`.trees`, `.trees.txt`, `.mrg`, plain or .gz)."""
    if not holds_trees(path):
        return read_text(path, brackets=brackets)
    clean = prepare_trees(read_trees(path).trees, word_tags=word_tags)
    if not clean.trees:
        raise DataError(f"{path}: no tree has a word left.\n  data.word_tags is {word_tags!r}: are its tags others?")
    return Source([tree.words for tree in clean.trees], count_left_out(clean))


def read_text(path: Path | None, *, brackets: bool = True) -> Source:
    """The sentences of a text; empty lines are skipped and counted."""
    text = read_sentences(path, brackets=brackets)
    return Source(text.sentences, {"empty_lines": text.num_empty_lines} if text.num_empty_lines else {})


def prepare_trees(trees: list[Tree], *, word_tags: Literal["all", "penn"] = "all") -> CleanTrees:
    """Trees without traces and without words that do not count; the words' spelling and one-word trees stay."""
    keep = None if word_tags == "all" else PENN_WORD_TAGS
    return clean_trees(trees, keep_tags=keep, lower=False, numbers=False, drop_single=False)


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Counts by name in words: 2 empty lines, 1 sentence of one word."""
    found = []
    for name, count in left_out.items():
        what = name.replace("_", " ")
        found.append(f"{count:,} {re.sub(r's( |$)', r' ', what, count=1).rstrip() if count == 1 else what}")
    return ", ".join(found)


def count_left_out(clean: CleanTrees) -> dict[str, int]:
    """Counts of the trees, traces and words that cleaning left out, by name."""
    report = clean.report
    found = {
        "trees_without_words": report.trees_without_words,
        "traces": report.traces,
        "words_by_tag": report.dropped_words.total(),
    }
    return {name: count for name, count in found.items() if count}
