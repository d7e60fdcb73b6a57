"""Sentences to trees by a grammar: words in, bracketed trees out, in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch

from rankfold.data.batch import Batches, length_batches
from rankfold.data.known_brackets import expect_spans, log_spans
from rankfold.data.text import escape_brackets
from rankfold.data.trees import Tree
from rankfold.decoding.generate import WordChoice
from rankfold.decoding.k_best import k_best
from rankfold.decoding.mbr import mbr
from rankfold.decoding.parsed_tree import SPAN, TAG, ParsedTree, as_tree
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DataError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.pcfg import Grammar
from rankfold.recursions.tree.potentials import TreePotentials

Decode = Literal["mbr", "viterbi"]
Known = Sequence[Sequence[tuple[int, int]]] | None  # of each sentence the brackets its tree must have
BYTES = 2**30  # of a batch at most
EVALUATED_BYTES = 2**31  # without posteriors


class Parsed(NamedTuple):
    """The tree of one sentence."""

    tree: Tree
    possible: bool  # whether the grammar can make the sentence; if not, the tree is flat
    score: float | None  # mbr: the brackets expected to be right; viterbi: the log-probability of tree and words


def expect_grammar(model: Model[Any, Any]) -> Grammar[Any, Any]:
    """The model, if it is a grammar; `UnsupportedError` for one of sequences."""
    if model.config.data != "sentences":
        raise UnsupportedError(
            f'trees are asked of a model of the family "{model.config.family}", which has none.\n'
            "  Give a grammar: npcfg, cpcfg, tnpcfg, rankpcfg, lpcfg or spcfg."
        )
    return cast(Grammar[Any, Any], model)


def tree_batches(
    model: Model[Any, Any],
    rows: Sequence[Sequence[int]],
    tokens: int = 4096,
    *,
    memory: int = EVALUATED_BYTES,
    gradients: bool = False,
) -> Batches:
    """Batches of like lengths for a grammar, whose memory grows with the square of a length: at least one sentence.

    `gradients`: memory for an outside pass, too, which posteriors of spans need.
    """

    def cost(width: int) -> int:
        return max(1, model.sequence_bytes(width, gradients=gradients), width * memory // tokens)

    return length_batches(rows, memory, cost=cost)


def parse(
    model: Model[Any, Any],
    sentences: Sequence[Sequence[str]],
    *,
    decode: Decode = "mbr",
    labels: bool = False,
    brackets: Known = None,
    progress: Callable[[int], None] | None = None,
    parts: Any = None,
) -> list[Parsed]:
    """A binary tree for each sentence of one word or more, in their order; words that are unknown count as `<unk>`.

    "mbr": the tree with the most brackets expected to be right. "viterbi": the most probable tree, whose labels it
    has anyway. With `labels`, constituents are NT-k and words T-k, the k-th symbols of the grammar; without, X and T.
    A sentence of one word is a tag over it, impossible under a grammar that makes none. `brackets`: for each sentence
    spans `(i, j)`, words i to j - 1, that its tree must have; posteriors and scores are those of such trees alone.
    `progress` is told how many sentences are done.
    """
    found = [Parsed(Tree(TAG, tuple(words)), False, None) for words in sentences]

    def answer(potentials: TreePotentials, named: bool) -> list[ParsedTree]:
        return viterbi(potentials).trees if decode == "viterbi" else mbr(potentials, labels=named).trees

    symbols = decode == "viterbi"
    for i, one in _each(
        model, sentences, answer, labels=labels, symbols=symbols, brackets=brackets, progress=progress, parts=parts
    ):
        found[i] = _parsed(sentences[i], one, labels=labels)
    return found


def parse_k_best(
    model: Model[Any, Any],
    sentences: Sequence[Sequence[str]],
    k: int,
    *,
    brackets: Known = None,
    parts: Any = None,
) -> list[list[Parsed]]:
    """The k most probable trees of each sentence with their labels, the best first; fewer where there are fewer.

    None at all for a sentence that is impossible under the grammar. `brackets`: see `parse`.
    """
    found: list[list[Parsed]] = [[] for _ in sentences]

    def answer(potentials: TreePotentials, named: bool) -> list[list[ParsedTree]]:
        best = k_best(potentials, k)
        there = (best.log_prob > float("-inf")).T.tolist()
        columns = zip(there, zip(*best.trees, strict=True), strict=True)
        return [[tree for is_there, tree in zip(*column, strict=True) if is_there] for column in columns]

    for i, trees in _each(model, sentences, answer, labels=True, symbols=True, brackets=brackets, parts=parts):
        found[i] = [_parsed(sentences[i], tree, labels=True) for tree in trees]
    return found


Answer = TypeVar("Answer")


def _each(
    model: Model[Any, Any],
    sentences: Sequence[Sequence[str]],
    answer: Callable[[TreePotentials, bool], list[Answer]],
    *,
    labels: bool,
    symbols: bool,
    brackets: Known,
    parts: Any,
    progress: Callable[[int], None] | None = None,
) -> list[tuple[int, Answer]]:
    """The place and the answer of each sentence that the grammar may make, in batches that fit into memory."""
    grammar = expect_grammar(model)
    assert model.vocabulary is not None
    if brackets is not None:
        if len(brackets) != len(sentences):
            raise DataError(
                f"brackets are of {len(brackets)} sentences, but there are {len(sentences)}: one list each."
            )
        for number, (spans, words) in enumerate(zip(brackets, sentences, strict=True), 1):
            expect_spans(spans, len(words), f"sentence {number}")
    rows = model.vocabulary.encode_all(sentences).sentences
    # One word has no brackets, from which the others' possibility is seen: its symbol tells.
    single = [i for i, row in enumerate(rows) if len(row) == 1 and model.config.single_words]
    long = [i for i, row in enumerate(rows) if len(row) > 1]
    answers: list[tuple[int, Answer]] = []
    done = len(rows) - len(single) - len(long)
    with torch.no_grad():
        parts = grammar.parts() if parts is None else parts
        for own, named in ((single, True), (long, labels)):
            batches = tree_batches(model, [rows[i] for i in own], memory=BYTES, gradients=True) if own else None
            for group, batch in zip(batches.groups, batches, strict=True) if batches else ():
                # `symbols`: nonterminals, even where the chart could be over ranks.
                potentials = grammar.tree_potentials(batch.to(model.device), parts=parts, labels=named or symbols)
                if brackets is not None:
                    log_leaf = potentials.log_leaf
                    span = log_spans([brackets[own[i]] for i in group], log_leaf.shape[1], like=log_leaf)
                    span = span if potentials.log_span is None else span + potentials.log_span
                    potentials = potentials._replace(log_span=span)
                answers += zip([own[i] for i in group], answer(potentials, named), strict=True)
                done += len(group)
                if progress is not None:
                    progress(done)
    return answers


def _parsed(words: Sequence[str], answer: ParsedTree, *, labels: bool) -> Parsed:
    """The tree of brackets and symbols; flat where there are none."""
    tree = as_tree(answer if labels else ParsedTree(answer.spans), words)
    if len(words) == 1:
        assert tree is not None
        return Parsed(tree, answer.tags is not None, answer.score)
    if tree is None:
        return Parsed(Tree(SPAN, tuple(Tree(TAG, (word,)) for word in words)), False, None)
    return Parsed(tree, True, answer.score)


class DrawnTrees(NamedTuple):
    """Sentences, their trees with the grammar's symbols, and how many were rejected because they were too long."""

    words: list[list[str]]
    trees: list[Tree]
    rejected: int


def draw_trees(
    model: Model[Any, Any],
    num: int,
    *,
    max_length: int,
    choice: WordChoice | None = None,
    generator: torch.Generator,
) -> DrawnTrees:
    """Independent sentences of at most `max_length` words, exactly as the grammar has them given that length.

    Those of a compound PCFG each under a vector of its own. Brackets in words are written as treebanks do.
    """
    assert model.vocabulary is not None
    found = expect_grammar(model).generate_trees(num, max_length=max_length, choice=choice, generator=generator)
    words = [model.vocabulary.decode(row) for row in found.words]
    trees = [as_tree(tree, list(map(escape_brackets, row))) for tree, row in zip(found.trees, words, strict=True)]
    assert all(tree is not None for tree in trees)
    return DrawnTrees(words, [tree for tree in trees if tree is not None], found.rejected)
