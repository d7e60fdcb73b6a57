"""Rules of a grammar without any words: the probability that a tree ends, and its left corners."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.numerics.log_space import log_sum
from rankfold.operators.binary import BinaryOperator, Branch

MOST = 200  # steps of Newton
SAFE = 1e6  # the largest entry of an inverse times ones, up to which rounding cannot hide its sign


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
    they lead to: exactly 1 where nothing is lost below and they have at most one child of their own kind on average;
    else by Newton's method from 0, a linear system of their number per step. 1 is always written as the sum of a
    symbol's rules, and masses near 1 are solved by their loss: they have the digits that the rules determine. Several
    symbols that lead to one another with probability 1 - e lose a factor 1 / e of accuracy. A symbol from which no
    tree ends has 0. Cost: n^3, and of tables n^2 m. Source: Etessami, Yannakakis 2009.
    """
    num = _num_own(rules)
    if num == 1:
        return _Mass(rules).solve()
    every = torch.arange(num, device=rules.factors()[0].device)
    return torch.cat([_Mass(Branch(*(rule.take(every[b : b + 1]) for rule in rules))).solve() for b in range(num)])


class _Mass:
    """The masses of one grammar's symbols; `lost` is 1 - mass, kept for itself."""

    def __init__(self, rules: Branch) -> None:
        self.rules = rules
        self.num = rules.span_span.shape[0]
        self.ones = rules.factors()[0].new_ones(self.num)
        self.mass, self.lost = torch.zeros_like(self.ones), self.ones.clone()

    def solve(self) -> Tensor:  # "1 n"
        ends = self._ends()
        below = _Group(self.rules, torch.arange(self.num, device=ends.device)).children(ends.to(self.ones.dtype)) > 0
        below = below & ends & ends[:, None]  # "n n"   which symbols have which
        for index in _components(below, ends):
            again = bool(below[index[0], index[0]]) or len(index) > 1
            group = _Group(self.rules.of_parents(index), index)
            if not group.missing(self.lost).any() and (not again or group.ends()):
                self.mass[index], self.lost[index] = 1.0, 0.0
            elif again:
                self._newton(group)
            else:
                self.mass[index] = group.made(self.mass)
                self.lost[index] = 1 - self.mass[index]
        return self.mass.unsqueeze(0)

    def _ends(self) -> Tensor:  # "n" bool
        """Which symbols have a tree that ends."""
        found = torch.zeros_like(self.ones, dtype=torch.bool)
        while not found.all():
            left = (~found).nonzero()[:, 0]
            new = _Group(self.rules.of_parents(left), left).made(found.to(self.ones.dtype)) > 0
            if not new.any():
                break
            found[left[new]] = True
        return found

    def _newton(self, group: _Group) -> None:
        """Newton's method from below; a step is added to mass or loss, whichever is smaller."""
        index, last = group.index, float("inf")
        for _ in range(MOST):
            step = group.system(self.mass, self.lost).solve(group.residual(self.mass, self.lost))
            if not step.isfinite().all():
                return
            mass, lost = self.mass[index] + step, self.lost[index] - step
            small = mass < 0.5
            mass, lost = (torch.where(x > 0, x, 0.0) for x in (mass, lost))
            self.mass[index] = torch.where(small, mass, 1 - lost)
            self.lost[index] = torch.where(small, 1 - mass, lost)
            size = torch.minimum(self.mass[index], self.lost[index])
            far = float((step.abs() / torch.where(size > 0, size, 1.0)).max())
            if far <= torch.finfo(size.dtype).eps or (far < 1e-6 and far >= last):  # nothing but rounding is left
                return
            last = far


class _Group:
    """The rules of some symbols; children are all symbols, of any weight each, leaves of 1."""

    def __init__(self, rules: Branch, index: Tensor) -> None:  # rules "k n n", ...; "k"
        self.rules, self.index = rules, index
        like = rules.factors()[0]
        self.leaf, self.ones = like.new_ones(rules.span_leaf.shape[2]), like.new_ones(rules.span_leaf.shape[1])
        self.row = torch.arange(len(index), device=index.device)
        self.words = rules.leaf_leaf.given_right(self.leaf[None])[0].sum(-1)  # "k"   two words
        self.both = self.pairs(self.ones, self.ones)  # two spans
        one = (rules.span_leaf.given_right(self.leaf[None]) + rules.leaf_span.given_left(self.leaf[None]))[0]
        self.one = one  # "k n"   a span and a word
        self.one_other = self._apart(one)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:  # "n", "n" -> "k"
        return self.rules.span_span.given_right(right[None])[0] @ left

    def children(self, x: Tensor) -> Tensor:  # "n" -> "k n"
        """How many children of each kind a symbol has on average, the other child weighed by x."""
        pairs = self.rules.span_span
        return self.one + (pairs.given_right(x[None]) + pairs.given_left(x[None]))[0]

    def made(self, x: Tensor) -> Tensor:  # "n" -> "k"
        """The right side of the equation."""
        return self.words + self.one @ x + self.pairs(x, x)

    def _apart(self, children: Tensor) -> Tensor:  # "k n"
        """Without a symbol itself."""
        apart = children.clone()
        apart[self.row, self.index] = 0.0
        return apart

    def missing(self, lost: Tensor) -> Tensor:  # "n" -> "k"
        """The loss of children outside the group: a sum, exactly 0 if they lose nothing."""
        lost = lost.clone()
        lost[self.index] = 0.0
        return self.children(self.ones) @ lost

    def system(self, mass: Tensor, lost: Tensor) -> System:  # "n", "n"
        """I less the children among these: 1 is the sum of a symbol's rules, and the rest of them is summed."""
        apart = self._apart(self.children(mass))
        inner = apart[:, self.index]  # a copy
        apart[:, self.index] = 0.0
        gained = self.words + self.pairs(self.ones, lost) + apart.sum(-1)
        return System(gained - self.pairs(mass, self.ones), inner)

    def residual(self, mass: Tensor, lost: Tensor) -> Tensor:  # "n", "n" -> "k"
        """made(mass) - mass, written in masses or in losses, whichever has the smaller terms."""
        own, out = mass[self.index], lost[self.index]
        gained = self.words + self.one_other @ mass + self.pairs(mass, mass)
        spent = (self.words + self.both + self.one_other.sum(-1)) * own
        apart = self._apart(self.children(self.ones))
        left, more = self.words + apart.sum(-1), self.pairs(lost, lost)
        by_loss = (left - self.both) * out - apart @ lost + more
        terms = (left + self.both) * out + apart @ lost + more
        return torch.where(terms < gained + spent, by_loss, gained - spent)

    def ends(self) -> bool:
        """Whether all trees end, no other symbol losing any: of finite size on average, or on the brink."""
        return self.system(self.ones, torch.zeros_like(self.ones)).positive()


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


