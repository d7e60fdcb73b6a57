"""The sum over segmentations as a plain loop that autograd can follow, any number of times.

`semi_markov.log_z` is one autograd function; when its gradient is itself differentiated, it retraces its steps
here, with every window kept. In logarithms; where linear weights of the transition are exactly zero, and a
logarithm has no derivative, on scaled vectors. Read next: `numerics/times_log.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import Scaled
from rankfold.numerics.times_log import times_log
from rankfold.recursions.segments.potentials import Segments


def log_z_in_logs(c: Segments) -> Tensor:  # "b"   float64
    """log Z in logarithms, any range."""
    c = c.double()
    durations, closings, frames = c.durations(), c.closings(), c.observations()
    window = _start(c)  # "b d z"
    last = window
    for t, frame in enumerate(frames):
        if t or c.carried:
            opened = c.transition.push_log(log_sum((window + durations).transpose(1, 2)))
            window = torch.cat([opened.unsqueeze(1), window[:, :-1]], 1)
        window = window + frame.unsqueeze(1)
        last = torch.where((c.lengths == t + 1)[:, None, None], window, last)
    return log_sum((last + closings + c.log_final.unsqueeze(1)).flatten(1))


def log_z_scaled(c: Segments) -> Tensor:  # "b"   float64
    """The same on scaled vectors, right at weights of zero; a window holds what lies within 708 nats."""
    c = c.double()
    log_durations, closings, frames = c.durations(), c.closings(), c.observations()
    top = log_durations.detach().amax()
    top = torch.where(top > float("-inf"), top, 0.0)
    durations = torch.exp(log_durations - top)
    shape = (len(c.lengths), c.longest, c.log_obs.shape[-1])
    x = Scaled.from_log(_start(c).flatten(1))
    last = x
    fresh = torch.zeros_like(durations)
    fresh[0] = top + c.transition.log_scale  # of what was opened at this frame, beside the scale it shares
    for t, frame in enumerate(frames):
        log_w = frame.unsqueeze(1).expand(shape)
        if t or c.carried:
            window = x.mantissa.reshape(shape)
            opened = c.transition.push((window * durations).sum(1))
            x = Scaled(torch.cat([opened.unsqueeze(1), window[:, :-1]], 1).flatten(1), x.log_scale)
            log_w = log_w + fresh
        x = times_log(x, log_w.flatten(1))
        at_end = c.lengths == t + 1
        last = Scaled(
            torch.where(at_end[:, None], x.mantissa, last.mantissa), torch.where(at_end, x.log_scale, last.log_scale)
        )
    end = times_log(last, (closings + c.log_final.unsqueeze(1)).flatten(1))
    return end.mantissa.sum(-1).log() + end.log_scale


def _start(c: Segments) -> Tensor:  # "b d z"
    """The open segments before the first frame is added."""
    if c.carried:
        return c.log_initial
    nothing = c.log_initial.new_full((len(c.lengths), c.longest - 1, c.log_initial.shape[-1]), float("-inf"))
    return torch.cat([c.log_initial.unsqueeze(1), nothing], 1)
