"""The arithmetics that recursions choose from."""

from __future__ import annotations

from typing import Literal, get_args

from rankfold.errors import UnsupportedError

Arithmetic = Literal["scaled", "log"]


def check_arithmetic(arithmetic: str) -> None:
    """Raise unless it is one of the two."""
    if arithmetic not in get_args(Arithmetic):
        raise UnsupportedError(f'arithmetic={arithmetic!r} is unknown; use "scaled" (fast) or "log" (any range).')
