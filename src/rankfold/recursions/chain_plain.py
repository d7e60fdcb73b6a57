"""The same recursion as a plain loop that autograd can follow, any number of times.

`chain.log_z` is one autograd function and much faster; when its gradient is itself differentiated, it
retraces its steps here. Read next: `numerics/times_log.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.scaled import Scaled
from rankfold.numerics.times_log import times_log
from rankfold.recursions.chain_log import observations
from rankfold.recursions.potentials import Chain


def forward(c: Chain) -> Scaled:  # Scaled "t b z"
    """The filtered messages p(x_1..t, z_t), largest entry 1."""
    log_obs = observations(c)
    x = times_log(Scaled.from_log(c.log_initial), log_obs[0])
    steps = [x]
    for t in range(1, len(log_obs)):
        pushed = c.transition.push(x.mantissa).to(log_obs.dtype)
        x = times_log(Scaled(pushed, x.log_scale + c.transition.log_scale), log_obs[t])
        steps.append(x)
    return _stack(steps)


def future(c: Chain) -> Scaled:  # Scaled "t b z"
    """The messages p(x_t+1..T | z_t), log_final included, largest entry 1; log_final beyond the length."""
    log_obs = observations(c)
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
