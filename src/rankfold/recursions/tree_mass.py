"""What the rules of a grammar say without any word: the probability that a tree ends, and the corners it goes left by.

Read next: `decoding/tree_prefix.py`, which asks for both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.numerics.log_space import log_sum
from rankfold.operators.binary import BinaryOperator, Branch

MOST = 100  # steps of Newton: at a grammar on the brink of never ending each halves the rest, 52 halvings are all bits


def log_kinds(rules: Branch) -> Tensor:  # "b n kind"   b is 1 for rules that all sentences share
    """The log-probability of each kind of children, by parent; raises unless those of every parent sum to 1."""
    found = torch.stack([_log_mass(rule) for rule in rules], -1)
    total = log_sum(found).exp()
    wrong = (total - 1).abs() > 1e-3  # float32 sums of millions of rules are off by less
    if wrong.any():
        at = tuple(int(i) for i in wrong.nonzero()[0])
        raise DomainError(
            f"the rules of symbol {at[1]} sum to {float(total[at]):.6g}, but those of all kinds of children together "
            "must sum to 1.\n  Only distributions can be drawn from, or asked how a sentence goes on."
        )
    return found


def _log_mass(rule: BinaryOperator) -> Tensor:  # "b a"
    """log sum_{n, m} T[a, n, m]."""
    _, left, right = rule.shape
    like = rule.factors()[0]
    one, other = (
        rule_side(like.new_zeros(rule.batch or 1, 1, size))
        for rule_side, size in ((rule.left_log, left), (rule.right_log, right))
    )
    return rule.head_log(rule.combine_log(one.unsqueeze(2), other.unsqueeze(2))).squeeze(1)


def applied(rule: BinaryOperator, left: Tensor, right: Tensor) -> Tensor:  # "b s n", "b s m" -> "b s a"
    """sum_{n, m} T[a, n, m] left[n] right[m], of weights that a double can hold."""
    found = rule.head(rule.combine(rule.left(left).unsqueeze(2), rule.right(right).unsqueeze(2)))
    return found * torch.exp(torch.as_tensor(rule.log_scale, dtype=torch.float64, device=found.device))


def mass(rules: Branch) -> Tensor:  # "b n"   float64
    """The probability that a tree from each symbol ends: the smallest solution of

        mass[a] = sum_{n, m} T[a, n, m] mass[n] mass[m]            the mass of a leaf is 1

    All ones for a grammar whose trees have a finite size on average, and then two steps find it. Newton's method: a
    system "n n" a step. Rules are distributions in float64. Source: Etessami, Yannakakis 2009.
    """
    n, p = rules.span_leaf.shape[1:]
    like = rules.factors()[0]
    num = max(rule.batch or 1 for rule in rules)
    ones, leaf = like.new_ones(num, 1, n), like.new_ones(num, 1, p)

    def made(x: Tensor) -> Tensor:
        return (
            applied(rules.span_span, x, x)
            + applied(rules.span_leaf, x, leaf)
            + applied(rules.leaf_span, leaf, x)
            + applied(rules.leaf_leaf, leaf, leaf)
        )

    ends = torch.zeros_like(ones)  # which symbols have a tree that ends
    while not torch.equal(more := (made(ends) > 0).to(ends.dtype), ends):
        ends = more
    eye = torch.eye(n, dtype=ones.dtype, device=ones.device)

    def system(x: Tensor) -> Tensor:
        return eye - sum(corners(rules, x, eye), torch.zeros_like(eye)) * ends * ends.mT

    size = torch.linalg.solve_ex(system(ends), ends.mT)[0].mT  # of a tree, on average, if it has one
    finite = ((size >= ends) & size.isfinite()).all(-1, keepdim=True)
    x, last = torch.where(finite, ends, 0.0), float("inf")
    for _ in range(MOST):
        step = torch.linalg.solve(system(x), ((made(x) - x) * ends).mT).mT
        x, far = x + step, float(step.abs().max())
        if far <= torch.finfo(x.dtype).eps or (far < 1e-6 and far >= last):  # nothing but rounding is left
            break
        last = far
    return x.squeeze(1)


def corners(rules: Branch, weight: Tensor, eye: Tensor) -> tuple[Tensor, Tensor]:  # "b 1 n", "n n" -> "b a n" twice
    """sum over the other child of T[a, n, .] and of T[a, ., n], spans of this weight each, leaves of 1."""
    leaf = weight.new_ones(len(weight), 1, rules.leaf_leaf.shape[1])
    every = eye.expand(len(weight), -1, -1)
    left = applied(rules.span_span, every, weight) + applied(rules.span_leaf, every, leaf)
    right = applied(rules.span_span, weight, every) + applied(rules.leaf_span, leaf, every)
    return left.mT, right.mT


def left_closure(rules: Branch, mass: Tensor) -> Tensor:  # "b n" -> "b a n"
    """How often a tree from a passes through n on its way down to the first word: I + C + C^2 + ..., C its left corner.

    By doubling, (I + C)(I + C^2)(I + C^4)...: sums and products of weights alone, so that small entries are as exact as
    large ones. Two products "n n n" for each bit of the length of the ways.
    """
    eye = torch.eye(mass.shape[1], dtype=mass.dtype, device=mass.device)
    ends = (mass > 0).to(mass.dtype).unsqueeze(1)
    power = corners(rules, mass.unsqueeze(1), eye)[0] * ends * ends.mT
    total = eye + power
    while True:
        power = power @ power
        more = total @ power
        total = total + more
        if not total.isfinite().all():
            raise DomainError("these rules go down to the left for ever: a symbol's left corner is itself throughout.")
        if (more <= torch.finfo(total.dtype).eps * total).all():
            return total
