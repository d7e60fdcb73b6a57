"""How exactly float32 matrix products are computed: an argument of the caller, never a global setting.

Sums are float32 or wider in every mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.function import Function

STRETCH = 8192  # terms of a sum that tensor cores take at once

Precision = Literal["float32", "tf32", "bf16"]
# "mixed" is how distributions are made for "bf16": they themselves as TF32 would, their gradients in bfloat16.
Products = Literal["float32", "tf32", "bf16", "mixed"]
_mixed: ContextVar[bool] = ContextVar("mixed", default=False)

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


def parameter_precision(precision: Precision) -> Products:
    """The mode in which distributions are made: "mixed" for "bf16", because bfloat16 would leave them unnormalised."""
    return "mixed" if precision == "bf16" else precision


@contextmanager
def matmul_precision(precision: Products, device: torch.device) -> Iterator[None]:
    """Run the block's float32 products in this mode; torch's own settings come back afterwards."""
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    flags.fp32_precision = "tf32" if precision in ("tf32", "mixed") else "ieee"
    mixed = _mixed.set(precision == "mixed")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        flags.fp32_precision = before
        _mixed.reset(mixed)


def current_precision(device: torch.device) -> Products:
    """The mode of products that the caller has set. Only CUDA multiplies bfloat16 into float32 sums."""
    if device.type != "cuda":
        return "float32"
    if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16:
        return "bf16"
    if torch.backends.cuda.matmul.fp32_precision != "tf32":
        return "float32"
    return "mixed" if _mixed.get() else "tf32"


def products_in(precision: Products, device: torch.device) -> AbstractContextManager[None]:
    """Products of float32 tensors as a kernel's caller had set the mode, autocast off: it would round results, too.

    A kernel may round its own operands to bfloat16; its float32 tensors stay float32.
    """
    same = "tf32" if precision == "mixed" else precision
    set_now = current_precision(device)
    if same == ("tf32" if set_now == "mixed" else set_now) and not torch.is_autocast_enabled(device.type):
        return nullcontext()  # as it is: two switches of mode cost a small table as much as its products
    return matmul_precision("tf32" if precision in ("tf32", "mixed") else "float32", device)


def product(x: Tensor, y: Tensor) -> Tensor:  # "m k", "k n" -> "m n"
    """x y in the mode that is set, with a result as wide as the operands: bfloat16 rounds only them."""
    if x.dtype == torch.float32 and current_precision(x.device) == "bf16":
        if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
            found: Tensor = _HalfProduct.apply(x, y)
            return found
        return torch.mm(x.bfloat16(), y.bfloat16(), out_dtype=torch.float32)
    return x @ y


class _HalfProduct(Function):
    """x y of operands rounded to bfloat16 with sums in float32, and its gradients likewise: torch has none for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return product(x, y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, y) = grads, ctx.saved_tensors
        of_x, of_y = ctx.needs_input_grad
        with matmul_precision("bf16", x.device):
            return product(grad, y.mT) if of_x else None, product(x.mT, grad) if of_y else None


def long_product(x: Tensor, y: Tensor) -> Tensor:  # "... k", "k n" -> "... n"
    """x y, a stretch of a long sum at a time: tensor cores cut their running sums off, always downwards.

    On an H200 in TF32 a chain of 2^20 states loses 3.1e-5 of log Z where each step is one sum.
    """
    if len(y) <= STRETCH or current_precision(y.device) == "float32":
        return x @ y
    if x.ndim == 1:
        return long_product(x[None], y)[0]
    whole = len(y) // STRETCH * STRETCH
    parts = torch.unflatten(x[..., :whole], -1, (-1, STRETCH)).transpose(-3, -2)  # "... s m k"
    found = (parts @ torch.unflatten(y[:whole], 0, (-1, STRETCH))).sum(-3)
    return found if whole == len(y) else found + x[..., whole:] @ y[whole:]


def summed_outer(x: Tensor, y: Tensor, like: Tensor) -> Tensor:  # "n z", "n r", "z r" -> "z r"
    """x^T y, laid out in memory as `like` is: its reader need not copy."""
    if like.stride(0) == 1 and like.stride(1) != 1:
        return product(y.mT, x).mT
    return product(x.mT, y)


class Rounded:
    """A table's copy in bfloat16, made with the table, for its first reader. Taken once: one pass needs it."""

    def __init__(self, table: Tensor, half: Tensor) -> None:
        self._half: Tensor | None = half
        self._of = _state(table)

    def take(self, table: Tensor) -> Tensor | None:
        """The copy, turned as `table` is; None: taken already, or the table is another or was changed since."""
        half, self._half = self._half, None
        if half is None or self._of != _state(table):
            return None
        turned = (x for x in (half, half.mT) if x.shape == table.shape and x.stride() == table.stride())
        return next(turned, None)


def _state(table: Tensor) -> tuple[int, int | None]:
    """Where it lies, and how often it was written to, which inference mode does not count."""
    return table.data_ptr(), None if table.is_inference() else table._version
