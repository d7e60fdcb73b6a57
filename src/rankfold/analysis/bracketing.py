"""Predicted brackets against gold ones: unlabelled F1 in the conventions of the literature, and trees without a model.

Papers on unsupervised parsing count in two ways that differ by some tenths of a point, and print both as "F1". The
value of a parser is its distance from left- and right-branching, random and the best binary trees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from rankfold.data.trees import Span, Tree
from rankfold.errors import DataError, DomainError, UnsupportedError

Bracket = tuple[int, int]
RandomLaw = Literal["trees", "splits", "actions"]


class F1(NamedTuple):
    """F1 under one convention, in [0, 1]: the mean over sentences, and that of all brackets of the corpus together."""

    sentence: float
    corpus: float
    precision: float  # of the corpus, as is recall
    recall: float
    num_sentences: int  # in the mean


class LengthScore(NamedTuple):
    """Sentence F1 of the sentences with `shortest` to `longest` words."""

    shortest: int
    longest: int
    num_sentences: int
    uf1: float
    kim: float


class LabelRecall(NamedTuple):
    """The share of gold constituents with this label whose bracket was predicted."""

    label: str
    num_gold: int
    recall: float


@dataclass(frozen=True)
class BracketScores:
    """Every convention next to the others. Never compare two numbers of different names.

    uf1          brackets of one word and every copy of the whole sentence's are left out, on both sides. Sentence F1
                 over sets; an empty gold set has recall 1, and precision 1 if the predicted one is empty too, so a
                 sentence of two words scores 1. Corpus F1 over lists: a missed bracket counts as often as a unary chain
                 repeats it, a found one once. Source: the code of Yang, Zhao, Tu 2021 (TN-PCFG) and its successors.
    uf1_distinct the same sentence F1, but corpus F1 over sets.
    kim          only one bracket of the whole sentence, the outermost, is left out, and those of one word. A unary
                 chain over the whole sentence leaves a gold bracket that a binary tree cannot have, so kim is never
                 above uf1 for binary trees. Sets throughout; empty sets as in uf1. Source: the code of Kim, Dyer,
                 Rush 2019 (compare_trees.py), which gives the numbers of that paper.
    kim_nonempty the same, but the mean passes over sentences where either set is empty (eval.py of that code).
    """

    uf1: F1
    uf1_distinct: F1
    kim: F1
    kim_nonempty: F1
    by_length: tuple[LengthScore, ...]
    by_label: tuple[LabelRecall, ...]
    num_sentences: int
    num_single_words: int  # sentences of one word, which have no brackets and are in no mean

    def __str__(self) -> str:
        columns = ("sentence F1", "corpus F1", "precision", "recall", "sentences")
        lines = ["convention  " + "".join(f"{column:>13}" for column in columns)]
        for name in ("uf1", "uf1_distinct", "kim", "kim_nonempty"):
            f1: F1 = getattr(self, name)
            lines.append(f"{name:12}" + "".join(f"{value:13.2%}" for value in f1[:4]) + f"{f1.num_sentences:13,}")
        return "\n".join(lines)


class _Counts:
    """Brackets found, predicted and gold of a corpus, and F1 of its sentences."""

    def __init__(self) -> None:
        self.found = self.wrong = self.missed = 0
        self.sentences: list[float] = []

    def add(self, predicted: Collection[Bracket], gold: Collection[Bracket]) -> None:
        """Count the corpus's brackets, duplicates as often as they are listed."""
        in_predicted, in_gold = set(predicted), set(gold)
        found = sum(bracket in in_gold for bracket in predicted)
        self.found += found
        self.wrong += len(predicted) - found
        self.missed += sum(bracket not in in_predicted for bracket in gold)

    def result(self) -> F1:
        precision = _ratio(self.found, self.found + self.wrong)
        recall = _ratio(self.found, self.found + self.missed)
        corpus = _ratio(2 * precision * recall, precision + recall)
        return F1(_mean(self.sentences), corpus, precision, recall, len(self.sentences))