def left_closure(rules: Branch, mass: Tensor, first: Tensor) -> Tensor:  # "b n", "b n p" -> "b a n"
    """How often a tree from a passes through n on its way down to the first word: (I - C)^-1, C its left corner.

    `first` are the words it may come to at once, T[a, p, .] with the mass of the other child. Of trees that end
    (I - C) mass = sum_p first[a, p], so that 1 - C[a, a] is known as a sum, and elimination needs no subtraction:
    entries of any size have all their digits, however rarely a tree gets to its first word. Cost: n^3.
    """
    ends = mass > 0
    scale = torch.where(ends, mass, 1.0)
    both = ends.unsqueeze(-1) & ends.unsqueeze(-2)
    # Given that trees end: C[a, n] mass[n] / mass[a], rows and `out` sum to 1; who never ends is left by itself.
    leaf = mass.new_ones(1, rules.span_leaf.shape[2])
    corner = rules.span_span.given_right(mass) + rules.span_leaf.given_right(leaf)
    rest = torch.where(both, corner * scale.unsqueeze(-2) / scale.unsqueeze(-1), 0.0)
    out = torch.where(ends, first.sum(-1) / scale, 1.0)
    eye = torch.eye(rest.shape[-1], dtype=rest.dtype, device=rest.device)
    found = solve_by_factors(*eliminate(out, rest * (1 - eye)), eye.expand_as(rest))
    return found * scale.unsqueeze(-1) / scale.unsqueeze(-2)


class System(NamedTuple):
    """The matrix diag(rest + sum of inner's rows) - inner: non-negative but for `rest`, the sums of its rows.

    Solved without a subtraction: where rows sum to nearly 0, as those of a chain that hardly ever ends, a diagonal of
    1 - c has lost its digits, and the sum of the rest of a row is exact.
    """

    rest: Tensor  # "k"
    inner: Tensor  # "k k"   0 on its diagonal

    def _easily(self, right: Tensor) -> Tensor | None:  # "k" -> "k"
        """The solution by torch, where rounding cannot hide that the inverse is non-negative."""
        both = torch.stack([torch.ones_like(right), right], -1)
        found, failed = torch.linalg.solve_ex(self.matrix(), both)
        size, wanted = found.unbind(-1)
        return wanted if not bool(failed) and bool((size > 0).all() and (size < SAFE).all()) else None

    def matrix(self) -> Tensor:
        """Written out, and rounded."""
        return torch.diag_embed(self.rest + self.inner.sum(-1)) - self.inner

    def positive(self) -> bool:
        """Whether the inverse is non-negative, or would be but for a last pivot of 0."""
        if self._easily(self.rest) is not None:
            return True
        pivots, _ = eliminate(self.rest[None], self.inner[None])
        return bool((pivots[0, :-1] > 0).all() and pivots[0, -1] >= 0)

    def solve(self, right: Tensor) -> Tensor:  # "k" -> "k"
        """By torch where that is as good, else by elimination."""
        found = self._easily(right)
        return (
            found
            if found is not None
            else solve_by_factors(*eliminate(self.rest[None], self.inner[None]), right[None, :, None])[0, :, 0]
        )


def eliminate(rest: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:  # "b k", "b k k" -> "b k", "b k k"
    """The pivots of diag(rest + sum of inner's rows) - inner, and its factors without them, the lower one below.

    Diagonals are never written: they stay sums of a row's rest and of its other entries, so that nothing is subtracted.
    Source: Grassmann, Taksar, Heyman 1985.
    """
    rest, inner, pivots = rest.clone(), inner.clone(), torch.empty_like(rest)
    for k in range(rest.shape[-1]):
        pivots[:, k] = rest[:, k] + inner[:, k, k + 1 :].sum(-1)
        below = inner[:, k + 1 :, k] / pivots[:, k, None]
        inner[:, k + 1 :, k] = below
        inner[:, k + 1 :, k + 1 :] += below.unsqueeze(-1) * inner[:, k, None, k + 1 :]
        rest[:, k + 1 :] += below * rest[:, k, None]
    return pivots, inner


def solve_by_factors(pivots: Tensor, factors: Tensor, right: Tensor) -> Tensor:  # "b k", "b k k", "b k m" -> "b k m"
    """The solution, by the factors; of a right side without signs a sum throughout."""
    eye = torch.eye(pivots.shape[-1], dtype=pivots.dtype, device=pivots.device)
    half = torch.linalg.solve_triangular(eye - factors.tril(-1), right, upper=False, unitriangular=True)
    found: Tensor = torch.linalg.solve_triangular(torch.diag_embed(pivots) - factors.triu(1), half, upper=True)
    return found
