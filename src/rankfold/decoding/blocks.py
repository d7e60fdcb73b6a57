"""Posteriors and entropies of chains of blocks: derivatives of log Z, and nothing else.

Read next: `recursions/blocks`, where the derivative is forward-backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.recursions.blocks import BlockPotentials, log_z, validate


def block_posterior(p: BlockPotentials) -> Tensor:  # "b t k"
    """The probability of every state of a position's block given the whole sequence.

        posterior_t[i] = p(i_t = i | x) = d log Z / d log_obs_t[i]

    Zero beyond a length and for impossible sequences. Differentiable where the potentials are (it may enter a
    loss). Cost: one forward and one backward pass. Not the best path: see `chain_blocks.best_path`.
    """
    p, followed = _followed(p)
    with torch.enable_grad():
        log_obs = _asked(p.log_obs)
        total = log_z(p._replace(log_obs=log_obs)).sum()
        return torch.autograd.grad(total, log_obs, create_graph=followed)[0]


def block_entropy(p: BlockPotentials) -> Tensor:  # "b"   float64
    """The entropy, in nats, of the state path given the sequence.

        H(i_1..i_T | x) = log Z - E[log weight of the path],    E[log weight] = sum theta * d log Z / d theta

    over all log-weights theta, because d log Z / d theta is how often theta is used; 0 * -inf is 0. Computed in
    float64. 0 for impossible sequences, which have no path to be unsure of. Differentiable where the potentials
    are (a weight of zero gets no gradient: the true one is infinite). Cost: one forward and one backward pass.
    """
    p, followed = _followed(p)
    with torch.enable_grad():
        log_initial, log_transition, log_obs = thetas = [_asked(x.double()) for x in p[:3]]
        total = log_z(BlockPotentials(log_initial, log_transition, log_obs, p.block, p.lengths))
        uses = torch.autograd.grad(total.sum(), thetas, create_graph=followed)
        # Beyond a length a weight may be NaN: what is not used does not count.
        parts = (torch.where(use > 0, theta, 0.0) * use for theta, use in zip(thetas, uses, strict=True))
        expected = sum(part.flatten(1).sum(-1) for part in parts)
        possible = total > float("-inf")
        out = torch.where(possible, torch.where(possible, total, 0.0) - expected, 0.0)
    return out if followed else out.detach()


def _followed(p: BlockPotentials) -> tuple[BlockPotentials, bool]:
    """The potentials and whether autograd follows them; detached where it does not."""
    c = validate(p)
    if torch.is_grad_enabled() and any(x.requires_grad for x in c.tensors()):
        return p, True
    c = c.detach()
    return p._replace(log_initial=c.log_initial, log_transition=c.log_transition, log_obs=c.log_obs), False


def _asked(x: Tensor) -> Tensor:
    """A tensor to ask a gradient of; a view, because inputs may be made of one another."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
