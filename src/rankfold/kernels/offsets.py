"""Where a piece of a large tensor begins: products of 32-bit numbers are 32 bits wide, and wrap around beyond that."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def begin(index, size):
    """index * size in 64 bits: to be added to a pointer once, so that offsets within the piece may stay narrow."""
    return tl.cast(index, tl.int64) * size
