"""The priors of EM: pseudo-counts, forbidden transitions, the scale of features."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Prior(NamedTuple):
    """Log-densities added to the expected log-likelihood, and bounds on its maximum.

    smoothing times the logs of all starts, transitions that are not forbidden (of a low rank: of both factors),
    symbols, p and 1 - p of zeros and ones, and entries of duration tables; and of each variance v, in a feature of
    variance s, -variance_frames / 2 (log v + s / v).
    """

    smoothing: float = 0.0
    forbidden: Tensor | None = None  # "z y"       transitions of weight 0, of dense tables
    centre: Tensor | float = 0.0  # "f"            the mean of all frames, which statistics are taken around
    spread: Tensor | float = 1.0  # "f"            the variance of all frames
    min_variance: Tensor | float = 0.0  # "f"      no variance is below it
    variance_frames: float = 0.0  # as if each variance had seen so many frames of the variance of all


class Table(NamedTuple):
    """A table of parameters in linear space, float64, and the axis along which it sums to 1."""

    value: Tensor
    axis: int | None = None


def shares(counts: Tensor, axis: int = 1) -> Tensor:
    """Counts over their sum along an axis: the maximum of sum counts log p. Zeros where all are 0."""
    total = counts.sum(axis, keepdim=True)
    return counts / torch.where(total > 0, total, 1.0)


def log_shares(counts: Tensor, before: Tensor, axis: int = 1) -> Tensor:
    """The logarithms of the shares; where all counts along the axis are 0, the previous values."""
    return torch.where(counts.sum(axis, keepdim=True) > 0, shares(counts, axis).log(), before.to(counts))
