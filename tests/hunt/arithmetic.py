"""The oracles' arithmetic: logarithms in numpy's extended precision (64 bits of mantissa), and the bounds of rounding.

Shares nothing with the library. Exact zeros are -inf.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Wide = np.longdouble
NONE = Wide(-np.inf)


def wide(x: Any, dtype: str) -> Array:
    """The numbers as the library gets them: rounded to its dtype, then exact."""
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(x, dtype=np.float64), dtype=dtype).astype(Wide)


def log(x: Array) -> Array:
    """log, -inf at zero."""
    with np.errstate(divide="ignore"):
        return np.log(x)


def exp(x: Array) -> Array:
    """exp, 0 and inf where even the wide range ends."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x)


def total(x: Array, axis: int | tuple[int, ...] = -1) -> Array:
    """log sum exp."""
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    return log(exp(x - top).sum(axis=axis)) + np.squeeze(top, axis)


def matmul(x: Array, y: Array) -> Array:  # "... i j", "... j k" -> "... i k"
    """Logarithm of the product of two matrices of exponentials."""
    return total(x[..., :, :, None] + y[..., None, :, :], -2)


def times(p: Array, log_w: Array) -> Array:
    """p log w, where no mass counts as nothing."""
    return np.where(p > 0, p * np.where(np.isfinite(log_w), log_w, 0.0), 0.0)


def magnitude(*xs: Array) -> float:
    """The largest finite absolute value."""
    return max((float(np.abs(x[np.isfinite(x)]).max()) for x in xs if np.isfinite(x).any()), default=0.0)


def spread(x: Array, axis: int = -1) -> float:
    """The largest distance between finite entries along an axis."""
    finite = np.isfinite(x)
    if not finite.any():
        return 0.0
    high = np.where(finite, x, -np.inf).max(axis)
    low = np.where(finite, x, np.inf).min(axis)
    some = finite.any(axis)
    return float((high - low)[some].max())


EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
RANGE = {"float32": 87.0, "float64": 708.0}  # nats between 1 and the smallest normal number


def rounding(dtype: str, steps: int, terms: int, apart: float, size: float, products: str | None = None) -> float:
    """How far a probability may be off by rounding, relatively: the bound of docs/numerics.md.

    A step multiplies, scales and adds `terms` numbers, each operation within half an eps; an exponential of a
    difference of `apart` nats carries the rounding of that difference (beyond the range of the dtype the
    sequence is repeated in float64). Forward, backward and their product: three times that. Logarithms of up to
    `size` are added in float64. `products`: the operands of every product rounded to tf32 or bf16 as well.
    """
    one = (8 + 2 * terms + min(apart, RANGE[dtype])) * EPS[dtype]
    # Both operands of a product, of two where there are ranks.
    one += {"tf32": 4 * 2.0**-11, "bf16": 4 * 2.0**-8}.get(products or "", 0.0)
    return 3 * steps * one + 16 * steps * EPS["float64"] * (1.0 + size)


def rare(num_samples: int, seen: Array, p: Array) -> Array:
    """Whether a count of binomial draws has a chance below 1e-15 on either side (Chernoff's bound)."""
    p = np.clip(p.astype(np.float64), 0.0, 1.0)
    f = seen / num_samples
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(f > 0, f * np.log(f / p), 0.0)
        down = np.where(f < 1, (1 - f) * np.log((1 - f) / (1 - p)), 0.0)
    # Rounding alone moves a probability by 1e-5 at most where a test compares frequencies.
    return (num_samples * (up + down) > -math.log(1e-15)) & (np.abs(f - p) > 1e-5)
