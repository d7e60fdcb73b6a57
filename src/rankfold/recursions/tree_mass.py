"""What the rules of a grammar say without any word: the probability that a tree ends, and the corners it goes left by.

Read next: `decoding/tree_prefix.py`, which asks for both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.numerics.log_space import log_sum
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.operators.binary_given import given_left, given_right

MOST = 200  # steps of Newton
BRINK = 1e-12  # children of a kind on average more than 1: as far as that, trees are taken to end
ROUNDING = 1e-12


def log_kinds(rules: Branch) -> Tensor:  # "b n kind"   b is 1 for rules that all sentences share
    """The log-probability of each kind of children, by parent; raises unless those of every parent sum to 1."""
    num = _num_own(rules)
    found = torch.stack([_log_mass(rule).expand(num, -1) for rule in rules], -1)
    total = log_sum(found).exp()
    wrong = ~((total - 1).abs() <= 1e-3)  # float32 sums of millions of rules are off by less
    if wrong.any():
        at = tuple(int(i) for i in wrong.nonzero()[0])
        raise DomainError(
            f"the rules of symbol {at[1]} sum to {float(total[at]):.6g}, but those of all kinds of children together "
            "must sum to 1.\n  Only distributions can be drawn from, or asked how a sentence goes on."
        )
    return found


def _num_own(rules: Branch) -> int:
    return max(rule.batch or 1 for rule in rules)


def _log_mass(rule: BinaryOperator) -> Tensor:  # "b a"
    """log sum_{n, m} T[a, n, m]."""
    _, left, right = rule.shape
    like = rule.factors()[0]
    one, other = (
        rule_side(like.new_zeros(rule.batch or 1, 1, size))
        for rule_side, size in ((rule.left_log, left), (rule.right_log, right))
    )
    return rule.head_log(rule.combine_log(one.unsqueeze(2), other.unsqueeze(2))).squeeze(1)


def mass(rules: Branch) -> Tensor:  # "b n"   float64
    """The probability that a tree from each symbol ends: the smallest solution of

        mass[a] = sum_{n, m} T[a, n, m] mass[n] mass[m]            the mass of a leaf is 1

    Rules are distributions in float64, normalised. Symbols that lead to one another are solved together, after those
    they lead to: exactly 1 where nothing is lost below and a symbol has, of its own kind, at most one child on average
    (to 1e-12, on the brink); else by Newton's method from 0, a system of their number a step. A symbol from which no
    tree ends has 0. Cost: n^3. Source: Etessami, Yannakakis 2009.
    """
    num = _num_own(rules)
    if num == 1:
        return _Mass(rules).solve()
    every = torch.arange(num, device=rules.factors()[0].device)
    return torch.cat([_Mass(Branch(*(rule.take(every[b : b + 1]) for rule in rules))).solve() for b in range(num)])


class _Mass:
    """The masses of one grammar's symbols."""

    def __init__(self, rules: Branch) -> None:
        self.rules = rules
        like = rules.factors()[0]
        self.num, num_leaves = rules.span_leaf.shape[1:]
        self.nothing, self.leaf = like.new_zeros(1, self.num), like.new_ones(1, num_leaves)

    def made(self, x: Tensor) -> Tensor:  # "1 n"
        """The right side of the equation."""
        rules, leaf = self.rules, self.leaf
        spans = (rules.span_span, x, x), (rules.span_leaf, x, leaf)
        pairs = *spans, (rules.leaf_span, leaf, x), (rules.leaf_leaf, leaf, leaf)
        return torch.stack([given_right(rule, right) @ left.squeeze(0) for rule, left, right in pairs]).sum(0)

    def solve(self) -> Tensor:  # "1 n"
        ends = self.nothing
        while not torch.equal(more := (self.made(ends) > 0).to(ends.dtype), ends):
            ends = more
        below = self._children(ends) * ends.mT * ends > 0  # "n n"   which symbols have which
        x = self.nothing.clone()
        for part in _components(below, ends.squeeze(0) > 0):
            x[0, part] = self._part(x, part, bool(below[part[0], part[0]]) or len(part) > 1)
        return x

    def _part(self, x: Tensor, part: Tensor, again: bool) -> Tensor:  # "1 n", "k" -> "k"
        """Of symbols that lead to one another, those below being known; `again`: whether they lead to themselves."""
        whole = x.clone()
        whole[0, part] = 1.0
        lost = self._children(torch.ones_like(x)) @ (1 - whole[0])  # a sum: exactly 0 if no child can be lost
        if not lost[part].any() and (not again or self._ends(whole, part)):
            return whole[0, part]
        if not again:
            return self.made(x)[0, part]
        found, last = self.nothing[0, part], float("inf")
        x = x.clone()
        for _ in range(MOST):
            x[0, part] = found
            step, failed = torch.linalg.solve_ex(self._system(x, part), self.made(x)[0, part] - found)
            if bool(failed) or not step.isfinite().all():
                break
            more = torch.minimum(found + torch.where(step > 0, step, 0.0), torch.ones_like(found))
            far = float((step.abs() / torch.where(more > 0, more, 1.0)).max())
            found = more
            if far <= torch.finfo(x.dtype).eps or (far < ROUNDING and far >= last):  # nothing but rounding is left
                break
            last = far
        return found

    def _system(self, x: Tensor, part: Tensor, brink: float = 0.0) -> Tensor:  # "k k"
        """I less the children among these. 1 is the sum of a symbol's rules: what is left of it is summed, too."""
        pairs, children = self.rules.span_span, self._children(x)
        apart = children.clone().fill_diagonal_(0.0)
        rest = given_right(pairs, 1 - x).sum(-1) - given_left(pairs, x).sum(-1) + self._two_words()
        left = rest[0] + apart.sum(-1) + brink
        return torch.diag_embed(left[part]) - apart[part[:, None], part]

    def _two_words(self) -> Tensor:  # "1 n"
        return given_right(self.rules.leaf_leaf, self.leaf).sum(-1)

    def _children(self, x: Tensor) -> Tensor:  # "n n"
        """How many children of each kind a symbol has on average, the others weighed by x."""
        left, right = corners(self.rules, x)
        return (left + right).squeeze(0)

    def _ends(self, x: Tensor, part: Tensor) -> bool:
        """Whether trees have a finite size on average, or are on the brink of it: sizes solve a system, positive."""
        one = torch.ones_like(x[0, part])
        size, failed = torch.linalg.solve_ex(self._system(x, part, BRINK), one)
        return not bool(failed) and bool((size > 0).all() and size.isfinite().all())


