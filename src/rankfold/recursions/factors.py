"""Gradients of the transition: one product over all positions, whatever the operator is made of.

Read next: `recursions/chain_scaled.py`, which prepares the two sides of that product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.operators.protocol import Inner, KnowsGradients, Operator

Op = TypeVar("Op", bound=Operator)


class Moves(Protocol):
    """Whatever has a transition: chains, segments."""

    @property
    def transition(self) -> Operator: ...


def factor_gradients(
    c: Moves, source: Tensor, target: Tensor, *, log: bool, inner: Inner | None = None
) -> tuple[Tensor, ...]:
    """The transition's share of a gradient: one product over all positions, differentiated to its factors.

    With `log`, `source` is a log-message and `target` the gradient of its pushed logarithm.
    """
    if not source.numel():
        return tuple(torch.zeros_like(factor) for factor in c.transition.factors())
    if not log and isinstance(c.transition, KnowsGradients):
        found = c.transition.gradients(source.flatten(0, -2), target.flatten(0, -2), inner)
        if found is not None:
            return found
    with torch.inference_mode(False), torch.enable_grad():
        factors = [_ordinary(factor).requires_grad_() for factor in c.transition.factors()]
        source, target = _ordinary(source), _ordinary(target)
        transition = c.transition.with_factors(*factors)
        pushed = transition.push_log(source) if log else transition.push(source)
        return torch.autograd.grad(pushed, factors, target, materialize_grads=True)


def counted(
    operator: Operator, grads: Sequence[Tensor], again: Callable[[float], Sequence[Tensor]]
) -> tuple[Tensor, ...]:
    """How often each factor is used: factor x d log Z / d factor, also of weights so small that the latter overflows.

    `grads` may be wider than the factors; `again(weight)` gives those of weight times log Z. They are asked for where
    even float64 overflows: smaller by 2^200, which loses nothing above 10^-240 of a use.
    """
    found = _uses(operator, grads)
    if may_look(found[0]) and not all(bool(torch.isfinite(x).all()) for x in found):
        smaller = (x * 2.0**200 for x in _uses(operator, again(2.0**-200)))
        found = [torch.where(torch.isfinite(x), x, y) for x, y in zip(found, smaller, strict=True)]
    return tuple(x.to(factor.dtype) for x, factor in zip(found, operator.factors(), strict=True))


def _uses(operator: Operator, grads: Sequence[Tensor]) -> list[Tensor]:
    return [
        grad if is_log else torch.where(factor == 0, 0.0, factor * grad)
        for factor, grad, is_log in zip(operator.factors(), grads, operator.log_factors, strict=True)
    ]


def doubled(operator: Op) -> Op:
    """The same operator in float64; differentiable."""
    return operator.with_factors(*(factor.double() for factor in operator.factors()))


def largest_side(operator: Operator) -> float:
    """How large entries of both sides of a transition may be, so that their products with its weights stay finite."""
    logs = [
        math.log(max(1.0, float(factor.amax())))
        for factor, is_log in zip(operator.factors(), operator.log_factors, strict=True)
        if not is_log
    ]
    room = math.log(torch.finfo(torch.float64).max)
    return math.exp(min(0.4 * room, 0.5 * (room - sum(logs)) - 10))  # with room for sums of 10^8 terms


def _ordinary(x: Tensor) -> Tensor:
    """The tensor without history, a copy where it was made in inference mode and autograd would refuse it."""
    return x.clone() if x.is_inference() else x.detach()
