"""Binary rules of trees: non-negative tensors T[a, n, m], parent first, known by their products.

Sums over trees apply a rule in three steps, so that costly work is done once per span: `left` and `right` prepare a
child's vector, `combine` multiplies both sides of all splits and sums the splits, `head` maps the sum to the parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from rankfold.errors import ShapeError, UnsupportedError
from rankfold.numerics.log_space import log_weights
from rankfold.operators.factor import Factor

EVERY = slice(None)
CPD = tuple[Factor | None, Factor, Factor]  # head "a r" (None: the identity), left "n r", right "m r"
Divide = Callable[[Factor, int], Factor]  # a factor, divided along its axis of parents


@runtime_checkable
class BinaryOperator(Protocol):
    """A non-negative tensor T = exp(log_scale) * B of parents, left and right children; factors may lead with a batch.

    `head_of`, `left_of` and `right_of` identify the maps `head`, `left` and `right`. Operators with equal `head_of` are
    summed before `head` is applied once; of operators with equal `left_of`, one prepares a child for all. The members
    from `cpd` on serve questions about single rules (best trees, samples, prefixes): `TensorRule` derives them from
    `to_dense`. Axes: s spans, k splits, l and h prepared left and right children, q their combination.
    """

    @property
    def shape(self) -> tuple[int, int, int]: ...  # parents, left children, right children
    @property
    def batch(self) -> int | None: ...  # how many sentences have rules of their own; None: all share theirs
    @property
    def log_scale(self) -> Tensor | float: ...  # "" float64, a constant to autograd
    @property
    def head_of(self) -> tuple[object, ...]: ...  # equal only where `head` is the same map
    @property
    def left_of(self) -> tuple[object, ...]: ...  # equal only where `left` is the same map
    @property
    def right_of(self) -> tuple[object, ...]: ...
    # How much a loss in a child's vector can grow on its way to a parent, for the bound on underflow.
    @property
    def gain(self) -> Tensor: ...  # "" or "b" float64
    def factors(self) -> tuple[Tensor, ...]: ...
    @property
    def log_factors(self) -> tuple[bool, ...]: ...  # which factors are logarithms
    def with_factors(self, *factors: Tensor) -> Self: ...
    def take(self, index: Tensor) -> Self: ...  # "k"   the rules of some sentences
    def left(self, x: Tensor) -> Tensor: ...  # "b s n" -> "b s l"
    def right(self, x: Tensor) -> Tensor: ...  # "b s m" -> "b s h"
    def combine(self, left: Tensor, right: Tensor) -> Tensor: ...  # "b s k l", "b s k h" -> "b s q", splits k summed
    def head(self, x: Tensor) -> Tensor: ...  # "b s q" -> "b s a"
    def left_log(self, log_x: Tensor) -> Tensor: ...  # the same in logarithms, any range; together they apply T, not B
    def right_log(self, log_x: Tensor) -> Tensor: ...
    def combine_log(self, left: Tensor, right: Tensor) -> Tensor: ...
    def head_log(self, log_x: Tensor) -> Tensor: ...
    def to_dense(self) -> Tensor: ...  # "a n m" or "b a n m"   T itself (tests, analysis)

    @property
    def cpd(self) -> CPD | None: ...  # the factors of a rule with ranks; None: it has none
    @property
    def row_cost(self) -> int: ...  # numbers held in memory per entry of `log_rows` while it is computed
    def log_rows(self, sentence: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor: ...  # "k", "k" -> "k n m"
    def given_right(self, right: Tensor) -> Tensor: ...  # "b m" -> "b a n"   sum_m T[a, n, m] right[m], linear
    def given_left(self, left: Tensor) -> Tensor: ...  # "b n" -> "b a m"
    def to_right(self, parents: Tensor, left: Tensor) -> Tensor: ...  # "b s a", "b s n" -> "b m", summed over s, a, n
    def of_parents(self, index: Tensor) -> BinaryOperator: ...  # "k"   the rules of some parents
    def divide_parents(self, divide: Divide) -> BinaryOperator: ...  # the rules with every parent's weights divided


class TensorRule:
    """The members of `BinaryOperator` from `cpd` on, derived from `to_dense`: for rules without ranks."""

    def to_dense(self) -> Tensor:  # "a n m" or "b a n m"
        raise NotImplementedError

    @property
    def cpd(self) -> CPD | None:
        return None

    @property
    def row_cost(self) -> int:
        return 1

    def log_rows(self, sentence: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor:  # "k", "k" -> "k n m"
        return log_weights(rows_of(self.to_dense(), sentence, parent, 3)[:, rows])

    def given_right(self, right: Tensor) -> Tensor:  # "b m" -> "b a n"
        return torch.einsum("...anm,...m->...an", self.to_dense(), right)

    def given_left(self, left: Tensor) -> Tensor:  # "b n" -> "b a m"
        return torch.einsum("...anm,...n->...am", self.to_dense(), left)

    def to_right(self, parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b m"
        return torch.einsum("...an,...anm->...m", parents.mT @ left, self.to_dense())

    def of_parents(self, index: Tensor) -> BinaryOperator:  # "k"
        from rankfold.operators.binary_dense import BinaryDense  # it imports us

        return BinaryDense(self.to_dense()[..., index, :, :])

    def divide_parents(self, divide: Divide) -> BinaryOperator:
        from rankfold.operators.binary_dense import BinaryDense

        return BinaryDense(self.to_dense()).divide_parents(divide)


def rows_of(table: Tensor, sentence: Tensor, row: Tensor, axes: int = 2) -> Tensor:  # "k", "k"
    """Rows of a table with `axes` axes, or of each sentence's own table if it has one axis more."""
    return table[row] if table.ndim == axes else table[sentence, row]