def evaluate_brackets(
    predicted: Iterable[Tree], gold: Iterable[Tree], *, lengths: Sequence[int] = (10, 20, 30, 40)
) -> BracketScores:
    """How many brackets of the gold trees the predicted trees have, labels ignored, in every convention.

    Both must be over the same words. `lengths` are the longest sentences of each row of `by_length`, whose last row
    holds all that are longer. `by_label` counts distinct gold (bracket, label) pairs but those of one word and of the
    whole sentence, most frequent label first; a mean over no sentences is 0.
    """
    predicted, gold = list(predicted), list(gold)
    _check(predicted, gold, lengths)
    counts = {name: _Counts() for name in ("uf1", "uf1_distinct", "kim", "kim_nonempty")}
    rows: list[tuple[int, float, float]] = []
    in_gold: Counter[str] = Counter()
    in_both: Counter[str] = Counter()
    for ours, theirs in zip(predicted, gold, strict=True):
        spans, gold_spans = ours.spans(), theirs.spans()
        num_words = gold_spans[0].end if gold_spans else 1  # a tag alone has no spans
        if num_words == 1:
            continue
        inner, gold_inner = _inner(spans, num_words), _inner(gold_spans, num_words)
        below, gold_below = _below_root(spans), _below_root(gold_spans)
        distinct, gold_distinct = set(inner), set(gold_inner)
        uf1, kim = sentence_f1(distinct, gold_distinct), sentence_f1(below, gold_below)
        counts["uf1"].add(inner, gold_inner)
        counts["uf1_distinct"].add(distinct, gold_distinct)
        for name, score in (("uf1", uf1), ("uf1_distinct", uf1), ("kim", kim)):
            counts[name].sentences.append(score)
        for name in ("kim", "kim_nonempty"):
            counts[name].add(below, gold_below)
        if below and gold_below:
            counts["kim_nonempty"].sentences.append(kim)
        rows.append((num_words, uf1, kim))
        labelled = {span for span in gold_spans if (span.start, span.end) in gold_distinct}
        in_gold.update(span.label for span in labelled)
        in_both.update(span.label for span in labelled if (span.start, span.end) in distinct)
    ordered = sorted(in_gold.items(), key=lambda item: (-item[1], item[0]))
    return BracketScores(
        **{name: count.result() for name, count in counts.items()},
        by_length=_by_length(rows, lengths),
        by_label=tuple(LabelRecall(label, count, in_both[label] / count) for label, count in ordered),
        num_sentences=len(rows),
        num_single_words=len(gold) - len(rows),
    )


def sentence_f1(predicted: set[Bracket], gold: set[Bracket]) -> float:
    """F1 of two sets of brackets; 1 if both are empty, 0 if one is: no gold brackets give recall 1 and precision 0."""
    return 2 * len(predicted & gold) / (len(predicted) + len(gold)) if predicted or gold else 1.0


def _inner(spans: list[Span], num_words: int) -> list[Bracket]:
    """The brackets of uf1: two words or more, but not all of them; duplicates of unary chains kept."""
    return [(i, j) for i, j, _ in spans if 1 < j - i < num_words]


def _below_root(spans: list[Span]) -> set[Bracket]:
    """The brackets of kim: two words or more, the root's own left out (the last one, where children come first)."""
    return {(i, j) for i, j, _ in spans[1:] if j - i > 1}


def _by_length(rows: list[tuple[int, float, float]], lengths: Sequence[int]) -> tuple[LengthScore, ...]:
    longest = max((num_words for num_words, _, _ in rows), default=2)
    edges = [*lengths, longest] if not lengths or longest > lengths[-1] else [*lengths]
    found, shortest = [], 2
    for edge in edges:
        inside = [row for row in rows if shortest <= row[0] <= edge]
        found.append(LengthScore(shortest, edge, len(inside), *(_mean([row[k] for row in inside]) for k in (1, 2))))
        shortest = edge + 1
    return tuple(found)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return _ratio(sum(values), len(values))


def _check(predicted: list[Tree], gold: list[Tree], lengths: Sequence[int]) -> None:
    if list(lengths) != sorted({*lengths}) or any(length < 2 for length in lengths):
        raise DomainError(f"lengths are {tuple(lengths)}, but must grow, from 2 on.")
    if len(predicted) != len(gold):
        raise DataError(f"{len(predicted)} predicted trees, but {len(gold)} gold trees: one each was expected.")
    if not gold:
        raise DataError("no trees: at least one predicted and one gold tree was expected.")
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True), 1):
        if ours.words != theirs.words:
            raise DataError(
                f"sentence {number}: the predicted tree is over {_shown(ours.words)}, the gold tree over "
                f"{_shown(theirs.words)}.\n  Are both in the same order, and prepared alike?"
            )


def _shown(words: list[str]) -> str:
    return f"{len(words)} words, {' '.join(words[:12])!r}" + (" ..." if len(words) > 12 else "")


def right_branching(words: Sequence[str], *, label: str = "X", tag: str = "T") -> Tree:
    """(X a (X b (X c d))): each word next to all that follow it."""
    leaves = _leaves(words, tag)
    tree = leaves[-1]
    for leaf in reversed(leaves[:-1]):
        tree = Tree(label, (leaf, tree))
    return tree


