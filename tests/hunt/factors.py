"""Gradients and counts of an operator's tensors, against those pulled back from the moves of the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.hunt import matrices
from tests.hunt.arithmetic import NONE, Array, exp
from tests.hunt.compare import array, close, expect
from tests.hunt.kind import Case
from tests.hunt.second import Place

LIMIT = {"float32": 87.0, "float64": 283.0}  # nats: how far the gradient of a zero weight is exact (docs/numerics.md)


def expect_gradients(case: Case, grads: list[Any], moves: Array, unheld: Array, tol: float) -> None:  # "z y" twice
    """`moves`: the log of d log Z / d A. `unheld`: where a weight of zero is beyond the stated limit.

    An expected use is within `tol`; the gradient of a linear weight is its use over the weight. That of a zero
    weight beyond the limit is only not NaN and not negative.
    """
    dtype, m = case["dtype"], case["transition"]
    off = matrices.pulled(m, np.where(unheld, 0.0, NONE), dtype)
    largest = torch.finfo(getattr(torch, dtype)).max
    for i, ((want, value, logged), (far, _, _), got) in enumerate(
        zip(matrices.pulled(m, moves, dtype), off, grads, strict=True)
    ):
        name = f"gradient of factor {i} of {m['op']}"
        got = array(got)
        if logged:
            close(name, got, exp(want + value), tol)
            continue
        known = exp(want)
        top = exp(value.max()) if np.isfinite(value.max()) else 1.0
        with np.errstate(divide="ignore", over="ignore"):
            allowed = tol * known + tol / np.where(np.isfinite(value), exp(value), top)
        expect(name, not np.isnan(got).any() and bool((got >= 0).all()), "NaN or negative:", got)
        cut = np.isfinite(far) & ~np.isfinite(value)
        close(name, np.where(cut, known, got), known, allowed, largest=largest)


def expect_counts(case: Case, counts: list[Any], moves: Array, tol: float) -> None:  # "z y"
    """Expected uses of every factor."""
    dtype, m = case["dtype"], case["transition"]
    for i, ((want, value, _), got) in enumerate(zip(matrices.pulled(m, moves, dtype), counts, strict=True)):
        close(f"counts of factor {i} of {m['op']}", got, exp(want + value), tol)


def gradients(case: Case, moves: Array) -> list[Array]:  # "z y"
    """The gradient of every factor, of that of the matrix in logarithms."""
    found = matrices.pulled(case["transition"], moves, case["dtype"])
    return [exp(want + value) if logged else exp(want) for want, value, logged in found]


def places(case: Case, names: tuple[str, ...]) -> list[Place]:
    """Where the tables of these names are, those that there are, and the operator's tensors."""
    tables = [Place(case, name, logged=True) for name in names if case[name] is not None]
    return [*tables, *(Place(m, name, m["log"]) for m, name in matrices.tensors(case["transition"]))]
