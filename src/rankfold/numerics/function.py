"""Derivatives that are written out: autograd functions, behind a door that says what they cannot do.

Read next: `numerics/times_log.py`, the smallest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfold.errors import expect_plain


class Function(torch.autograd.Function):
    """An autograd function that refuses transforms of torch.func by name."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        for x in args:
            if isinstance(x, Tensor):
                expect_plain(x, name="a tensor")
        return super().apply(*args)  # type: ignore[no-untyped-call]