def left_branching(words: Sequence[str], *, label: str = "X", tag: str = "T") -> Tree:
    """(X (X (X a b) c) d): each word next to all before it."""
    leaves = _leaves(words, tag)
    tree = leaves[0]
    for leaf in leaves[1:]:
        tree = Tree(label, (tree, leaf))
    return tree


def random_binary(
    words: Sequence[str], *, generator: torch.Generator, law: RandomLaw = "trees", label: str = "X", tag: str = "T"
) -> Tree:
    """A random binary tree under one of three laws, which differ by several points of F1.

    "trees"    each of the C(n - 1) binary trees with the same probability, C the Catalan numbers
    "splits"   each constituent parted at a uniformly drawn place, from the top
    "actions"  shift or reduce by the toss of a coin, where both are possible; the random trees in the code of
               Kim, Dyer, Rush 2019
    """
    leaves = _leaves(words, tag)
    if law not in _ROWS:
        raise UnsupportedError(f"law={law!r} is not known: one of {', '.join(map(repr, _ROWS))} was expected.")
    ready: list[Tree] = []
    for is_word in reversed(_ROWS[law](len(leaves), generator)):
        ready.append(leaves.pop() if is_word else Tree(label, (ready.pop(), ready.pop())))
    return ready[0]


def binarise(tree: Tree, *, branching: Literal["left", "right"] = "right") -> Tree:
    """A binary tree that has every bracket of a tree over two words or more; of unary chains the upper label stays.

    Of a gold tree it is the best binary prediction: any binary tree over n words has n - 2 brackets between one word
    and the whole, so none has higher F1 than one that has all gold brackets. Added ones are labelled like the
    constituent they part, with a prime ('), and lean to the side of `branching`, which does not change F1.
    """
    if branching not in ("left", "right"):
        raise UnsupportedError(f'branching={branching!r} is not known: "left" or "right" was expected.')

    def of_tree(node: Tree, children: list[Tree | str]) -> Tree:
        only = children[0]
        if len(children) == 1:
            if isinstance(only, str):
                return node
            return only if only.is_tag else Tree(node.label, only.children)
        inner = f"{node.label}'"
        while len(children) > 2:
            if branching == "right":
                children[-2:] = [Tree(inner, (children[-2], children[-1]))]
            else:
                children[:2] = [Tree(inner, (children[0], children[1]))]
        return Tree(node.label, tuple(children))

    return tree.rewrite(of_tree)


def _leaves(words: Sequence[str], tag: str) -> list[Tree]:
    if isinstance(words, str) or not words:
        raise DataError(f"a sequence of at least one word was expected, but {words!r} came.")
    return [Tree(tag, (word,)) for word in words]


def _row_of_trees(n: int, generator: torch.Generator) -> list[bool]:
    """A uniform tree, written with each joint (false) before its two parts and words as true.

    By the cycle lemma exactly one rotation of a shuffled row of n words and n - 1 joints reads as a tree.
    """
    row = (torch.randperm(2 * n - 1, generator=generator, device=generator.device) < n).tolist()
    # A joint opens one place more than it fills, a word fills one: start after the first place where fewest are open.
    height, lowest, start = 0, 0, 0
    for at, is_word in enumerate(row):
        height += -1 if is_word else 1
        if height < lowest:
            lowest, start = height, at + 1
    return [*row[start:], *row[:start]]


def _row_of_splits(n: int, generator: torch.Generator) -> list[bool]:
    shares = torch.rand(n, dtype=torch.float64, generator=generator, device=generator.device).tolist()
    row, pending = [], [n]
    while pending:
        width = pending.pop()
        row.append(width == 1)
        if width > 1:
            left = 1 + int(shares.pop() * (width - 1))
            pending += [width - left, left]
    return row


def _row_of_actions(n: int, generator: torch.Generator) -> list[bool]:
    coins = torch.randint(2, (2 * n,), generator=generator, device=generator.device).tolist()
    ready: list[list[bool]] = []
    shifted = 0
    while shifted < n or len(ready) > 1:
        if len(ready) < 2 or (shifted < n and coins.pop()):
            ready.append([True])
            shifted += 1
        else:
            right = ready.pop()
            ready.append([False, *ready.pop(), *right])
    return ready[0]


_ROWS: dict[str, Callable[[int, torch.Generator], list[bool]]] = {
    "trees": _row_of_trees,
    "splits": _row_of_splits,
    "actions": _row_of_actions,
}
