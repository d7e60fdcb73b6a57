"""Feature maps of the generalised softmax: exp(x W), also with -|x|^2 / 2, W learned.

Read next: `params/transitions.py`, where they become a low-rank matrix.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

FeatureKind = Literal["exp", "positive"]


class FeatureMap(nn.Module):
    """log phi(x) = x W  ("exp"), or  x W - |x|^2 / 2  ("positive").   Cost: d r multiply-adds a vector.

    With Gaussian W the second is an unbiased estimate of the softmax kernel: E phi(x) . phi(y) / r = exp(x . y).
    Source: Choromanski et al. 2021; Chiu, Deng, Rush 2021, App. F and G.
    """

    def __init__(self, dim: int, rank: int, *, kind: FeatureKind, generator: torch.Generator) -> None:
        super().__init__()
        self.kind = kind
        self.projection = nn.Parameter(orthogonal_features(dim, rank, generator=generator))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:  # "... d", "k" -> "... k"
        projection = self.projection if keep is None else self.projection.index_select(1, keep)
        log_phi = x @ projection
        return log_phi - x.square().sum(-1, keepdim=True) / 2 if self.kind == "positive" else log_phi


class FreeFeatures(nn.Module):
    """log phi(x) = x: the features themselves are the parameters. The ablation without a network."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:  # "... r", "k" -> "... k"
        return x if keep is None else x.index_select(-1, keep)


def orthogonal_features(dim: int, rank: int, *, generator: torch.Generator) -> Tensor:  # "d r"
    """Columns in blocks of `dim` orthogonal directions, each as long as an independent Gaussian vector.

    Every column is distributed like a standard Gaussian vector, but columns of one block are orthogonal, which
    lowers the variance of the kernel estimate. Source: Yu et al. 2016.
    """
    blocks = []
    for _ in range(-(-rank // dim)):
        gaussian = torch.randn(dim, dim, generator=generator)
        direction, triangle = torch.linalg.qr(gaussian)
        blocks.append(direction * triangle.diagonal().sign())  # the sign makes the directions uniform
    direction = torch.cat(blocks, 1)[:, :rank]
    length = torch.linalg.vector_norm(torch.randn(dim, rank, generator=generator), dim=0)
    out: Tensor = direction * length
    return out
