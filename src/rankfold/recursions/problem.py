"""Validated potentials, whatever the structure: what all recursions ask of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError, UnsupportedError, may_look


def validate_lengths(
    lengths: Tensor | None, num_sequences: int, num_positions: int, like: Tensor
) -> tuple[Tensor, bool]:  # "b"
    """Lengths as int64 on the device of `like`, and whether some are shorter than all positions; raises on others."""
    if lengths is None:
        return torch.full((num_sequences,), num_positions, device=like.device), False
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (num_sequences,):
        raise ShapeError(f'lengths has shape {tuple(lengths.shape)}, but "b" was expected with b = {num_sequences}.')
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise DomainError(f"lengths has dtype {lengths.dtype}, but lengths are integers.\n  Convert it with .long().")
    if not may_look(like):
        if lengths.device != like.device:
            raise UnsupportedError("lengths must be on the device of log_obs while a CUDA graph is captured.")
        return lengths.long(), True
    lengths = lengths.long()
    wrong = (lengths < 1) | (lengths > num_positions)
    if wrong.any():
        where = int(wrong.nonzero()[0])
        raise DomainError(
            f"lengths[{where}] is {int(lengths[where])}, but there are {num_positions} positions: "
            f"lengths run from 1 to {num_positions}.\n  Leave empty sequences out."
        )
    return lengths.to(like.device, torch.int64), bool((lengths < num_positions).any())
