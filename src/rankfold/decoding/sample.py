"""Exact samples of state paths. Read next: `recursions/chain/paths.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.recursions.chain.paths import draw
from rankfold.recursions.chain.potentials import ChainPotentials, validate


def sample(
    p: ChainPotentials, *, num_samples: int | None = None, generator: torch.Generator | None = None
) -> Tensor:  # "b t", or "n b t"
    """State paths drawn from their posterior p(z_1..z_T | x), independent and exact.

    Cost: one backward pass and, for each position and sample, one row of the transition: z r for low rank.
    -1 beyond a length and throughout an impossible sequence. With `num_samples` a leading axis "n".
    """
    if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 1):
        raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
    c = validate(p).detach()
    with torch.no_grad():
        paths = draw(c, num_samples or 1, generator)
    return paths[0] if num_samples is None else paths
