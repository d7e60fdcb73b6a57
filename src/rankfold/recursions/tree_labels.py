"""The most probable label of every span, collected while an outside pass goes through the widths.

Read next: `recursions/tree_inside.py`, which asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.recursions.tree_potentials import Forest


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
