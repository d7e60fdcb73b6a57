"""Forward-backward as plain loops that autograd can follow, any number of times: on scaled vectors, and in logarithms.

`log_z` retraces its steps on scaled vectors when its gradient is differentiated. Logarithms in float64 have any range,
for one exponential per term of a product: the last resort of `log_z`, and the choice of `arithmetic="log"`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import Scaled
from rankfold.numerics.times_log import times_log
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.factor_gradients import at_zeros, factor_gradients


def forward(c: Chain) -> Scaled:  # Scaled "t b z"
    """The filtered messages p(x_1..t, z_t), largest entry 1."""
    log_obs = c.observations()
    x = times_log(Scaled.from_log(c.log_initial), log_obs[0])
    steps = [x]
    for t in range(1, len(log_obs)):
        pushed = c.transition.push(x.mantissa).to(log_obs.dtype)
        x = times_log(Scaled(pushed, x.log_scale + c.transition.log_scale), log_obs[t])
        steps.append(x)
    return _stack(steps)


def future(c: Chain) -> Scaled:  # Scaled "t b z"
    """The messages p(x_t+1..T | z_t), log_final included, largest entry 1; log_final beyond the length."""
    log_obs = c.observations()
    end = Scaled.from_log(c.log_final)
    x, steps = end, [end]
    for t in reversed(range(len(log_obs) - 1)):
        x = times_log(x, log_obs[t + 1])
        pulled = c.transition.pull(x.mantissa).to(log_obs.dtype)
        x = times_log(Scaled(pulled, x.log_scale + c.transition.log_scale), torch.zeros_like(pulled))
        at_end = c.lengths <= t + 1
        x = Scaled(
            torch.where(at_end[:, None], end.mantissa, x.mantissa), torch.where(at_end, end.log_scale, x.log_scale)
        )
        steps.append(x)
    return _stack(steps[::-1])


def log_z(c: Chain) -> Tensor:  # "b"   float64
    """log Z; for sequences whose Z is above zero."""
    filtered = forward(c)
    last = Scaled(c.last(filtered.mantissa), c.last(filtered.log_scale))
    end = times_log(last, c.log_final)
    return end.mantissa.double().sum(-1).log() + end.log_scale


def _stack(steps: list[Scaled]) -> Scaled:
    return Scaled(torch.stack([x.mantissa for x in steps]), torch.stack([x.log_scale for x in steps]))


def forward_in_logs(c: Chain) -> tuple[Tensor, Tensor]:  # "t b z", "b"
    """log p(x_1..t, z_t) and log Z; differentiable, but for weights that are exactly zero."""
    log_obs = c.observations()
    message = c.log_initial + log_obs[0]
    messages = [message]
    for t in range(1, len(log_obs)):
        message = c.transition.push_log(message) + log_obs[t]
        messages.append(message)
    filtered = torch.stack(messages)
    last = log_sum(c.last(filtered) + c.log_final)
    return filtered, last if c.shard is None else c.shard.log_sum(last)


def future_in_logs(c: Chain) -> Tensor:  # "t b z"
    """log p(x_t+1..T | z_t), log_final included; 0 beyond the length."""
    log_obs = c.observations()
    message = c.log_final
    messages = [message]
    for t in reversed(range(len(log_obs) - 1)):
        message = c.transition.pull_log(message + log_obs[t + 1])
        message = torch.where((c.lengths <= t + 1)[:, None], c.log_final, message)
        messages.append(message)
    return torch.stack(messages[::-1])


def gradients_in_logs(
    c: Chain, filtered: Tensor, log_z: Tensor, weight: Tensor, *, of_transition: bool
) -> tuple[Tensor, ...]:
    """d (weight . log Z) / d (log_initial, log_obs, log_final, *factors); 0 for impossible sequences."""
    possible = log_z > float("-inf")
    log_total = torch.where(possible, log_z, 0.0)
    after = future_in_logs(c)
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
    ahead = torch.where(inside.unsqueeze(-1), c.observations() + after, float("-inf"))[1:]
    log_total = torch.where(possible, log_z, float("inf"))
    return (*ends, *at_zeros(c, grads, filtered[:-1], ahead, log_total, weight))
