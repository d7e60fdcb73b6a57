"""A tensor given only by its factors, T[x] = sum over r of the product of F_j[x's own axes, r]; never written out.

With one axis to each factor it is a canonical polyadic decomposition (CPD); with several it is the matricised form
of low-rank PCFGs. Read next: `decompose.py`, which turns the ranks into nodes of the grammar.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankfold.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Factored:
    """The tensor sum_r prod_j F_j[x_a for a in axes_j, r]; `factors` are pairs (F_j, axes_j), ranks on the last axis.

    `Factored(((u, (0,)), (v, (1,)), (w, (2,))))` is T[a, b, c] = sum_r u[a, r] v[b, r] w[c, r], which
    `Factored.cpd(u, v, w)` writes shorter; `Factored(((u, (0,)), (v, (1, 2))))` is U V^T of a tensor flattened to a
    matrix. Memory: the factors'.
    """

    factors: tuple[tuple[Tensor, tuple[int, ...]], ...]

    @classmethod
    def cpd(cls, *factors: Tensor) -> Factored:  # each "n r"
        """The CPD of these matrices, one axis each."""
        return cls(tuple((factor, (axis,)) for axis, factor in enumerate(factors)))

    def __post_init__(self) -> None:
        if not self.factors:
            raise ShapeError("A factored tensor needs at least one factor: Factored(((u, (0,)), (v, (1,)))).")
        axes = [axis for _, own in self.factors for axis in own]
        if sorted(axes) != list(range(len(axes))):
            raise ShapeError(
                f"The factors own the axes {axes}, but every axis from 0 on belongs to exactly one factor.\n"
                "  Multiply factors that share an axis first."
            )
        for tensor, own in self.factors:
            if tensor.ndim != len(own) + 1 or 0 in tensor.shape:
                raise ShapeError(
                    f"The factor of axes {own} has shape {tuple(tensor.shape)}, but needs {len(own) + 1} axes of "
                    "size at least 1: its own and the rank last."
                )
            if tensor.shape[-1] != self.rank:
                raise ShapeError(
                    f"The factor of axes {own} has rank {tensor.shape[-1]}, but the first has rank {self.rank}.\n"
                    "  All factors share their last axis."
                )

    @property
    def rank(self) -> int:
        """The number of terms."""
        return int(self.factors[0][0].shape[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is never written out."""
        sizes = {axis: int(size) for tensor, own in self.factors for axis, size in zip(own, tensor.shape, strict=False)}
        return tuple(sizes[axis] for axis in range(len(sizes)))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first factor."""
        return self.factors[0][0].dtype

    @property
    def device(self) -> torch.device:
        """The device of the first factor."""
        return self.factors[0][0].device

    def to_dense(self) -> Tensor:
        """The tensor, written out; cost and memory are those of the full tensor."""
        rank = len(self.shape)
        terms: list[object] = []
        for tensor, own in self.factors:
            terms += [tensor, [*own, rank]]
        return torch.einsum(*terms, list(range(rank)))
