"""The sentences a grammar is induced from: those of a text, or the words of bracketed trees, without their brackets.

Read next: `training/corpus.py`, which makes ids and batches of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rankfold.data.brackets import read_trees
from rankfold.data.text import holds_trees, read_sentences
from rankfold.data.tree_cleaning import PENN_WORD_TAGS, CleanTrees, clean_trees
from rankfold.data.trees import Tree
from rankfold.errors import DataError


@dataclass(frozen=True)
class Source:
    """Sentences of a file, and what of it was left out, by name; nothing else was. Iterates over the sentences."""

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


def read_source(path: Path, *, word_tags: Literal["all", "penn"] = "all", brackets: bool = False) -> Source:
    """The sentences of a file of text, or of trees by its name (`.trees`, `.trees.txt`, `.mrg`, plain or .gz)."""
    if not holds_trees(path):
        return read_text(path, brackets=brackets)
    clean = prepared_trees(read_trees(path).trees, word_tags=word_tags)
    if not clean.trees:
        raise DataError(f"{path}: no tree has a word left.\n  data.word_tags is {word_tags!r}: are its tags others?")
    return Source([tree.words for tree in clean.trees], counted(clean))


def read_text(path: Path | None, *, brackets: bool = True) -> Source:
    """The sentences of a text; empty lines are none, and counted."""
    text = read_sentences(path, brackets=brackets)
    return Source(text.sentences, {"empty_lines": text.num_empty_lines} if text.num_empty_lines else {})


def prepared_trees(trees: list[Tree], *, word_tags: Literal["all", "penn"] = "all") -> CleanTrees:
    """Trees without traces and without words that do not count; words stay as they are written, as does one word."""
    keep = None if word_tags == "all" else PENN_WORD_TAGS
    return clean_trees(trees, keep_tags=keep, lower=False, numbers=False, drop_single=False)


def counted(clean: CleanTrees) -> dict[str, int]:
    """What cleaning left out of the sentences."""
    report = clean.report
    found = {
        "trees_without_words": report.trees_without_words,
        "traces": report.traces,
        "words_by_tag": report.dropped_words.total(),
    }
    return {name: count for name, count in found.items() if count}
