"""The priors of EM: pseudo-counts, forbidden transitions, the scale of features."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Prior(NamedTuple):
    """Log-densities added to the expected log-likelihood, and bounds on its maximum.

    smoothing times the logs of all starts, transitions that are not forbidden (of a low rank: of both factors),
    symbols, p and 1 - p of zeros and ones and of ends, and entries of duration tables; `initial`, `transition`,
    `emission` and `end` times
    the logs of the entries of those tables; of each variance v, in a feature of variance s,
    -variance_frames / 2 (log v + s / v); of each mean m -mean_frames / 2 (m - mean)^2 / v; and of each weight w of an
    input -weight_precision / 2 w^2.
    """

    smoothing: float = 0.0
    forbidden: Tensor | None = None  # "z y"       transitions of weight 0, of dense tables
    centre: Tensor | float = 0.0  # "f"            the mean of all frames, which statistics are taken around
    spread: Tensor | float = 1.0  # "f"            the variance of all frames
    min_variance: Tensor | float = 0.0  # "f"      no variance is below it
    variance_frames: float = 0.0  # as if each variance had seen so many frames of the variance of all
    mean: Tensor | float = 0.0  # "f"              the centre of the prior of means
    mean_frames: float = 0.0  # as if each mean had seen so many frames there
    initial: Tensor | float = 0.0  # "z"           counts of starts, besides `smoothing`
    transition: Tensor | float = 0.0  # "z y"      of dense transitions
    emission: Tensor | float = 0.0  # "z v"        of symbols
    end: Tensor | float = 0.0  # "z 2" or "2"      of ends, and of going on
    weight_precision: float = 0.0  # of a normal prior of the weights of inputs, around 0
    fixed: frozenset[str] = frozenset()  # names of tables that stay as they are
    fixed_entries: Tensor | None = None  # "z y"   transitions that stay as they are

    def of_shares(self, logits: Tensor, counts: Tensor | float) -> Tensor:  # "z v" -> ""
        """The log-density of a Dirichlet prior of tables whose rows are softmaxes, up to a constant.

        sum (smoothing + counts) log p; an entry without counts has no term, whatever its probability.
        """
        if not self.smoothing and not (isinstance(counts, Tensor) or counts):
            return torch.zeros((), dtype=torch.float64, device=logits.device)
        return weighted_logs(self.smoothing + counts, logits.double().log_softmax(1))

    def of_normals(self, mean: Tensor, variance: Tensor) -> Tensor:  # "z f", "z f" or "f" -> ""
        """-variance_frames / 2 sum (log v + spread / v) - mean_frames / 2 sum (m - mean)^2 / v; float64."""
        v = variance.double()
        total = torch.zeros((), dtype=torch.float64, device=v.device)
        if self.variance_frames:
            total = total - self.variance_frames / 2 * (v.log() + self.spread / v).sum()
        if self.mean_frames:
            total = total - self.mean_frames / 2 * ((mean.double() - self.mean).square() / v).sum()
        return total


class Table(NamedTuple):
    """A table of parameters in linear space, float64, and the axis along which it sums to 1."""

    value: Tensor
    axis: int | None = None
    positive: Literal["no", "or zero", "entries", "definite", "share"] = "no"  # what entries, or matrices, have to be


def weighted_logs(counts: Tensor | float, log_p: Tensor) -> Tensor:  # -> ""
    """sum counts log_p, entries without counts left out."""
    counts = torch.as_tensor(counts, dtype=log_p.dtype, device=log_p.device).expand_as(log_p)
    return (counts * log_p.masked_fill(counts == 0, 0.0)).sum()


def shares(counts: Tensor, axis: int = 1) -> Tensor:
    """Counts over their sum along an axis: the maximum of sum counts log p. Zeros where all are 0."""
    total = counts.sum(axis, keepdim=True)
    return counts / torch.where(total > 0, total, 1.0)


def log_shares(counts: Tensor, before: Tensor, axis: int = 1, added: Tensor | float = 0.0) -> Tensor:
    """The logarithms of the shares of counts + added; where all along the axis are 0, the previous values.

    Tables may be large: a number that is added costs no pass of its own, nor do previous values that nobody needs.
    """
    if isinstance(added, Tensor):
        counts, added = counts + added, 0.0
    total = counts.sum(axis, keepdim=True)
    if added > 0:
        total = total + added * counts.shape[axis]
        return torch.addcdiv(added / total, counts, total).log_()
    return torch.where(total > 0, (counts / total).log_(), before.to(counts))
