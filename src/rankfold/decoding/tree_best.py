"""Best trees with their labels, and trees drawn from their posterior: exact, with the work they cost said openly.

Read next: `recursions/tree/best.py` and `recursions/tree/descend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.decoding.tree_records import ParsedTree
from rankfold.errors import DomainError, UnsupportedError
from rankfold.numerics.log_space import pick
from rankfold.operators.factor import Factor
from rankfold.recursions.tree.best import best_by_pairs, best_by_ranks, log_inside, log_side, max_side
from rankfold.recursions.tree.descend import Pairs, Ranks, Traced, View, trace
from rankfold.recursions.tree.potentials import Forest, TreePotentials, validate


def viterbi_tree(p: TreePotentials) -> list[ParsedTree]:
    """The most probable tree of each sentence with its labels; `score` is its log-probability, words included.

        argmax_tree  log p(tree, words)

    Exact for every rule. A maximum does not pass through a sum over ranks: rules of n x m children cost n m additions a
    split and a n m a span, whatever their rank; factored ones besides a n m r multiply-adds a width, in blocks that are
    never all in memory. With 100 symbols of spans and 200 of words a sentence of 20 takes 1.5 s on one core; thousands
    are out of reach: there ask `mbr_tree`, `joint_map_tree` or `sample_tree`.
    """
    with torch.no_grad():
        f = validate(p).detach().double()
        vectors = best_by_pairs(f)
        return _parsed(trace(f, vectors, [Pairs(rule) for rule in f.rules], _largest), _top(f, vectors))[0]


def joint_map_tree(p: TreePotentials) -> list[ParsedTree]:
    """The most probable tree with labels and ranks together, of rules with ranks; `score` is their log-probability.

        argmax_{tree, ranks}  log p(tree, ranks, words)

    Cost: r a split and (n + m + a) r a span. Another question than `viterbi_tree`: this tree need not be the most
    probable one, because ranks are not summed out.
    """
    with torch.no_grad():
        f = validate(p).detach().double()
        for name, rule in zip(f.rules._fields, f.rules, strict=True):
            if rule.cpd is None:
                raise UnsupportedError(
                    f"joint_map_tree asks for the ranks of {name}, a {type(rule).__name__}, but only BinaryCPD has "
                    "them.\n  Use viterbi_tree(p)."
                )
        vectors = best_by_ranks(f)
        views = [Ranks(rule.cpd, max_side) for rule in f.rules if rule.cpd is not None]
        return _parsed(trace(f, vectors, views, _largest), _top(f, vectors))[0]


def sample_tree(
    p: TreePotentials, num_samples: int = 1, *, generator: torch.Generator | None = None
) -> list[list[ParsedTree]]:
    """Trees with labels drawn from their posterior p(tree | words), independent and exact; by sample, then sentence.

    Cost: an inside pass; then for each node r numbers a split for rules with ranks and n + m for the children, n m a
    split for others. For labels of a grammar in rank space give the rules over states.
    """
    if not isinstance(num_samples, int) or num_samples < 1:
        raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
    with torch.no_grad():
        f = validate(p).detach().double()
        vectors, in_logs = log_inside(f)

        def side(x: Tensor, factor: Factor) -> Tensor:
            return log_side(x, factor, in_logs)

        views: list[View] = [Pairs(rule) if rule.cpd is None else Ranks(rule.cpd, side) for rule in f.rules]
        drawn = trace(f, vectors, views, lambda logits: pick(logits, generator), num_samples)
    return _parsed(drawn, None)


def _largest(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def _top(f: Forest, vectors: list[Tensor]) -> list[float]:
    """The weight of the best tree of each sentence."""
    scores = []
    for b, length in enumerate(f.lengths.tolist()):
        root = f.log_root_leaf if length == 1 else f.log_root
        scores.append(float((root[b] + vectors[length][b, 0]).max()))
    return scores


def _parsed(traced: Traced, scores: list[float] | None) -> list[list[ParsedTree]]:
    found = []
    for spans, tags in zip(traced.spans, traced.tags, strict=True):
        row = []
        for b, (nodes, words) in enumerate(zip(spans, tags, strict=True)):
            ends, labels = [(i, j) for i, j, _ in nodes], [symbol for *_, symbol in nodes]
            score = None if scores is None else scores[b]
            row.append(ParsedTree(ends, labels, words, score) if words else ParsedTree([]))
        found.append(row)
    return found
