"""Gradients of the transition: one product over all positions, whatever the operator is made of.

Read next: `recursions/chain_scaled.py`, which prepares the two sides of that product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.potentials import Chain


def factor_gradients(c: Chain, source: Tensor, target: Tensor, *, log: bool) -> tuple[Tensor, ...]:
    """The transition's share of a gradient: one product over all positions, differentiated to its factors.

    With `log`, `source` is a log-message and `target` the gradient of its pushed logarithm.
    """
    factors = [factor.detach().requires_grad_() for factor in c.transition.factors()]
    if not source.numel():
        return tuple(torch.zeros_like(factor) for factor in factors)
    with torch.enable_grad():
        transition = c.transition.with_factors(*factors)
        pushed = transition.push_log(source) if log else transition.push(source)
    return torch.autograd.grad(pushed, factors, target, materialize_grads=True)
