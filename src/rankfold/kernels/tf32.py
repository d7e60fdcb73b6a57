"""Numbers as TF32 holds them: float32 with ten fraction bits, to nearest.

Tensor cores cut the other bits off, always downwards; of operands that have none they lose nothing, and no mass.
Read next: `kernels/two_way/products.py`.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def to_tf32(x):
    """x to nearest. NaN apart: a GPU's has every bit set, to which no more can be added without becoming -0."""
    rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return tl.where(x != x, x, rounded)
