"""Gradients of the transition: one product over all positions, whatever the operator is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.log_space import log_weights
from rankfold.operators import Banded, Dense, LowRank, RowScaled, Sum, WithoutDiagonal
from rankfold.operators.protocol import Inner, Operator, knows_gradients, log_gradients
from rankfold.operators.sharded import whole_shard

Op = TypeVar("Op", bound=Operator)


class HasTransition(Protocol):
    """Problems with a transition: chains, segments."""

    @property
    def transition(self) -> Operator: ...


def factor_gradients(
    c: HasTransition, source: Tensor, target: Tensor, *, log: bool, inner: Inner | None = None
) -> tuple[Tensor, ...]:
    """The transition's share of a gradient: one product over all positions, differentiated to its factors.

    With `log`, `source` is a log-message and `target` the gradient of its pushed logarithm.
    """
    if not source.numel():
        return tuple(torch.zeros_like(factor) for factor in c.transition.factors())
    if not log and knows_gradients(c.transition):
        found = c.transition.gradients(source.flatten(0, -2), target.flatten(0, -2), inner)
        if found is not None:
            return found
    with torch.inference_mode(False), torch.enable_grad():
        factors = [_ordinary(factor).requires_grad_() for factor in c.transition.factors()]
        source, target = _ordinary(source), _ordinary(target)
        transition = c.transition.with_factors(*factors)
        pushed = transition.push_log(source) if log else transition.push(source)
        return torch.autograd.grad(pushed, factors, target, materialize_grads=True)


class HasFactors(Protocol):
    """Operators and rules."""

    def factors(self) -> tuple[Tensor, ...]: ...
    @property
    def log_factors(self) -> tuple[bool, ...]: ...


def count_uses(
    operator: HasFactors, grads: Sequence[Tensor], again: Callable[[float], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """How often each factor is used: factor x d log Z / d factor, also of weights so small that the latter overflows.

    `grads` may be wider than the factors; `again(weight)` gives the gradients of weight times log Z. It is called where
    even float64 overflows, with a weight of 2^-200, which loses nothing above 10^-240 of a use.
    """
    found = _uses(operator, grads)
    if may_look(found[0]) and not all(_is_finite(x) for x in found):
        smaller = (x * 2.0**200 for x in _uses(operator, again(2.0**-200)))
        found = [torch.where(torch.isfinite(x), x, y) for x, y in zip(found, smaller, strict=True)]
    return tuple(x.to(factor.dtype) for x, factor in zip(found, operator.factors(), strict=True))


def _uses(operator: HasFactors, grads: Sequence[Tensor]) -> list[Tensor]:
    return [
        grad if is_log else (factor * grad).masked_fill_(factor == 0, 0.0)
        for factor, grad, is_log in zip(operator.factors(), grads, operator.log_factors, strict=True)
    ]


def _is_finite(x: Tensor) -> bool:
    """Without a table of answers; NaN is the least and the largest of all."""
    return not x.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(x.detach()))


def to_double(operator: Op) -> Op:
    """The same operator in float64; differentiable."""
    return operator.with_factors(*(factor.double() for factor in operator.factors()))


def at_zeros(
    c: HasTransition,
    grads: Sequence[Tensor],
    log_source: Tensor,  # "t b z"
    log_target: Tensor,  # "t b z"
    log_z: Tensor,  # "b"
    weight: Tensor,  # "b"
) -> tuple[Tensor, ...]:
    """Gradients found in logarithms; at linear weights of exactly zero, which have none, those of the linear product.

    source[z] A[z, y] target[y] / Z is the expected use of a transition. An impossible sequence has log Z = inf. For
    the library's operators these gradients are found in logarithms, at any range; for others from linear products.
    """
    factors = c.transition.factors()
    zeros = [
        not is_log and (not may_look(factor) or bool((factor == 0).any()))
        for factor, is_log in zip(factors, c.transition.log_factors, strict=True)
    ]
    if (shard := whole_shard(c.transition)) is not None:  # all processes go on alike
        zeros = [shard.any(zero) for zero in zeros]
    if not any(zeros) or not log_source.numel():
        return tuple(grads)
    linear = _from_logs(c.transition, log_source, log_target - log_z[:, None], weight)
    if linear is None:
        linear = _from_products(c.transition, log_source, log_target, log_z, weight)
    return tuple(
        torch.where(factor == 0, line, by_log) if zero else by_log
        for factor, zero, by_log, line in zip(factors, zeros, grads, linear, strict=True)
    )


def _from_logs(op: Operator, log_source: Tensor, log_target: Tensor, weight: Tensor) -> list[Tensor] | None:
    """weight . source target^T pulled back to the linear weights of all factors; None for an operator unknown here."""
    total: list[Tensor] | None = None
    for sign in (1.0, -1.0):
        signed = log_weights(torch.where(weight * sign > 0, weight * sign, 0.0))
        if may_look(weight) and not bool((signed > float("-inf")).any()):
            continue
        target = (log_target + signed[:, None]).flatten(0, -2)
        found = log_gradients(op, log_source.flatten(0, -2), target)
        if found is None:
            return None
        part = [sign * torch.exp(x) for x in found]
        total = part if total is None else [x + y for x, y in zip(total, part, strict=True)]
    return [torch.zeros_like(x) for x in op.factors()] if total is None else total


def _from_products(op: Operator, log_source: Tensor, log_target: Tensor, log_z: Tensor, weight: Tensor) -> list[Tensor]:
    """The same from linear products: terms of a sum one by one, factors divided by their largest entry."""
    linear = [torch.zeros_like(factor) for factor in op.factors()]
    for term, places in _terms(op):
        tops = [_top(term, i) for i in range(len(places))]
        unit = term.with_factors(*(x / top for x, top in zip(term.factors(), tops, strict=True)))
        log_scale = unit.log_scale + torch.stack(tops).double().log().sum()
        source, target = _balanced(log_source, log_target, log_z - log_scale, _largest_side(unit))
        found = factor_gradients(_Only(unit), source, target * weight[:, None], log=False)
        for place, grad, top in zip(places, found, tops, strict=True):
            linear[place] = linear[place] + grad / top
    return linear


class _Only(NamedTuple):
    transition: Operator


def _terms(op: Operator) -> list[tuple[Operator, list[int]]]:
    """The operators that it is the sum of, and the factors that belong to each."""
    if isinstance(op, RowScaled):
        return [(op.over(term), [0, *(1 + i for i in places)]) for term, places in _terms(op.operator)]
    if not isinstance(op, Sum):
        return [(op, list(range(len(op.factors()))))]
    found, first = [], 0
    for one in op.terms:
        found += [(term, [first + i for i in places]) for term, places in _terms(one)]
        first += len(one.factors())
    return found


def _top(term: Operator, number: int) -> Tensor:
    """The largest entry of a linear factor that the whole operator is a multiple of; 1 of any other, and of none."""
    factor = term.factors()[number]
    inner: Operator = term
    while isinstance(inner, RowScaled):
        inner = inner.operator
    top = factor.detach().amax()
    usual = isinstance(inner, Dense | LowRank | Banded | WithoutDiagonal) and not term.log_factors[number]
    return torch.where(top > 0, top, 1.0) if usual else torch.ones_like(top)


def _balanced(log_source: Tensor, log_target: Tensor, log_z: Tensor, top: float) -> tuple[Tensor, Tensor]:
    """Linear sides of every transition: source[z] B[z, y] target[y] is its expected use.

    log Z is split so that the largest entries of both sides are equal. Then nothing that counts is lost, and
    only derivatives above 10^246 are cut: entries of either side at `top`.
    """
    high, low = log_source.amax(-1, keepdim=True), log_z[:, None] - log_target.amax(-1, keepdim=True)
    centre = (high + low) / 2
    centre = torch.where(centre.abs() < float("inf"), centre, 0.0)
    return (
        torch.exp(log_source - centre).clamp(max=top),
        torch.exp(log_target - (log_z[:, None] - centre)).clamp(max=top),
    )


def _largest_side(operator: Operator) -> float:
    """How large entries of both sides of a transition may be, so that their products with its weights stay finite.

    A captured graph cannot look at the weights: there their product is taken to be at most 10^60.
    """
    room = math.log(torch.finfo(torch.float64).max)
    linear = [x for x, is_log in zip(operator.factors(), operator.log_factors, strict=True) if not is_log]
    if not all(may_look(x) for x in linear):
        return math.exp(0.4 * room)
    return math.exp((room - sum(math.log(max(1.0, float(x.amax()))) for x in linear)) / 2 - 10)  # for 10^8 terms


def _ordinary(x: Tensor) -> Tensor:
    """The tensor without history, a copy where it was made in inference mode and autograd would refuse it."""
    return x.clone() if x.is_inference() else x.detach()
