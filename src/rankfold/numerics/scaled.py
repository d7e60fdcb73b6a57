"""Vectors kept as a mantissa near one and the logarithm of their scale.

Matrix products run on mantissas in linear space, where tensor cores apply; scales add up in float64, so
a sequence of any length neither overflows nor loses digits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Scaled(NamedTuple):
    """The non-negative vector `mantissa * exp(log_scale)[..., None]`.

    After a rescale the largest entry of a mantissa is 1; a zero vector has a zero mantissa. Entries more
    than 87 nats (float32; 708 in float64) below the largest of their own vector are zero.
    """

    mantissa: Tensor  # "... z"
    log_scale: Tensor  # "..."   float64, whatever the mantissa is

    @classmethod
    def from_log(cls, log_x: Tensor) -> Scaled:  # "... z"
        """The vector whose logarithm is given, its largest entry scaled to 1."""
        top = largest(log_x)
        return cls(torch.exp(log_x - top), top.squeeze(-1).double())

    def log(self) -> Tensor:  # "... z"   float64
        """The logarithm of the vector, -inf where it is zero."""
        return self.mantissa.double().log() + self.log_scale.unsqueeze(-1)


def visible(dtype: torch.dtype) -> float:
    """The least number next to which a loss to underflow, below the smallest normal number, is lost in the rounding."""
    info = torch.finfo(dtype)
    return info.tiny / info.eps


def largest(log_x: Tensor) -> Tensor:  # "... z" -> "... 1"
    """The largest entry of each vector, a constant to autograd; 0 for a vector of -inf."""
    top = log_x.detach().amax(-1, keepdim=True)
    return torch.where(top > float("-inf"), top, 0.0)
