"""Posteriors and expected counts: derivatives of log Z.

Read next: `recursions/chain`, where the derivative is forward-backward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.recursions.chain import log_z
from rankfold.recursions.chain.potentials import Chain, ChainPotentials, validate
from rankfold.recursions.chain.rungs import solve
from rankfold.recursions.factor_gradients import counted


class ExpectedCounts(NamedTuple):
    """How often each part is used, in expectation under the posterior."""

    initial: Tensor  # "z"                  summed over sequences
    transition: tuple[Tensor, ...]  # like the operator's factors(), summed over sequences and positions
    states: Tensor  # "b t z"               the state posterior
    log_z: Tensor  # "b"                    what they are derivatives of, float64


def state_posterior(p: ChainPotentials) -> Tensor:  # "b t z"
    """The probability of every state at every position given its whole sequence.

        posterior_t[z] = p(z_t = z | x) = d log Z / d log_obs_t[z]

    Zero beyond a length and for impossible sequences. Differentiable where the potentials are (it may
    enter a loss). Cost: one forward and one backward pass. Not the best path: see `viterbi`.
    """
    c = validate(p)
    if not _followed(c):
        with torch.no_grad():
            solution = solve(c.detach(), "scaled", "float32")
            return solution.gradients(torch.ones_like(solution.log_z), of_factors=False)[1].to(c.log_obs.dtype)
    log_obs = p.log_obs.view_as(p.log_obs) if p.log_obs.requires_grad else p.log_obs.detach().requires_grad_()
    total = log_z(p._replace(log_obs=log_obs)).sum()
    return torch.autograd.grad(total, log_obs, create_graph=True)[0]


def expected_counts(p: ChainPotentials) -> ExpectedCounts:
    """The expected number of uses of each initial state, transition factor and state: the E step of EM.

    Transitions are counted through the operator's own factors, factor x d log Z / d factor: "z y" moves for
    a dense one, "z k" for a band, and for a low-rank one the uses of (source, rank) and of (target, rank).
    Nothing of size z y appears unless the operator is dense. Differentiable where the potentials are.
    """
    c = validate(p)
    if _followed(c):
        total, initial, states, *grads = _derivatives(p)
        counts = counted(p.transition, grads, lambda weight: _derivatives(p, weight)[3:])
        return ExpectedCounts(initial if initial.ndim == 1 else initial.sum(0), counts, states, total)
    with torch.no_grad():
        solution = solve(c.detach(), "scaled", "float32")
        one = torch.ones_like(solution.log_z)
        initial, states, _, *grads = solution.gradients(one, of_factors=True)
        counts = counted(c.transition, grads, lambda weight: solution.gradients(one * weight, of_factors=True)[3:])
    dtype = c.log_obs.dtype
    return ExpectedCounts(initial.sum(0).to(dtype), counts, states.to(dtype), solution.log_z)


def _derivatives(p: ChainPotentials, weight: float | None = None) -> tuple[Tensor, ...]:
    """log Z and d log Z / d (log_initial, log_obs, *factors) with a graph; of weight times log Z in float64."""
    # Views, because inputs may be made of one another: only the last step to each is asked for.
    inputs = [p.log_initial, p.log_obs, *p.transition.factors()]
    inputs = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in inputs]
    log_final = p.log_final
    if weight is not None:
        inputs, log_final = [x.double() for x in inputs], None if log_final is None else log_final.double()
    initial, log_obs, *factors = inputs
    q = ChainPotentials(initial, p.transition.with_factors(*factors), log_obs, log_final, p.lengths)
    total = log_z(q)
    scaled = total.sum() * (1.0 if weight is None else weight)
    return total, *torch.autograd.grad(scaled, inputs, create_graph=True)


def _followed(c: Chain) -> bool:
    """Whether autograd follows the potentials."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors())
