"""Sentences to trees by a grammar: words in, bracketed trees out, in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch

from rankfold.data.batch import Batches, length_batches
from rankfold.data.trees import Tree
from rankfold.decoding.mbr import mbr
from rankfold.decoding.parsed_tree import SPAN, TAG, ParsedTree, as_tree
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import UnsupportedError
from rankfold.models.base import Model
from rankfold.models.pcfg import Grammar

Decode = Literal["mbr", "viterbi"]
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
    progress: Callable[[int], None] | None = None,
    parts: Any = None,
) -> list[Parsed]:
    """A binary tree for each sentence of one word or more, in their order; words that are unknown count as `<unk>`.

    "mbr": the tree with the most brackets expected to be right. "viterbi": the most probable tree, whose labels it
    has anyway. With `labels`, constituents are NT-k and words T-k, the k-th symbols of the grammar; without, X and T.
    A sentence of one word is a tag over it, impossible under a grammar that makes none. `progress` is told how many
    sentences are done.
    """
    grammar = expect_grammar(model)
    assert model.vocabulary is not None
    rows = model.vocabulary.encode_all(sentences).sentences
    found = [Parsed(Tree(TAG, tuple(words)), False, None) for words in sentences]
    # One word has no brackets, from which the others' possibility is seen: its symbol tells.
    single = [i for i, row in enumerate(rows) if len(row) == 1 and model.config.single_words]
    long = [i for i, row in enumerate(rows) if len(row) > 1]
    done = len(rows) - len(single) - len(long)
    with torch.no_grad():
        parts = grammar.parts() if parts is None else parts
        for own, named in ((single, True), (long, labels)):
            batches = tree_batches(model, [rows[i] for i in own], memory=BYTES, gradients=True) if own else None
            for group, batch in zip(batches.groups, batches, strict=True) if batches else ():
                symbols = named or decode == "viterbi"  # nonterminals, even where the chart could be over ranks
                potentials = grammar.tree_potentials(batch.to(model.device), parts=parts, labels=symbols)
                found_trees = viterbi(potentials).trees if decode == "viterbi" else mbr(potentials, labels=named).trees
                for i, answer in zip(group, found_trees, strict=True):
                    found[own[i]] = _parsed(sentences[own[i]], answer, labels=labels)
                done += len(group)
                if progress is not None:
                    progress(done)
    return found


def _parsed(words: Sequence[str], answer: ParsedTree, *, labels: bool) -> Parsed:
    """The tree of brackets and symbols; flat where there are none."""
    tree = as_tree(answer if labels else ParsedTree(answer.spans), words)
    if len(words) == 1:
        assert tree is not None
        return Parsed(tree, answer.tags is not None, answer.score)
    if tree is None:
        return Parsed(Tree(SPAN, tuple(Tree(TAG, (word,)) for word in words)), False, None)
    return Parsed(tree, True, answer.score)
