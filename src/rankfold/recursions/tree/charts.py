"""The common parts of both kinds of charts: cells by width, mantissas and scales, roots, labels.

All spans of a width are a diagonal of a table of starts and ends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.numerics.scaled import largest
from rankfold.recursions.tree.potentials import Forest


class Tops(NamedTuple):
    """The roots of all sentences."""

    log_z: Tensor  # "b"          float64
    span: Tensor  # "b n"         the mantissa of the whole sentence
    root: Tensor  # "b n"         exp(log_root) over its largest entry
    total: Tensor  # "b"          their product


def leaf_mantissas(f: Forest) -> tuple[Tensor, Tensor]:  # "b t p", "b t" float64
    """exp(log_leaf) over its largest entry, and the log of that; 0 beyond a length, so that spans there are 0 too."""
    log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
    top = largest(log_leaf)
    return torch.exp(log_leaf - top), top[..., 0].double()


def divisor(raw: Tensor) -> Tensor:  # "b s n" -> "b s 1"
    """The largest entry of each span; 1 for one without any weight, which leaves its scale that of its splits.

    A weight of exactly 0 may be all that keeps a span from having weight: its gradient goes through that span, in
    the scale of the splits there. Where such a scale is so high that what has weight falls below the dtype's range
    next to it, the checks of soundness see the loss.
    """
    norm = raw.amax(-1, keepdim=True)
    return torch.where(norm == 0, 1.0, norm)


def plus(scale: Tensor, log_scale: Tensor | float) -> Tensor:
    """A scale and that of rules; those of weights have none, which is known without a look."""
    return scale if isinstance(log_scale, float) and log_scale == 0.0 else scale + log_scale


def diagonal(grid: Tensor, offset: int) -> Tensor:  # "b e e r" -> "b s r", a view
    """The cells [i, i + offset]: the left sides of spans of a width, the right sides if it is negative."""
    return torch.diagonal(grid, offset, 1, 2).mT


def splits(grid: Tensor, width: int) -> tuple[Tensor, Tensor]:  # "b e e r" -> "b s k r" twice, views
    """Both sides of all splits of the spans of a width, by the number of words on the left, 1 to width - 1."""
    num, edge, _, rank = grid.shape
    size = (num, edge - width, width - 1, rank)
    strides = (edge * edge * rank, (edge + 1) * rank, rank, 1)
    left, right = rank, (width * edge + 1) * rank  # of words 0..0, at [0, 1]; of words 1..width-1, at [width, 1]
    return torch.as_strided(grid, size, strides, left), torch.as_strided(grid, size, strides, right)


class Labels(NamedTuple):
    """The most probable label of every span."""

    posterior: Tensor  # "b t+1 t+1"   of the span with that label; 0 where there is no span
    label: Tensor  # "b t+1 t+1"

    @classmethod
    def none(cls, f: Forest) -> Labels:
        posterior = torch.zeros(f.log_span.shape, dtype=torch.float64, device=f.log_span.device)
        return cls(posterior, torch.full_like(posterior, -1, dtype=torch.int64))

    def see(self, width: int, posterior: Tensor) -> None:  # "b s n"
        best = posterior.detach().argmax(-1, keepdim=True)
        torch.diagonal(self.posterior, width, 1, 2).copy_(posterior.detach().gather(-1, best)[..., 0])
        torch.diagonal(self.label, width, 1, 2).copy_(best[..., 0])

    def put(self, index: Tensor, part: Labels) -> None:  # "k"
        self.posterior[index], self.label[index] = part.posterior, part.label