def _components(below: Tensor, among: Tensor) -> list[Tensor]:  # "n n", "n" bool -> indices
    """Symbols that lead to one another, in groups; those a group leads to come before it."""
    reach = below | torch.eye(len(below), dtype=torch.bool, device=below.device)
    while not torch.equal(further := (reach.double() @ reach.double()) > 0, reach):
        reach = further
    waiting, order = among.clone(), reach.sum(-1)
    found = []
    for symbol in torch.argsort(order).tolist():
        if waiting[symbol]:
            group = (reach[symbol] & reach[:, symbol] & among).nonzero()[:, 0]
            waiting[group] = False
            found.append(group)
    return found


def corners(rules: Branch, weight: Tensor) -> tuple[Tensor, Tensor]:  # "b n" -> "b a n" twice
    """sum over the other child of T[a, n, .] and of T[a, ., n], spans of this weight each, leaves of 1."""
    leaf = weight.new_ones(len(weight), rules.leaf_leaf.shape[1])
    return (
        given_right(rules.span_span, weight) + given_right(rules.span_leaf, leaf),
        given_left(rules.span_span, weight) + given_left(rules.leaf_span, leaf),
    )


def left_closure(rules: Branch, mass: Tensor, first: Tensor) -> Tensor:  # "b n", "b n p" -> "b a n"
    """How often a tree from a passes through n on its way down to the first word: (I - C)^-1, C its left corner.

    `first` are the words it may come to at once, T[a, p, .] with the mass of the other child. Of trees that end
    (I - C) mass = sum_p first[a, p], so that 1 - C[a, a] is known as a sum, and elimination needs no subtraction:
    entries of any size have all their digits, however rarely a tree gets to its first word. Cost: n^3. Source:
    Grassmann, Taksar, Heyman 1985.
    """
    ends = mass > 0
    scale = torch.where(ends, mass, 1.0)
    both = ends.unsqueeze(-1) & ends.unsqueeze(-2)
    # Given that trees end: C[a, n] mass[n] / mass[a], rows and `out` sum to 1; who never ends is left by itself.
    rest = torch.where(both, corners(rules, mass)[0] * scale.unsqueeze(-2) / scale.unsqueeze(-1), 0.0)
    out = torch.where(ends, first.sum(-1) / scale, 1.0)
    num = rest.shape[-1]
    diagonal = torch.empty_like(out)
    for k in range(num):
        diagonal[:, k] = out[:, k] + rest[:, k, k + 1 :].sum(-1)
        below = rest[:, k + 1 :, k] / diagonal[:, k, None]
        rest[:, k + 1 :, k] = below
        rest[:, k + 1 :, k + 1 :] += below.unsqueeze(-1) * rest[:, k, None, k + 1 :]
        out[:, k + 1 :] += below * out[:, k, None]
    eye = torch.eye(num, dtype=rest.dtype, device=rest.device).expand_as(rest)
    half = torch.linalg.solve_triangular(eye - rest.tril(-1), eye, upper=False, unitriangular=True)
    upper = torch.diag_embed(diagonal) - rest.triu(1)
    found: Tensor = torch.linalg.solve_triangular(upper, half, upper=True)
    return found * scale.unsqueeze(-1) / scale.unsqueeze(-2)
