"""How exactly float32 matrix products are computed: an argument of the caller, never a global setting.

Sums are float32 or wider in every mode. Read next: `recursions/chain.py`, which takes the argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from rankfold.errors import UnsupportedError

Precision = Literal["float32", "tf32", "bf16"]

# Unit round-off of the operands of a product, by mode. float64 tensors ignore the mode.
_EPS: dict[str, float] = {"float32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7}


def check_precision(precision: str) -> None:
    """Raise unless `precision` is one of the three modes."""
    if precision not in get_args(Precision):
        raise UnsupportedError(
            f'precision={precision!r} is unknown; use "float32" (exact), "tf32" or "bf16".\n'
            "  For float64 give float64 tensors: precision concerns float32 tensors only."
        )


def round_off(dtype: torch.dtype, precision: Precision) -> float:
    """The relative rounding error of one operand of a product."""
    return 2.0**-52 if dtype == torch.float64 else _EPS[precision]


def parameter_precision(precision: Precision) -> Precision:
    """The mode in which distributions are made: bfloat16 would leave them unnormalised, so "bf16" means tf32 there."""
    return "tf32" if precision == "bf16" else precision


@contextmanager
def matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Run the block's float32 products in this mode; torch's own settings come back afterwards."""
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    flags.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        flags.fp32_precision = before
