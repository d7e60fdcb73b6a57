"""The page of a grammar: trees with the posteriors of their brackets, and gold trees next to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.data.trees import Tree
from rankfold.decoding.mbr import mbr
from rankfold.decoding.posterior import posterior
from rankfold.errors import DataError, DomainError, quantity
from rankfold.explore.bundle import Bundle, about, fractions, joined, smallest
from rankfold.models.base import Model
from rankfold.models.parsing import BYTES, expect_grammar, tree_batches
from rankfold.models.strings import expect_memory, split_line
from rankfold.recursions import tree
from rankfold.recursions.tree.best import best_labels

EVERY = 200  # sentences between two lines of progress
MOST_WORDS = 60  # of a typed sentence: memory grows with the square of a length

Say = Callable[[str], None]


class Bracketed(NamedTuple):
    """The tree of most expected brackets of a sentence of two words and more; no spans where it is impossible."""

    spans: list[tuple[int, int]]  # parents first
    labels: list[int]  # the most probable nonterminal of each bracket
    p: list[float]  # of the bracket, whatever its label
    label_p: list[float]  # of bracket and label together
    tags: list[int]  # the most probable preterminal of each word


class GrammarPage:
    """A grammar, ready to be shown."""

    def __init__(self, model: Model[Any, Any]) -> None:
        self.model, self.grammar = model, expect_grammar(model)
        assert model.vocabulary is not None
        self.vocabulary = model.vocabulary
        with torch.no_grad():
            self.parts = self.grammar.parts()

    def bundle(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        gold: Sequence[Tree] | None = None,
        about_text: dict[str, Any],
        say: Say = lambda _: None,
    ) -> Bundle:
        """The trees of these sentences, and gold trees of the same words where there are some."""
        places = [i for i, words in enumerate(sentences) if len(words) > 1]
        if not places:
            raise DataError("no sentence of two words or more: there is no tree to show.")
        kept = [sentences[i] for i in places]
        if len(kept) < len(sentences):
            say(f"left out, without brackets: {quantity(len(sentences) - len(kept), 'sentence')} of one word")
        found = self._bracketed(kept, say)
        words, token = _numbered(kept)
        spans = [len(one.spans) for one in found]
        arrays: dict[str, NDArray[Any]] = {
            "words": joined(words),
            "token": smallest(token),
            "start": smallest(np.cumsum([0, *map(len, kept)])),
            "span_start": smallest(np.cumsum([0, *spans])),
            "span": smallest(np.array([end for one in found for end in one.spans]).reshape(-1, 2)),
            "label": smallest(np.array([label for one in found for label in one.labels])),
            "p": fractions([p for one in found for p in one.p], np.uint8),
            "label_p": fractions([p for one in found for p in one.label_p], np.uint8),
            "tag": smallest(np.array([tag for one in found for tag in one.tags])),
        }
        labels: list[str] = []
        if gold is not None:
            labels, more = _gold_arrays([gold[i] for i in places])
            arrays |= more
        config = self.model.config
        meta = about(
            kind="grammar",
            sentences=len(kept),
            tokens=len(token),
            vocabulary=len(self.vocabulary),
            nonterminals=config.num_nonterminals,
            preterminals=config.num_preterminals,
            gold=gold is not None,
            labels=labels,
            **about_text,
        )
        return Bundle(meta, arrays)

    def answer(self, text: str) -> dict[str, Any]:
        """The tree of a typed sentence, as the page holds those of the text."""
        words = split_line(text, self.vocabulary)
        if len(words) < 2:
            raise DataError("a tree has two words and more: type a sentence.")
        if len(words) > MOST_WORDS:
            raise DataError(f"{len(words):,} words, but at most {MOST_WORDS} are answered at once.")
        (found,) = self._bracketed([words], lambda _: None)
        if not found.spans:
            raise DomainError("the sentence is impossible under the grammar: it has no tree.")
        return {"words": words, "known": list(map(self.vocabulary.knows, words)), **found._asdict()}

    def _bracketed(self, sentences: Sequence[Sequence[str]], say: Say) -> list[Bracketed]:
        expect_memory(self.model, list(map(len, sentences)), "sentence", outside=True)
        rows = self.vocabulary.encode_all(sentences).sentences
        batches = tree_batches(self.model, rows, memory=BYTES, gradients=True)
        found: dict[int, Bracketed] = {}
        with torch.no_grad():
            for group, batch in zip(batches.groups, batches, strict=True):
                potentials = self.grammar.tree_potentials(batch.to(self.model.device), parts=self.parts, labels=True)
                likely = posterior(potentials)
                named = best_labels(tree.validate(potentials).detach())
                tags = likely.leaf.argmax(-1).tolist()
                for b, (place, parsed) in enumerate(zip(group, mbr(potentials).trees, strict=True)):
                    ends = parsed.spans
                    found[place] = Bracketed(
                        ends,
                        [int(named.label[b, i, j]) for i, j in ends],
                        [float(likely.span[b, i, j]) for i, j in ends],
                        [float(named.posterior[b, i, j]) for i, j in ends],
                        tags[b][: len(rows[place])],
                    )
                if len(found) // EVERY > (len(found) - len(group)) // EVERY:
                    say(f"trees of {len(found):,} of {quantity(len(rows), 'sentence')}")
        return [found[place] for place in range(len(rows))]


def _numbered(sentences: Sequence[Sequence[str]]) -> tuple[list[str], NDArray[np.int64]]:
    """The words as they are written, each once, the most frequent first, and the number of each position's."""
    flat = np.array([word for words in sentences for word in words], dtype=object)
    words, index, counts = np.unique(flat, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [str(words[i]) for i in order], np.argsort(order)[index]


def _gold_arrays(gold: Sequence[Tree]) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The labels of gold constituents, and brackets of two words and more as numbers."""
    rows = [[span for span in one.spans() if span.end - span.start > 1] for one in gold]
    labels = sorted({span.label for row in rows for span in row})
    number = {label: i for i, label in enumerate(labels)}
    arrays = {
        "gold_start": smallest(np.cumsum([0, *map(len, rows)])),
        "gold": smallest(np.array([(s.start, s.end, number[s.label]) for row in rows for s in row]).reshape(-1, 3)),
    }
    return labels, arrays
