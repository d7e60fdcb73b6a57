"""Trees: log Z over all labelled binary trees of each sentence.

| file | in it |
|---|---|
| `potentials` | `TreePotentials`, and their validation |
| `rungs` | the arithmetics in which trees are solved, for the ladder |
| `ranks` | inside and outside over ranks, for rules that share their factors |
| `packed` | the same on a GPU, a width in one launch and one product |
| `pairs` | as packed, over pairs of children, for rules without ranks of a child's own; off until measured |
| `scaled` | inside and outside over symbols, for any rules |
| `charts` | what both kinds of charts share |
| `soundness` | the bound on what underflow took |
| `plain` | the inside pass as plain loops for second derivatives, and in logarithms |
| `best` | charts of maxima, best brackets and labels |
| `descend` | trees from the top of a chart down: best ones, and samples |
| `termination` | the probability that a tree ends |
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.precision import Precision
from rankfold.recursions import ladder
from rankfold.recursions.ladder import Arithmetic, Impossible
from rankfold.recursions.tree.potentials import TreeLike, TreePotentials, validate
from rankfold.recursions.tree.rungs import solve

__all__ = ["TreePotentials", "chart", "log_z", "solve", "validate"]


def log_z(
    p: TreeLike, arithmetic: Arithmetic = "scaled", precision: Precision = "float32", *, strict: bool = False
) -> Tensor:  # "b"   float64
    """Log-probability of each sentence, summed over all binary trees and all labels.

        inside[i, j, a] = span[i, j] sum_k sum_{n, m} rules[a, n, m] inside[i, k, n] inside[k, j, m]
        log Z = log sum_a root[a] inside[0, T, a]

    Cost: a rule's `combine` for every split, T^3 / 6 of them, and its other steps for every span, T^2 / 2. Memory: the
    chart, O(b t^2 l) with l the size of a child in its rule (the rank, or all symbols); nothing of the size of the
    splits, nor of the grammar for each sentence. Differentiable in every field, twice; d log Z / d log_span is the
    posterior of a bracket, d log Z / d log_leaf that of a word's symbol. Products are as exact as their dtype, whatever
    `precision` permits.

    Scaled arithmetic loses entries more than 87 nats (float32; 708 in float64) below the largest of their own span.
    A sentence in which float32 may have lost some that weigh, even after weights above 1 (an operator's `gain`), is
    repeated in float64, and then in log arithmetic, unless weights of exactly 0 explain the zeros: in float64 a second
    inside pass, over zeros and ones, says which labels a span can have at all. In a captured graph, where nothing can
    be repeated, such a sentence is NaN. -inf means impossible, with zero gradients, and `strict` raises instead. In log
    arithmetic a linear weight of 0 has gradient 0.
    Source: Baker 1979; with CPDs Cohen, Satta, Collins 2013.
    """
    hint = "One word needs log_root_leaf; else look for words, rules or brackets of weight zero."
    impossible = Impossible("sentence", "no tree has any weight", hint) if strict else None
    return ladder.log_z(validate(p), lambda f, both: solve(f, arithmetic, precision), arithmetic, precision, impossible)


def chart(p: TreePotentials) -> Tensor:  # "b t+1 t+1 n"   float64
    """The log-weight of all trees over words i..j-1 with each label at their top, in entry [i, j]; -inf elsewhere.

    `log_span` of the span itself is in it, the root's weight is not: log Z is the log-sum of entry [0, T] and
    `log_root`. Spans of two words and more; words have `log_leaf`. Solved in float64 or wider, without a graph: a
    gradient is that of `log_z`. Cost: an inside pass. Memory: t^2 n for each sentence.
    """
    with torch.no_grad():
        f = validate(p).detach().double()
        num, num_words = f.log_leaf.shape[:2]
        out = f.log_root.new_full((num, num_words + 1, num_words + 1, f.log_root.shape[1]), float("-inf"))
        for width, span in enumerate(solve(f).log_spans()[0], 2):
            torch.diagonal(out, width, 1, 2).copy_(span.mT)
    return out
