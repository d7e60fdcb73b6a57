"""Feature maps of the generalised softmax: exp(x W), also with -|x|^2 / 2, W learned."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rankfold.kernels.linear_softmax import SoftmaxTable, linear_softmax

FeatureKind = Literal["exp", "positive"]


class FeatureMap(nn.Module):
    """log phi(x) = x W  ("exp"), or  x W - |x|^2 / 2  ("positive").   Cost: d r multiply-adds per vector.

    With Gaussian W the second is an unbiased estimate of the softmax kernel: E phi(x) . phi(y) / r = exp(x . y).
    Source: Choromanski et al. 2021; Chiu, Deng, Rush 2021, App. F and G.
    """

    def __init__(self, dim: int, rank: int, *, kind: FeatureKind, generator: torch.Generator) -> None:
        super().__init__()
        self.kind = kind
        self.projection = nn.Parameter(orthogonal_features(dim, rank, generator=generator))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:  # "... d", "k" -> "... k"
        log_phi = x @ self._projection(keep)
        return log_phi - x.square().sum(-1, keepdim=True) / 2 if self.kind == "positive" else log_phi

    def by_rank(
        self, x: Tensor, keep: Tensor | None = None, stays: Tensor | None = None
    ) -> SoftmaxTable:  # "z d", "k", "z" -> "k z", "k"
        """softmax_z(log phi_r(x_z)) for each rank r, over the states that stay, and the log of its normaliser.

        Ranks in front: sums over states then run along memory.
        """
        bias = -x.square().sum(-1) / 2 if self.kind == "positive" else None
        if stays is not None:
            left_out = torch.where(stays, 0.0, float("-inf"))
            bias = left_out if bias is None else bias + left_out
        return linear_softmax(self._projection(keep).mT, x, bias)

    def by_state(
        self, x: Tensor, bias: Tensor, keep: Tensor | None = None
    ) -> SoftmaxTable:  # "z d", "k", "k" -> "z k", "z"
        """softmax_r(log phi_r(x_z) + bias_r) for each state z: terms common to all ranks of a state cancel."""
        return linear_softmax(x, self._projection(keep).mT, bias)

    def _projection(self, keep: Tensor | None) -> Tensor:  # "d k"
        return self.projection if keep is None else self.projection.index_select(1, keep)


class FreeFeatures(nn.Module):
    """log phi(x) = x: the features themselves are the parameters. The ablation without a network."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:  # "... r", "k" -> "... k"
        return x if keep is None else x.index_select(-1, keep)

    def by_rank(
        self, x: Tensor, keep: Tensor | None = None, stays: Tensor | None = None
    ) -> SoftmaxTable:  # "z r", "k", "z" -> "k z", "k"
        """The same with ranks in front, normalised over states."""
        log_phi = x.mT.contiguous() if keep is None else x.mT.index_select(0, keep)
        if stays is not None:
            log_phi = log_phi.masked_fill(~stays, float("-inf"))
        return SoftmaxTable(torch.softmax(log_phi, 1), torch.logsumexp(log_phi, 1))

    def by_state(
        self, x: Tensor, bias: Tensor, keep: Tensor | None = None
    ) -> SoftmaxTable:  # "z r", "k", "k" -> "z k", "z"
        """The same, normalised over ranks."""
        logits = self(x, keep) + bias
        return SoftmaxTable(torch.softmax(logits, 1), torch.logsumexp(logits, 1))


def orthogonal_features(dim: int, rank: int, *, generator: torch.Generator) -> Tensor:  # "d r"
    """Columns in blocks of `dim` orthogonal directions, each as long as an independent Gaussian vector.

    Every column is distributed like a standard Gaussian vector, but columns of one block are orthogonal, which
    lowers the variance of the kernel estimate. Source: Yu et al. 2016. Computed in float64, so that the rounding of
    the machine's own LAPACK does not show in float32.
    """
    if torch.get_default_device().type == "meta":  # a plan: only sizes are asked for
        return torch.empty(dim, rank)
    blocks = []
    for _ in range(-(-rank // dim)):
        gaussian = torch.randn(dim, dim, generator=generator, dtype=torch.float32)
        direction, triangle = torch.linalg.qr(gaussian.double())
        blocks.append(direction * triangle.diagonal().sign())  # the sign makes the directions uniform
    direction = torch.cat(blocks, 1)[:, :rank]
    other = torch.randn(dim, rank, generator=generator, dtype=torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(other.double(), dim=0)
    return (direction * lengths).float()
