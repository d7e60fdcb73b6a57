"""The sum of operators: a band plus a low-rank matrix, for one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from rankfold.errors import ShapeError, UnsupportedError, same_kind
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.precision import Rounded, products_in
from rankfold.operators.low_rank import LowRank
from rankfold.operators.protocol import Inner, KnowsGradients, Operator, expect_operator, log_gradients
from rankfold.operators.row_operator import RowOperator

WRITTEN = 2**26  # entries of a matrix that a GPU reads in less than 100 microseconds


class Sum(RowOperator):
    """`A[z, y] = sum_i terms[i][z, y]`.   push and pull: the cost of all terms."""

    def __init__(self, terms: Sequence[Operator]) -> None:
        if isinstance(terms, Operator):
            raise UnsupportedError("a Sum takes a list of operators, but got one operator.\n  Write Sum([a, b]).")
        terms = tuple(terms)
        for i, term in enumerate(terms):
            expect_operator(term, name=f"term {i}")
        if not terms or any(term.shape != terms[0].shape for term in terms):
            shapes = ", ".join(f"{type(term).__name__} {term.shape}" for term in terms) or "nothing"
            raise ShapeError(f"a Sum needs at least one term and equal shapes, but got {shapes}.")
        first = terms[0].factors()[0]
        same_kind(first, "the first term", {f"term {i}": f for i, t in enumerate(terms) for f in t.factors()})
        self._set(terms)

    def _set(self, terms: tuple[Operator, ...]) -> None:
        self.terms = terms
        self._log_scale: Tensor | float = 0.0
        self._shares: list[Tensor | None] = [None] * len(terms)
        if any(isinstance(term.log_scale, Tensor) for term in terms):
            like = terms[0].factors()[0]
            none = torch.zeros((), dtype=torch.float64, device=like.device)
            scales = torch.stack([none + term.log_scale for term in terms])
            self._log_scale = scales.amax()
            self._shares = list(torch.exp(scales - scales.amax()).to(like.dtype))

    @property
    def shape(self) -> tuple[int, int]:
        return self.terms[0].shape

    @property
    def log_scale(self) -> Tensor | float:
        return self._log_scale

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return tuple(flag for term in self.terms for flag in term.log_factors)

    def factors(self) -> tuple[Tensor, ...]:
        return tuple(factor for term in self.terms for factor in term.factors())

    def with_factors(self, *factors: Tensor) -> Self:
        rest, terms = list(factors), []
        for term in self.terms:
            count = len(term.factors())
            terms.append(term.with_factors(*rest[:count]))
            rest = rest[count:]
        other = self.__class__.__new__(self.__class__)
        other._set(tuple(terms))
        return other

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._total([term.push(x) for term in self.terms])

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._total([term.pull(x) for term in self.terms])

    @property
    def is_written(self) -> bool:
        return self.shape[0] * self.shape[1] <= WRITTEN and all(share is None for share in self._shares)

    def maps(self) -> tuple[Tensor, ...]:
        """The sum written out: where it is small, one product per step takes less time than the terms' calls.

        Low-rank terms are multiplied onto the others' sum, never written by themselves.
        """
        with products_in("float32", self.factors()[0].device):
            others = [term.to_dense() for term in self.terms if not isinstance(term, LowRank)]
            total = functools.reduce(torch.add, others) if others else self.factors()[0].new_zeros(())
            for term in self.terms:
                if isinstance(term, LowRank):
                    total = torch.addmm(total, *term.maps())
        return (total,)

    def rounded_maps(self) -> tuple[Rounded | None, ...]:
        return (None,)

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d factors; None where autograd has to find it."""
        found: list[Tensor] = []
        for term, share in zip(self.terms, self._shares, strict=True):
            own = term.gradients(source, target) if isinstance(term, KnowsGradients) and share is None else None
            if own is None:
                return None
            found += own
        return tuple(found)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor] | None:  # "n z", "n y"
        parts = [log_gradients(term, log_x, log_y) for term in self.terms]
        return None if any(x is None for x in parts) else [one for part in parts if part is not None for one in part]

    def push_loss(self) -> Tensor | float:  # "y"
        ones = self.factors()[0].new_ones(self.shape[0])
        return self._loss([(term.push_loss(), term.push(ones)) for term in self.terms])

    def pull_loss(self) -> Tensor | float:  # "z"
        ones = self.factors()[0].new_ones(self.shape[1])
        return self._loss([(term.pull_loss(), term.pull(ones)) for term in self.terms])

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return log_sum(torch.stack([term.push_log(log_x) for term in self.terms], -1))

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return log_sum(torch.stack([term.pull_log(log_x) for term in self.terms], -1))

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._total([term.rows(index) for term in self.terms])

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return log_sum(torch.stack([term.log_rows(index) for term in self.terms], -1))

    def _loss(self, parts: list[tuple[Tensor | float, Tensor]]) -> Tensor | float:
        """The terms' own losses; of a share and of its product too, where terms are scaled."""
        total: Tensor | float = 0.0
        for (own, column), share in zip(parts, self._shares, strict=True):
            total = total + (own if share is None else own * share + column + 1)
        return total

    def _total(self, parts: list[Tensor]) -> Tensor:
        total: Tensor | None = None
        for part, share in zip(parts, self._shares, strict=True):
            scaled = part if share is None else part * share
            total = scaled if total is None else total + scaled
        assert total is not None
        return total
