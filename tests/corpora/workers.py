"""A worker of whole numbers that fails on request, for tests of engines; processes import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankfold.errors import DataError


class Number(NamedTuple):
    """A piece: a number, and what happens to the worker that answers it."""

    value: int
    fate: str = "squared"  # or killed, killed once, no memory once, wrong, ours

    @property
    def label(self) -> str:
        return f"number {self.value}"


class Square:
    """The square of each number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, piece: Number) -> int:
        mark = self.folder / str(piece.value)
        if piece.fate == "killed" or (piece.fate == "killed once" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if piece.fate == "no memory once" and not mark.exists():
            mark.touch()
            raise MemoryError
        if piece.fate == "wrong":
            raise DataError(f"{piece.label} is wrong")
        if piece.fate == "ours":
            raise TypeError("a mistake of ours")
        return piece.value**2


def numbers(start: int, stop: int, fates: dict[int, str] | None = None, *, broken: bool = False) -> Iterator[Number]:
    for value in range(start, stop):
        yield Number(value, (fates or {}).get(value, "squared"))
    if broken:
        raise DataError("the file ends early")


def no_model() -> Square:
    raise DataError("there is no model")
