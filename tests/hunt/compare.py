"""Comparisons of the library's tensors with the oracle's numbers; the first that fails is the deviation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.hunt.arithmetic import Array, Wide
from tests.hunt.kind import Deviation


class DeviatesError(Exception):
    """A comparison failed."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.deviation = Deviation(what, detail)


def array(x: Any) -> Array:
    """A tensor as numbers of the oracle."""
    out: Array = x.detach().to("cpu").double().numpy().astype(Wide)
    return out


def expect(what: str, holds: bool, *detail: Any) -> None:
    """A promise that is no number; what is said of it is put into words only where it is broken."""
    if not holds:
        raise DeviatesError(what, " ".join(str(x.tolist() if isinstance(x, np.ndarray) else x) for x in detail))


def close(what: str, got: Any, want: Array, tol: Array | float, *, largest: float = np.inf) -> None:
    """Within `tol`, absolutely; infinities alike; `inf` also where the dtype cannot hold the truth."""
    got = got if isinstance(got, np.ndarray) else array(got)
    expect(what, got.shape == want.shape, "shape", got.shape, "expected", want.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        fine = np.abs(got - want) <= tol
        fine |= got == want
        fine |= np.isposinf(got) & (want >= largest * (1 - 1e-3))
    if fine.all():
        return
    where = tuple(np.argwhere(~fine)[0].tolist())
    tol = np.broadcast_to(np.asarray(tol), want.shape)
    raise DeviatesError(
        what,
        f"{what}{list(where)} is {float(got[where])!r}, expected {float(want[where])!r} "
        f"within {float(tol[where]):.2e} ({int((~fine).sum())} of {fine.size} entries)",
    )
