"""Forward-backward in log arithmetic, float64: any range, one exponential for every term of a product.

The last resort of `chain.log_z` and what `arithmetic="log"` asks for. Read next: `kernels/log_matmul`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.recursions.factors import at_zeros, factor_gradients
from rankfold.recursions.potentials import Chain


def forward(c: Chain) -> tuple[Tensor, Tensor]:  # "t b z", "b"
    """log p(x_1..t, z_t) and log Z; differentiable, but for weights that are exactly zero."""
    log_obs = observations(c)
    message = c.log_initial + log_obs[0]
    messages = [message]
    for t in range(1, len(log_obs)):
        message = c.transition.push_log(message) + log_obs[t]
        messages.append(message)
    filtered = torch.stack(messages)
    return filtered, log_sum(c.last(filtered) + c.log_final)


def future(c: Chain) -> Tensor:  # "t b z"
    """log p(x_t+1..T | z_t), log_final included; 0 beyond the length."""
    log_obs = observations(c)
    message = c.log_final
    messages = [message]
    for t in reversed(range(len(log_obs) - 1)):
        message = c.transition.pull_log(message + log_obs[t + 1])
        message = torch.where((c.lengths <= t + 1)[:, None], c.log_final, message)
        messages.append(message)
    return torch.stack(messages[::-1])


def observations(c: Chain) -> Tensor:  # "t b z"
    """log_obs, 0 beyond the length."""
    return torch.where(c.inside().unsqueeze(-1), c.log_obs, 0.0).transpose(0, 1)


def gradients(c: Chain, filtered: Tensor, log_z: Tensor, weight: Tensor, *, of_transition: bool) -> tuple[Tensor, ...]:
    """d (weight . log Z) / d (log_initial, log_obs, log_final, *factors); 0 for impossible sequences."""
    possible = log_z > float("-inf")
    log_total = torch.where(possible, log_z, 0.0)
    after = future(c)
    inside = c.inside().mT & possible
    here = torch.where(inside, weight, 0.0)  # "t b"
    posterior = torch.exp(torch.where(inside.unsqueeze(-1), filtered + after - log_total[:, None], float("-inf")))
    weighted = posterior * here.unsqueeze(-1)
    ends = (weighted[0].clone(), weighted.transpose(0, 1), c.last(weighted))
    if not of_transition:
        return ends
    grads = factor_gradients(c, filtered[:-1], weighted[1:], log=True)

    # In logs no range is too wide, but a linear weight of exactly zero has no logarithm to differentiate:
    # there the gradient comes from the linear product, where it is an ordinary number.
    ahead = torch.where(inside.unsqueeze(-1), observations(c) + after, float("-inf"))[1:]
    log_total = torch.where(possible, log_z, float("inf"))
    return (*ends, *at_zeros(c, grads, filtered[:-1], ahead, log_total, weight))
