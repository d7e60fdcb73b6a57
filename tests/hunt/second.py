"""Second derivatives: the Hessian of log Z times a direction, against differences of the oracle's gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import rankfold
from tests.hunt.arithmetic import EPS, Array, magnitude
from tests.hunt.compare import array, close, expect
from tests.hunt.kind import Case

HELD = 280.0  # nats within which a derivative can be taken again at zero weights
TAME = {"float32": 30.0, "float64": 150.0}  # nats: the square of one over a weight of that size is a number


class Place(NamedTuple):
    """Where a tensor's numbers are in a case."""

    owner: Any
    key: str
    logged: bool

    @property
    def numbers(self) -> Array:
        return np.array(self.owner[self.key], dtype=np.float64)


def expect_second(
    case: Case,
    out: Any,  # "b": log Z
    leaves: Sequence[Any],
    places: Callable[[Case], list[Place]],  # of all leaves
    gradients: Callable[[Case], list[Array]],  # of the first leaves, by the oracle
    *,
    rounded: float,
    size: float,
    uses: int,  # how many numbers a structure's weight is made of
    apart: float,  # nats of messages and tables
) -> None:
    """Both sides for one random direction; a linear weight moves in proportion to itself.

    Of an expected use the direction makes a covariance, which is off by a use's rounding for each of `uses`.
    """
    step = 1e-3 / uses
    tol = uses * (8 * rounded + 1e-10) + 4 * uses * EPS["float64"] * (1 + size) / step
    if tol > 0.05:
        return
    rng = np.random.default_rng(case["seed"])
    at = places(case)
    tame = [place.logged or _range(place.numbers) < TAME[case["dtype"]] for place in at]
    ways = []
    for place, moves in zip(at, tame, strict=True):
        x = place.numbers
        way = rng.choice([-1.0, 0.0, 1.0], x.shape) * np.isfinite(x) * moves
        ways.append(way if place.logged else way * x)
    upstream = torch.tensor(case["upstream"], dtype=torch.float64, device=out.device)
    zeros = any(not place.logged and bool((place.numbers == 0).any()) for place in at)
    try:
        grads = torch.autograd.grad(out, leaves, upstream, create_graph=True, materialize_grads=True)
        along = sum(
            (g * torch.as_tensor(way, dtype=g.dtype, device=g.device))[torch.as_tensor(way != 0)].sum()
            for g, way in zip(grads, ways, strict=True)
        )
        found = torch.autograd.grad(along, leaves, materialize_grads=True) if along.requires_grad else None
    except rankfold.UnsupportedError as error:
        expect("second derivative", zeros and apart > HELD, error)
        return

    def moved(by: int) -> list[Array]:
        other = copy.deepcopy({**case, "dtype": "float64"})
        for place, way in zip(places(other), ways, strict=True):
            place.owner[place.key] = (place.numbers + by * step * way).tolist()
        return gradients(other)

    ends = {by: moved(by) for by in (-2, -1, 1, 2)}
    for i, place in enumerate(at[: len(ends[1])]):
        if not tame[i]:
            continue
        x = place.numbers
        want = (8 * (ends[1][i] - ends[-1][i]) - (ends[2][i] - ends[-2][i])) / (12 * step)
        got = np.zeros_like(want) if found is None else array(found[i])
        scale = 1.0 if place.logged else np.where(x > 0, x, x.max(initial=0.0))
        if not place.logged and apart > TAME[case["dtype"]]:
            got = np.where(x == 0, want, got)
        got, want = got * scale, want * scale
        once = np.abs(ends[1][i]) * scale  # an expected use; of a weight of zero it may be any number
        close(f"second derivative in {place.key}", got, want, tol * (1 + np.abs(want) + once))


def _range(x: Array) -> float:
    with np.errstate(divide="ignore"):
        return magnitude(np.log(x))
