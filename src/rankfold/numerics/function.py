"""Derivatives that are written out: autograd functions, and errors for uses that they do not support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, expect_plain, may_look


class Function(torch.autograd.Function):
    """An autograd function that refuses transforms of torch.func by name."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        for x in args:
            if isinstance(x, Tensor):
                expect_plain(x, name="a tensor")
        return super().apply(*args)  # type: ignore[no-untyped-call]


def refuse_undefined(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Have autograd raise where a derivative by one of the tensors is NaN, if some weight is exactly 0.

    For gradients that are differentiated again: logarithms of weights of zero, which only sequences beyond the range of
    float64 need, have no second derivatives.
    """
    if not all(may_look(x) for x in weights) or not any(bool((x == 0).any()) for x in weights):
        return
    for x in tensors:
        x.register_hook(_expect_defined)  # type: ignore[no-untyped-call]


def _expect_defined(grad: Tensor) -> None:
    if may_look(grad) and bool(grad.isnan().any()):
        raise UnsupportedError(
            "log Z beyond the range of float64 is not differentiable twice where weights are exactly 0.\n"
            "  Give weights by their logarithms (from_log), or ask for first derivatives alone."
        )
