"""Dropout of states, features and single logits. Distributions are normalised over the kept ones.

By default an exact number is kept, so that shapes repeat from step to step (a captured graph needs that); where
the number varies, a mask repeats its shape.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

DropoutKind = Literal["exact", "bernoulli"]


def kept_indices(
    size: int, dropout: float, *, generator: torch.Generator | None, kind: DropoutKind = "exact"
) -> Tensor | None:  # "k"
    """The indices that stay, in order; None if all do (no dropout, or no generator: not training).

    "exact" keeps `num_kept`, "bernoulli" each by itself; either keeps at least one.
    """
    if generator is None or dropout == 0.0:
        return None
    noise = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float32)
    if kind == "bernoulli":
        return _above(noise, dropout).nonzero()[:, 0]
    return noise.argsort()[: num_kept(size, dropout)].sort().values


def kept_mask(
    size: int, dropout: float, *, generator: torch.Generator | None, kind: DropoutKind = "exact"
) -> Tensor | None:  # "z"   bool
    """The same as a mask: true at the indices that `kept_indices` gives for the same seed. Looks at no value."""
    if generator is None or dropout == 0.0:
        return None
    noise = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float32)
    if kind == "bernoulli":
        return _above(noise, dropout)
    none = torch.zeros_like(noise, dtype=torch.bool)
    return none.index_fill(0, noise.argsort()[: num_kept(size, dropout)], True)


def _above(noise: Tensor, dropout: float) -> Tensor:  # "z"   bool
    """Each by itself; if none would stay, the largest does."""
    return (noise >= dropout).index_fill(0, noise.argmax(), True)


def kept_by_cluster(
    num_clusters: int, size: int, dropout: float, *, generator: torch.Generator | None
) -> Tensor | None:  # "c k"
    """The same for each of several clusters by itself: as many in each, as indices within the cluster."""
    if generator is None or dropout == 0.0:
        return None
    noise = torch.rand(num_clusters, size, generator=generator, device=generator.device, dtype=torch.float32)
    return noise.argsort(1)[:, : num_kept(size, dropout)].sort(1).values


def num_kept(size: int, dropout: float) -> int:
    """(1 - dropout) size, at least 1; rounded to a multiple of 16 from 256 on, so that rows of a table stay aligned."""
    step = 16 if size >= 256 else 1
    return max(1, round((1.0 - dropout) * size / step) * step)


def drop_logits(logits: Tensor, dropout: float, dim: int, *, generator: torch.Generator | None) -> Tensor:
    """Logits with single entries at -inf, each by itself; a distribution along `dim` never loses all its entries.

    One that would is left whole. Source: Yang, Liu, Tu 2022, by their code.
    """
    if generator is None or dropout == 0.0:
        return logits
    gone = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=torch.float32) < dropout
    gone &= ~gone.all(dim, keepdim=True)
    return logits.masked_fill(gone, float("-inf"))


def drop_entries(x: Tensor, dropout: float, *, generator: torch.Generator | None) -> Tensor:
    """Entries at 0 with probability `dropout`, the others divided by 1 - dropout."""
    if generator is None or dropout == 0.0:
        return x
    stays = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32) >= dropout
    return x * stays / (1.0 - dropout)
