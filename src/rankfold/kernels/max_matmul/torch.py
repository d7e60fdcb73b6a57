"""Reference of `max_matmul`: blocks of the broadcast sum. Read next: `operators/by_rows.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.kernels.blocks import blocks


@torch.no_grad()
def max_matmul(log_x: Tensor, log_w: Tensor) -> tuple[Tensor, Tensor]:  # "n z", "z y" -> "n y" twice
    """The best term of each sum and its index: max and argmax over z of log_x[n, z] + log_w[z, y].

    Ties go to the smallest index. Cost: n z y additions; temporaries of at most 2**22 entries.
    """
    best = torch.empty(
        log_x.shape[0], log_w.shape[1], dtype=torch.promote_types(log_x.dtype, log_w.dtype), device=log_x.device
    )
    where = torch.empty_like(best, dtype=torch.int64)
    by_target = log_w.mT
    for rows, targets in blocks(log_x.shape[0], log_x.shape[1], log_w.shape[1]):
        torch.max(
            log_x[rows, None, :] + by_target[None, targets, :], -1, out=(best[rows, targets], where[rows, targets])
        )
    return best, where
