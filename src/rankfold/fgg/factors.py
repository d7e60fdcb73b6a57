"""Factors that are no plain tensors: given by their parts (`Factored`), or made of other factors (`Derived`).

Neither is written out before its value is needed. A derived factor, which merging factors and summing out state nodes
leave behind, is computed once a pass, and autograd follows it to its sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankfold.errors import ShapeError, may_look
from rankfold.fgg.contraction import (
    REAL,
    SUPPORT,
    Axes,
    Contraction,
    contract,
    num_terms,
    plan_contraction,
    sound_level,
)

BATCH = -1  # the axis of factors that lead with a batch


@dataclass(frozen=True, eq=False)
class Factored:
    """The tensor sum_r prod_j F_j[x_a for a in axes_j, r]; `factors` are pairs (F_j, axes_j), ranks on the last axis.

    One axis to each factor is a canonical polyadic decomposition (CPD), several the matricised form of low-rank PCFGs.
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


Factor = Tensor | nn.Module | Factored


@dataclass(frozen=True)
class Expression:
    """A sum of products of labelled factors: axes numbered in order of appearance, those not in `output` summed.

    Expressions compare by value, so equal derived factors are computed once and share a label.
    """

    inputs: tuple[tuple[str, Axes], ...]
    output: Axes

    @classmethod
    def of(cls, inputs: Iterable[tuple[str, Sequence[object]]], output: Sequence[object]) -> Expression:
        """The expression with these names of axes, which may be anything hashable."""
        number: dict[object, int] = {}
        pairs = [(label, list(axes)) for label, axes in inputs]
        for axes in (*(axes for _, axes in pairs), output):
            for axis in axes:
                number.setdefault(axis, len(number))
        return cls(
            tuple((label, tuple(number[axis] for axis in axes)) for label, axes in pairs),
            tuple(number[axis] for axis in output),
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is one factor as it is."""
        return len(self.inputs) == 1 and self.inputs[0][1] == self.output

    @property
    def name(self) -> str:
        """The first factor's label with the others' in brackets."""
        first, *rest = (label.replace("[", "(").replace("]", ")") for label, _ in self.inputs)
        return f"{first}[{','.join(rest)}]" if rest else first


class FactorCache(dict[int, Tensor]):
    """Tensors of modules and derived factors, by their id; the dtype in which to multiply (None: the sources'), and
    whether digits may have been lost by it."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype, self.is_lost = dtype, False


class Derived(nn.Module):
    """The tensor sum of the product of its sources over every axis that is not in the output.

    `forward()` computes it, in the sources' dtype. `value(cache)` shares what the cache holds and adds to it; at some
    entries alone it costs no more than those.
    """

    def __init__(self, sources: Sequence[Factor], inputs: Sequence[Axes], output: Axes) -> None:
        super().__init__()
        self.sources = tuple(sources)
        self.modules_of = nn.ModuleList(source for source in sources if isinstance(source, nn.Module))
        self.inputs, self.output = tuple(inputs), output

    def forward(self) -> Tensor:
        """The tensor."""
        return self.value(FactorCache())

    def value(self, cache: FactorCache, at: Mapping[int, Tensor] | None = None) -> Tensor:
        """The tensor; modules and derived factors in the cache are not computed again.

        `at`: only these entries of an axis of the output, by its place; sources are sliced before they are multiplied.
        """
        operands, axes = [], []
        wanted = {self.output[place]: index for place, index in (at or {}).items()}
        for source, own in zip(self.sources, self.inputs, strict=True):
            tensor = value_at(source, {k: wanted[axis] for k, axis in enumerate(own) if axis in wanted}, cache)
            # An axis that comes twice is a diagonal.
            distinct = tuple(dict.fromkeys(own))
            if distinct != own:
                tensor = torch.einsum(tensor, list(own), list(distinct))
            operands.append(tensor.to(cache.dtype) if cache.dtype is not None else tensor)
            axes.append(distinct)
        sizes = {axis: n for own, x in zip(axes, operands, strict=True) for axis, n in zip(own, x.shape, strict=True)}
        plan = plan_contraction(axes, self.output, sizes)
        found = contract(plan, operands, REAL)
        cache.is_lost = cache.is_lost or (may_look(found) and _is_lost(plan, operands, found.detach(), sizes))
        return found

    def given_modules(self) -> Iterator[nn.Module]:
        """The modules of the caller that it is made of."""
        for source in self.sources:
            if isinstance(source, Derived):
                yield from source.given_modules()
            elif isinstance(source, nn.Module):
                yield source

    @property
    def kind(self) -> Factor:
        """A source, for its dtype and device."""
        first = self.sources[0]
        return first.kind if isinstance(first, Derived) else first


def value_at(source: Factor, at: Mapping[int, Tensor], cache: FactorCache) -> Tensor:
    """The tensor of a factor at some entries of its axes, by place (none: whole); modules are called once."""
    if isinstance(source, Derived) and at:
        return source.value(cache, at)
    if not isinstance(source, Tensor) and id(source) not in cache:
        found = source if isinstance(source, Factored | Derived) else source()
        found = _of_ranks(found) if isinstance(found, Factored) else found
        cache[id(source)] = found.value(cache) if isinstance(found, Derived) else found
    tensor = source if isinstance(source, Tensor) else cache[id(source)]
    for place, index in at.items():
        tensor = tensor.index_select(place, index)
    return tensor


def _of_ranks(factor: Factored) -> Derived:
    """A factored tensor as one that is derived of its factors."""
    rank = len(factor.shape)
    return Derived([x for x, _ in factor.factors], [(*axes, rank) for _, axes in factor.factors], tuple(range(rank)))


@torch.no_grad()
def _is_lost(plan: Contraction, operands: Sequence[Tensor], found: Tensor, sizes: Mapping[int, int]) -> bool:
    """Whether an entry is infinite or so small that underflow may have taken digits of it, unless it is exactly 0."""
    tops = [float(x.amax()) for x in operands]
    level = sound_level(found.dtype, num_terms(sizes.values(), len(operands)))
    if not bool(torch.isfinite(found).all()):
        return True
    small = found < level * math.prod(max(1.0, top) for top in tops)
    if not bool(small.any()):
        return False
    return bool((small & (contract(plan, [SUPPORT.lift(x) for x in operands], SUPPORT) > 0)).any())


def derive(expression: Expression, sources: Mapping[str, Factor], batched: set[str]) -> Factor:
    """The factor of an expression; it leads with a batch where a source does."""
    labels = [label for label, _ in expression.inputs]
    if expression.is_plain:
        return sources[labels[0]]
    inputs = [(BATCH, *axes) if label in batched else axes for label, axes in expression.inputs]
    output = (BATCH, *expression.output) if not batched.isdisjoint(labels) else expression.output
    return Derived([sources[label] for label in labels], inputs, output)
