"""Posteriors and expected counts: derivatives of log Z.

Read next: `recursions/chain.py`, where the derivative is forward-backward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.recursions.chain import log_z
from rankfold.recursions.potentials import ChainPotentials, checked


class ExpectedCounts(NamedTuple):
    """How often each part is used, in expectation under the posterior."""

    initial: Tensor  # "z"                  summed over sequences
    transition: tuple[Tensor, ...]  # like the operator's factors(), summed over sequences and positions
    states: Tensor  # "b t z"               the state posterior


def state_posterior(p: ChainPotentials) -> Tensor:  # "b t z"
    """The probability of every state at every position given its whole sequence.

        posterior_t[z] = p(z_t = z | x) = d log Z / d log_obs_t[z]

    Zero beyond a length and for impossible sequences. Differentiable where the potentials are (it may
    enter a loss). Cost: one forward and one backward pass. Not the best path: see `viterbi`.
    """
    p, tracked = _followed(p)
    with torch.enable_grad():
        log_obs = p.log_obs if p.log_obs.requires_grad else p.log_obs.detach().requires_grad_()
        total = log_z(p._replace(log_obs=log_obs)).sum()
        return torch.autograd.grad(total, log_obs, create_graph=tracked)[0]


def expected_counts(p: ChainPotentials) -> ExpectedCounts:
    """The expected number of uses of each initial state, transition factor and state: the E step of EM.

    Transitions are counted through the operator's own factors, factor x d log Z / d factor: "z y" moves for
    a dense one, "z k" for a band, and for a low-rank one the uses of (source, rank) and of (target, rank).
    Nothing of size z y appears unless the operator is dense. Differentiable where the potentials are.
    """
    p, tracked = _followed(p)
    with torch.enable_grad():
        inputs = [p.log_initial, p.log_obs, *p.transition.factors()]
        inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in inputs]
        transition = p.transition.with_factors(*inputs[2:])
        total = log_z(p._replace(log_initial=inputs[0], log_obs=inputs[1], transition=transition)).sum()
        initial, states, *grads = torch.autograd.grad(total, inputs, create_graph=tracked)
        counts = tuple(
            grad if is_log else torch.where(factor == 0, 0.0, factor * grad)
            for factor, grad, is_log in zip(inputs[2:], grads, transition.log_factors, strict=True)
        )
        counts = counts if tracked else tuple(count.detach() for count in counts)
    return ExpectedCounts(initial if initial.ndim == 1 else initial.sum(0), counts, states)


def _followed(p: ChainPotentials) -> tuple[ChainPotentials, bool]:
    """The checked potentials, and whether autograd follows them; detached if it does not."""
    c = checked(p)
    if torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors()):
        return p, True
    log_final = None if p.log_final is None else p.log_final.detach()
    c = c.detach()
    return ChainPotentials(p.log_initial.detach(), c.transition, c.log_obs, log_final, p.lengths), False
