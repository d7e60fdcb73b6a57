"""A grammar of low rank as one whose symbols are its ranks.

Between two rules of a tree a head meets a left or a right factor: their product, "r r", is all that the symbols of
spans do, and it is the same for every span of every sentence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import ShapeError, UnsupportedError, expect
from rankfold.numerics.log_space import log_weights
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import CPD, BinaryOperator, Branch, expect_branch
from rankfold.operators.binary_cpd import BinaryCPD, log_product
from rankfold.operators.factor import Factor


class RankSpace(NamedTuple):
    """A grammar over ranks: the same log Z, brackets and symbols of words as the grammar it was made of."""

    rules: Branch
    log_root: Tensor  # "r", or "b r"


def rank_space(rules: Branch, log_root: Tensor) -> RankSpace:  # log_root "n" or "b n"
    """The same distribution of brackets and words, spans labelled by the r ranks in place of the n symbols.

        T[a, n, m] = sum_r U[a, r] V[n, r] W[m, r]      left = U^T V,  right = U^T W,  root = root U

    For rules that share their head U; factors of leaves stay as they are. A span then costs 2 r^2 multiply-adds in
    place of 3 n r, and holds r numbers. The products here are made once for all sentences, n r^2 multiply-adds and r^2
    numbers for each factor of spans: nothing "n r" belongs to a sentence, unless its rules are its own. Differentiable;
    products of weights in their own dtype, of logarithms in logarithms. At the root a rank of weight 0 has gradient 0.
    Source: Yang, Liu, Tu 2022, section 4.2.
    """
    num_spans, _ = expect_branch(rules)
    batched = isinstance(log_root, Tensor) and log_root.ndim == 2
    expect(log_root, "b n" if batched else "n", name="log_root", n=num_spans)
    cpds = [_expect_cpd(name, rule) for name, rule in zip(rules._fields, rules, strict=True)]
    heads = {rule.head_of for rule in rules}
    head = cpds[0][0]
    if head is None:
        raise UnsupportedError("these rules are in rank space already: their head is the identity.")
    if len(heads) > 1:
        raise UnsupportedError(
            "rules of a rank space share one head, the same tensor for all four kinds of children, but these have "
            f"{len(heads)}.\n  Give the recursion these rules themselves."
        )
    made: dict[tuple[int, bool], Factor] = {}

    def through(side: Factor) -> Factor:
        key = id(side.value), side.is_log
        if key not in made:
            made[key] = _times_head(head, side)
        return made[key]

    span_span, span_leaf, leaf_span, leaf_leaf = (cpd[1:] for cpd in cpds)
    ranked = Branch(
        BinaryCPD.of_parts(None, through(span_span[0]), through(span_span[1])),
        BinaryCPD.of_parts(None, through(span_leaf[0]), span_leaf[1]),
        BinaryCPD.of_parts(None, leaf_span[0], through(leaf_span[1])),
        BinaryCPD.of_parts(None, *leaf_leaf),
    )
    return RankSpace(ranked, _root_over_ranks(head, log_root))


def _expect_cpd(name: str, rule: BinaryOperator) -> CPD:
    if rule.cpd is None:
        raise UnsupportedError(
            f"{name} is a {type(rule).__name__}, but only rules with ranks (BinaryCPD) have a rank space.\n"
            "  Give the recursion these rules themselves."
        )
    return rule.cpd


def _times_head(head: Factor, side: Factor) -> Factor:  # "a q", "a r" -> "q r"
    """head^T side, in logarithms if either is one."""
    if not (head.is_log or side.is_log):
        return Factor(head.linear.mT @ side.linear, is_log=False)
    rows = head.log.mT
    if rows.ndim < side.log.ndim:
        rows = rows.expand(len(side.log), -1, -1)
    return Factor(log_product(rows, side.log), is_log=True)


def _root_over_ranks(head: Factor, log_root: Tensor) -> Tensor:  # "n" or "b n" -> "r" or "b r"
    """log sum_a root[a] U[a, r]."""
    if head.value.ndim == 3 and log_root.ndim == 1:
        log_root = log_root.expand(len(head.value), -1)
    if log_root.ndim == 2 and head.value.ndim == 3 and len(log_root) != len(head.value):
        raise ShapeError(f"log_root is for {len(log_root)} sentences, but the rules are for {len(head.value)}.")
    rows = log_root.unsqueeze(-2)
    if head.is_log:
        return log_product(rows, head.log).squeeze(-2)
    # Of weights in float64: there nothing underflows that float32 can hold, and weights of 0 have their gradient.
    top = largest(rows)
    total = torch.exp((rows - top).double()) @ head.linear.double()
    return (log_weights(total).to(log_root.dtype) + top).squeeze(-2)