class Branch(NamedTuple):
    """The rules of a grammar by kind of child: spans of two words and more (n), or leaves, single words (p).

    The papers mix dense and low-rank rules by kind. Parents are always symbols of spans.
    """

    span_span: BinaryOperator  # "n n n"
    span_leaf: BinaryOperator  # "n n p"
    leaf_span: BinaryOperator  # "n p n"
    leaf_leaf: BinaryOperator  # "n p p"

    def factors(self) -> tuple[Tensor, ...]:
        """All tensors the rules are made of, rule by rule; one that several rules share comes as often."""
        return tuple(factor for rule in self for factor in rule.factors())

    def positive(self) -> Tensor:  # ""   bool
        """Whether no weight in any factor is exactly 0."""
        found = [
            (factor > (float("-inf") if is_log else 0.0)).all()
            for rule in self
            for factor, is_log in zip(rule.factors(), rule.log_factors, strict=True)
        ]
        return torch.stack(found).all()

    def of_parents(self, index: Tensor) -> Branch:  # "k"
        """The rules of some parents, whose children are still all symbols."""
        return Branch(*(rule.of_parents(index) for rule in self))

    def divide_parents(self, log_total: Tensor) -> Branch:  # "b n"
        """The rules with every parent's weights divided by its total; factors that were shared stay shared."""
        shared = log_total[0] if len(log_total) == 1 else log_total
        made: dict[tuple[int, int], tuple[Factor, Factor]] = {}  # keeps the factor itself, so that its id stays unique

        def divide(factor: Factor, axis: int) -> Factor:
            key = id(factor.value), axis
            if key not in made:
                value, shift = factor.value, shared.unsqueeze(-2) if axis == -1 else shared
                for _ in range(-axis - 1):
                    shift = shift.unsqueeze(-1)
                divided = factor.like(value - shift if factor.is_log else value / torch.exp(shift))
                made[key] = factor, divided
            return made[key][1]

        return Branch(*(rule.divide_parents(divide) for rule in self))

    def with_factors(self, *factors: Tensor) -> Branch:
        """The same rules with other tensors."""
        rest, rules = list(factors), []
        for rule in self:
            count = len(rule.factors())
            rules.append(rule.with_factors(*rest[:count]))
            rest = rest[count:]
        return Branch(*rules)


def expect_branch(rules: object) -> tuple[int, int]:
    """The number of symbols of spans and of leaves; raises on rules that do not fit together."""
    if not isinstance(rules, Branch):
        raise UnsupportedError(
            f"rules must be a rankfold.Branch of four operators, but is a {type(rules).__name__}.\n"
            "  Branch(span_span, span_leaf, leaf_span, leaf_leaf)."
        )
    for name, rule in zip(rules._fields, rules, strict=True):
        if isinstance(rule, type) or not isinstance(rule, BinaryOperator):
            raise UnsupportedError(
                f"{name} must be a binary operator, but is a {type(rule).__name__}.\n"
                "  Wrap a tensor of weights: rankfold.BinaryDense(weight), weight[parent, left, right]."
            )
    n, p = rules.span_span.shape[0], rules.leaf_leaf.shape[1]
    wanted = {"span_span": (n, n, n), "span_leaf": (n, n, p), "leaf_span": (n, p, n), "leaf_leaf": (n, p, p)}
    for name, shape in wanted.items():
        found = getattr(rules, name).shape
        if found != shape:
            raise ShapeError(
                f"{name} maps {found[1]} x {found[2]} children to {found[0]} parents, but with {n} symbols of spans "
                f"and {p} of leaves it must be {shape[1]} x {shape[2]} to {shape[0]}."
            )
    return n, p
