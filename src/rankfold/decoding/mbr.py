"""Structures of least expected error: the states, or the brackets, that are most probable in sum.

Not the most probable structure (`viterbi`), which a grammar of thousands of symbols does not give away; and better by
the measure that states and trees are judged by.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, NamedTuple, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer, derivatives
from rankfold.decoding.parsed_tree import ParsedTree
from rankfold.decoding.posterior import posterior
from rankfold.decoding.viterbi import TreeKind
from rankfold.errors import UnsupportedError
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.tree.best import best_brackets, best_labels
from rankfold.recursions.tree.potentials import TreePotentials


class LikelyPath(NamedTuple):
    """The most probable state of every position by itself; of blocks, a state of the whole model."""

    path: Tensor  # "b t"       -1 beyond the length, and throughout for an impossible sequence
    expected: Tensor  # "b"     float64, how many of these states are right, in expectation


class LikelyTrees(NamedTuple, Generic[TreeKind]):
    """The tree of each sentence whose brackets are most probable in sum."""

    trees: list[TreeKind]
    expected: Tensor  # "b"     float64, how many of its brackets are right, in expectation; 0 if impossible


@overload
def mbr(p: TreePotentials, *, labels: bool = False) -> LikelyTrees[ParsedTree]: ...
@overload
def mbr(p: ChainPotentials | SegmentPotentials | BlockPotentials) -> LikelyPath: ...
def mbr(p: Potentials, *, labels: bool = False) -> LikelyPath | LikelyTrees[ParsedTree]:
    """The structure with the most parts expected to be right (minimum Bayes risk); detached.

        argmax_{z_1..z_T}  sum_t p(z_t | x)             argmax_tree  sum_{(i, j) in tree} p(bracket i, j | words)

    Of chains, segments and blocks the most probable state at each position; such a path may be impossible as a whole.
    Of trees the binary tree with the most correct brackets. With `labels`, brackets that are right only with their
    label: p(i, j, label | words), and for each word its most probable symbol (`tags`). Labels are symbols of the rules
    that are given: for those of a grammar in rank space give the rules over states, which are the same distribution,
    exact, at 3 n r per span in place of 2 r^2. Cost: that of `posterior`, and for trees t^3 / 6 additions.
    Source: Goodman 1996.
    """
    with torch.no_grad():
        return answer("mbr", _ANSWERS, p)(p, labels)


def _of_sequences(p: Any, labels: bool) -> LikelyPath:
    if labels:
        raise UnsupportedError(f"labels are of trees, but these are {type(p).__name__}, whose states are labels.")
    top = posterior(p).state.max(-1)
    path = torch.where(top.values > 0, top.indices, -1)
    return LikelyPath(path, top.values.double().sum(-1))


def _of_blocks(p: BlockPotentials, labels: bool) -> LikelyPath:
    index, expected = _of_sequences(p, labels)
    return LikelyPath(blocks.validate(p).states(index, index >= 0), expected)


def _of_tree(p: TreePotentials, labels: bool) -> LikelyTrees[ParsedTree]:
    f = tree.validate(p).detach()
    lengths = f.lengths.tolist()
    _, (span, leaf) = derivatives(f, ["log_span", "log_leaf"])
    if not labels:
        possible = (span.sum((1, 2)) > 0).tolist()
        spans, sums = best_brackets(span.double(), lengths)
        trees = [
            ParsedTree(found, score=total) if can else ParsedTree([])
            for found, total, can in zip(spans, sums, possible, strict=True)
        ]
    else:
        best = best_labels(f)
        tags, possible = leaf.argmax(-1).tolist(), (leaf.sum((1, 2)) > 0).tolist()
        spans, sums = best_brackets(best.posterior, lengths)
        names = best.label.tolist()
        trees = [
            ParsedTree(found, [names[b][i][j] for i, j in found], tags[b][:length], total) if can else ParsedTree([])
            for b, (found, total, length, can) in enumerate(zip(spans, sums, lengths, possible, strict=True))
        ]
    scores = [x if can else 0.0 for x, can in zip(sums, possible, strict=True)]
    return LikelyTrees(trees, torch.tensor(scores, dtype=torch.float64, device=f.lengths.device))


_ANSWERS: dict[ModuleType, Callable[..., LikelyPath | LikelyTrees[ParsedTree]]] = {
    chain: _of_sequences,
    segments: _of_sequences,
    tree: _of_tree,
    blocks: _of_blocks,
}
