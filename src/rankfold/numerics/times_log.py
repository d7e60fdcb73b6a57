"""The emission step: a scaled vector times weights given by their logarithms, rescaled.

One autograd function, because the obvious compositions are wrong at exact zeros: a log of the vector
has no gradient there, and a patched one gives wrong gradients to the weights that led to the zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rankfold.numerics.function import Function
from rankfold.numerics.scaled import Scaled


def times_log(x: Scaled, log_w: Tensor) -> Scaled:  # Scaled "... z", "... z" -> Scaled "... z"
    """The pointwise product `x * exp(log_w)`, its largest entry scaled to 1.

        y = x exp(log_w - m),   m = max_z (log x + log_w),   log_scale + m

    `m` is a constant to autograd (the product does not depend on it). Right at zeros: where x = 0 the
    gradient of x is exp(log_w - m), not 0; where log_w = -inf both are 0. Twice differentiable.
    """
    with torch.no_grad():
        # In float64: among logs of thousands of nats, float32 would not find the largest.
        best = (x.mantissa.double().log() + log_w.double()).argmax(-1, keepdim=True)
        scale, log_shift = x.mantissa.gather(-1, best), log_w.expand_as(x.mantissa).gather(-1, best)
        empty = (scale == 0) | (log_shift == float("-inf"))
        scale, log_shift = scale.masked_fill(empty, 1.0), log_shift.masked_fill(empty, 0.0)
        log_m = log_shift.double() + scale.double().log()
    mantissa = _TimesLog.apply(x.mantissa, log_w, scale, log_shift)
    return Scaled(mantissa, x.log_scale + log_m.squeeze(-1))


class _TimesLog(Function):
    """y = (x / scale) exp(log_w - log_shift); scale and log_shift are constants that make max y = 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_w: Tensor, scale: Tensor, log_shift: Tensor) -> Tensor:
        # Subtracting log_w's own entry, not log x + log_w, keeps all digits when |log_w| is large.
        y = (x / scale) * torch.exp(log_w - log_shift)
        # An entry of x that is zero stays zero whatever its weight; y <= 1 by the choice of the constants
        # (only the overflow of exp at a denormal x could say otherwise).
        y = y.masked_fill(x == 0, 0.0).clamp(max=1.0)
        ctx.save_for_backward(log_w, scale, log_shift, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_y,) = grads
        log_w, scale, log_shift, y = ctx.saved_tensors
        # In tensors that autograd knows (inputs and the output), so that a second derivative follows.
        # A weight too large for the dtype becomes the largest number: 0 times it is 0, as it must be. One exponential
        # of both constants, in float64: a quotient by a tiny scale would overflow where the weight is 0, too.
        top = math.log(torch.finfo(log_w.dtype).max) - 1  # its exponential must not round to infinity
        log_weight = (log_w - log_shift).double() - scale.double().log()
        grad_x = grad_y * torch.exp(log_weight.clamp(max=top)).to(grad_y.dtype)
        grad_log_w = grad_y * y
        return grad_x, grad_log_w.sum_to_size(log_w.shape), None, None
