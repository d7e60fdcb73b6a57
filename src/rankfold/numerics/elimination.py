"""Linear systems whose diagonals are known as sums: I less a non-negative matrix, solved without a subtraction.

Where rows sum to nearly 0, as those of a chain that hardly ever ends, a diagonal of 1 - c has lost its digits; the sum
of what else a row has is exact. Read next: `recursions/tree/termination.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SAFE = 1e6  # the largest entry of an inverse times ones, up to which rounding cannot hide its sign


class System(NamedTuple):
    """The matrix diag(rest + sum of inner's rows) - inner: non-negative but for `rest`, the sums of its rows."""

    rest: Tensor  # "k"
    inner: Tensor  # "k k"   0 on its diagonal

    def _easily(self, right: Tensor) -> Tensor | None:  # "k" -> "k"
        """The solution by torch, where rounding cannot hide that the inverse is non-negative."""
        both = torch.stack([torch.ones_like(right), right], -1)
        found, failed = torch.linalg.solve_ex(self.matrix(), both)
        size, wanted = found.unbind(-1)
        return wanted if not bool(failed) and bool((size > 0).all() and (size < SAFE).all()) else None

    def matrix(self) -> Tensor:
        """Written out, and rounded."""
        return torch.diag_embed(self.rest + self.inner.sum(-1)) - self.inner

    def positive(self) -> bool:
        """Whether the inverse is non-negative, or would be but for a last pivot of 0."""
        if self._easily(self.rest) is not None:
            return True
        pivots, _ = eliminated(self.rest[None], self.inner[None])
        return bool((pivots[0, :-1] > 0).all() and pivots[0, -1] >= 0)

    def solve(self, right: Tensor) -> Tensor:  # "k" -> "k"
        """By torch where that is as good, else by elimination."""
        found = self._easily(right)
        return (
            found
            if found is not None
            else solved(*eliminated(self.rest[None], self.inner[None]), right[None, :, None])[0, :, 0]
        )


def eliminated(rest: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:  # "b k", "b k k" -> "b k", "b k k"
    """The pivots of diag(rest + sum of inner's rows) - inner, and its factors without them, the lower one below.

    Diagonals are never written: they stay sums of a row's rest and of what is beside it, so that nothing is subtracted.
    Source: Grassmann, Taksar, Heyman 1985.
    """
    rest, inner, pivots = rest.clone(), inner.clone(), torch.empty_like(rest)
    for k in range(rest.shape[-1]):
        pivots[:, k] = rest[:, k] + inner[:, k, k + 1 :].sum(-1)
        below = inner[:, k + 1 :, k] / pivots[:, k, None]
        inner[:, k + 1 :, k] = below
        inner[:, k + 1 :, k + 1 :] += below.unsqueeze(-1) * inner[:, k, None, k + 1 :]
        rest[:, k + 1 :] += below * rest[:, k, None]
    return pivots, inner


def solved(pivots: Tensor, factors: Tensor, right: Tensor) -> Tensor:  # "b k", "b k k", "b k m" -> "b k m"
    """The solution, by the factors; of a right side without signs a sum throughout."""
    eye = torch.eye(pivots.shape[-1], dtype=pivots.dtype, device=pivots.device)
    half = torch.linalg.solve_triangular(eye - factors.tril(-1), right, upper=False, unitriangular=True)
    found: Tensor = torch.linalg.solve_triangular(torch.diag_embed(pivots) - factors.triu(1), half, upper=True)
    return found
