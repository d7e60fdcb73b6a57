"""Gradients of the transition: one product over all positions, whatever the operator is made of.

Read next: `recursions/chain_scaled.py`, which prepares the two sides of that product.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rankfold.operators.protocol import Inner, KnowsGradients, Operator


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


def _ordinary(x: Tensor) -> Tensor:
    """The tensor without history, a copy where it was made in inference mode and autograd would refuse it."""
    return x.clone() if x.is_inference() else x.detach()
