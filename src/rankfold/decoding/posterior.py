"""Posteriors and expected counts: derivatives of log Z.

Read next: `recursions/chain.py`, where the derivative is forward-backward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.recursions.chain import log_z
from rankfold.recursions.chain_solve import solve
from rankfold.recursions.potentials import Chain, ChainPotentials, checked


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
    c = checked(p)
    if not _followed(c):
        with torch.no_grad():
            return _gradients(c, of_transition=False)[1]
    log_obs = p.log_obs.view_as(p.log_obs) if p.log_obs.requires_grad else p.log_obs.detach().requires_grad_()
    total = log_z(p._replace(log_obs=log_obs)).sum()
    return torch.autograd.grad(total, log_obs, create_graph=True)[0]


def expected_counts(p: ChainPotentials) -> ExpectedCounts:
    """The expected number of uses of each initial state, transition factor and state: the E step of EM.

    Transitions are counted through the operator's own factors, factor x d log Z / d factor: "z y" moves for
    a dense one, "z k" for a band, and for a low-rank one the uses of (source, rank) and of (target, rank).
    Nothing of size z y appears unless the operator is dense. Differentiable where the potentials are.
    """
    c = checked(p)
    factors = p.transition.factors()
    if not _followed(c):
        with torch.no_grad():
            initial, states, _, *grads = _gradients(c, of_transition=True)
    else:
        # Views, because inputs may be made of one another: only the last step to each is asked for.
        inputs = [p.log_initial, p.log_obs, *factors]
        inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs]
        q = p._replace(log_initial=inputs[0], log_obs=inputs[1], transition=p.transition.with_factors(*inputs[2:]))
        initial, states, *grads = torch.autograd.grad(log_z(q).sum(), inputs, create_graph=True)
    counts = tuple(
        grad if is_log else torch.where(factor == 0, 0.0, factor * grad)
        for factor, grad, is_log in zip(factors, grads, p.transition.log_factors, strict=True)
    )
    return ExpectedCounts(initial if initial.ndim == 1 else initial.sum(0), counts, states)


def _followed(c: Chain) -> bool:
    """Whether autograd follows the potentials."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors())


def _gradients(c: Chain, *, of_transition: bool) -> list[Tensor]:
    """d log Z / d (log_initial, log_obs, log_final, *factors), without autograd."""
    solution = solve(c.detach(), "scaled", "float32")
    grads = solution.gradients(torch.ones_like(solution.log_z), of_transition=of_transition)
    return [grad.to(c.log_obs.dtype) for grad in grads]
