"""Operators as plain data: drawn, built with the library, written out by the oracle, differentiated, made smaller.

A matrix is a dict with "op" and its numbers. `written` and `pulled` share nothing with the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import rankfold
from rankfold.operators import Product
from tests.hunt import values
from tests.hunt.arithmetic import NONE, Array, exp, log, matmul, total, wide

Matrix = dict[str, Any]

DEPTH = 2  # how often operators are composed
LEAVES = ("dense", "low_rank", "banded", "without_diagonal", "multiplied")


def draw(rng: values.Rng, how: dict[str, Any], dtype: str, states: int, depth: int = DEPTH) -> Matrix:
    """A random square operator, composed up to `depth` times."""
    if depth and rng.random() < 0.35:
        if rng.random() < 0.5:
            terms = [draw(rng, how, dtype, states, depth - 1) for _ in range(rng.integers(1, 4))]
            return {"op": "sum", "terms": terms}
        logged = bool(rng.random() < 0.5)
        scale = (values.logs if logged else values.weights)(rng, how, dtype, states)
        return {"op": "row_scaled", "log": logged, "scale": scale, "of": draw(rng, how, dtype, states, depth - 1)}
    name = str(rng.choice(LEAVES, p=[0.3, 0.25, 0.2, 0.15, 0.1]))
    if name == "multiplied" and depth < DEPTH:  # models have it alone, of distributions: nothing in it widens
        name = "low_rank"
    logged = bool(rng.random() < 0.5) and name != "multiplied"
    some = values.logs if logged else values.weights
    if name == "dense":
        return {"op": "dense", "log": logged, "weight": some(rng, how, dtype, states, states)}
    if name == "banded":
        first = int(rng.integers(1 - states, states))
        last = int(rng.integers(first, states))
        return {
            "op": "banded",
            "log": logged,
            "offset": first,
            "weight": some(rng, how, dtype, states, last - first + 1),
        }
    rank = int(rng.integers(1, states + 3 if states < 16 else 4))
    if name == "multiplied":  # written out in its dtype, for distributions: nothing in it may leave the range
        how = {**how, "powers": 0.3}
    sides = {side: some(rng, how, dtype, states, rank) for side in ("left", "right")}
    if name == "without_diagonal":
        return {"op": name, "of": {"op": "low_rank", "log": logged, **sides}}
    return {"op": name, "log": logged, **sides}


def build(m: Matrix, tensor: Any) -> Any:
    """The library's operator; `tensor` makes a leaf of a list."""
    if m["op"] == "sum":
        return rankfold.Sum([build(term, tensor) for term in m["terms"]])
    if m["op"] == "without_diagonal":
        return rankfold.WithoutDiagonal(build(m["of"], tensor))
    if m["op"] == "row_scaled":
        make: Any = rankfold.RowScaled.from_log if m["log"] else rankfold.RowScaled
        of = build(m["of"], tensor)
        return make(of, tensor(m["scale"]))
    if m["op"] == "multiplied":
        return Product(tensor(m["left"]), tensor(m["right"]))
    if m["op"] == "low_rank":
        make = rankfold.LowRank.from_log if m["log"] else rankfold.LowRank
        return make(tensor(m["left"]), tensor(m["right"]))
    if m["op"] == "banded":
        make = rankfold.Banded.from_log if m["log"] else rankfold.Banded
        return make(tensor(m["weight"]), m["offset"])
    make = rankfold.Dense.from_log if m["log"] else rankfold.Dense
    return make(tensor(m["weight"]))


def source(m: Matrix) -> str:
    """The operator as Python text."""
    form = ".from_log" if m.get("log") else ""
    if m["op"] == "sum":
        return f"rankfold.Sum([{', '.join(source(term) for term in m['terms'])}])"
    if m["op"] == "without_diagonal":
        return f"rankfold.WithoutDiagonal({source(m['of'])})"
    if m["op"] == "row_scaled":
        return f"rankfold.RowScaled{form}({source(m['of'])}, tensor({m['scale']}))"
    if m["op"] == "banded":
        return f"rankfold.Banded{form}(tensor({m['weight']}), {m['offset']})"
    if m["op"] == "dense":
        return f"rankfold.Dense{form}(tensor({m['weight']}))"
    name = "rankfold.LowRank" if m["op"] == "low_rank" else "rankfold.operators.Product"
    return f"{name}{form}(tensor({m['left']}), tensor({m['right']}))"


def tensors(m: Matrix) -> Iterator[tuple[Matrix, str]]:
    """Owners and names of the tensors in the order of the library's factors."""
    for name in ("scale", "weight", "left", "right"):
        if name in m:
            yield m, name
    for part in m.get("terms", [m["of"]] if "of" in m else []):
        yield from tensors(part)


def numbers(m: Matrix, name: str, dtype: str) -> Array:
    """The logarithms of one of its tensors."""
    x = wide(m[name], dtype)
    return x if m["log"] else log(x)


def written(m: Matrix, dtype: str) -> Array:  # "z y"
    """The logarithm of the matrix."""
    if m["op"] == "sum":
        return total(np.stack([written(term, dtype) for term in m["terms"]], -1))
    if m["op"] == "row_scaled":
        return numbers(m, "scale", dtype)[:, None] + written(m["of"], dtype)
    if m["op"] == "without_diagonal":
        return _no_diagonal(written(m["of"], dtype))
    if m["op"] == "dense":
        return numbers(m, "weight", dtype)
    if m["op"] == "banded":
        band = numbers(m, "weight", dtype)
        out = np.full((len(band), len(band)), NONE)
        z, y, c = _cells(m)
        out[z, y] = band[z, c]
        return out
    return matmul(numbers(m, "left", dtype), numbers(m, "right", dtype).T)


def pulled(m: Matrix, g: Array, dtype: str) -> list[tuple[Array, Array, bool]]:  # "z y"
    """For each factor: the log of its gradient in linear weights, its own logarithm, whether it is given as one.

    `g` is the log of the gradient of the matrix. Order and shapes are those of the library's `factors()`.
    """
    if m["op"] == "sum":
        return [one for term in m["terms"] for one in pulled(term, g, dtype)]
    if m["op"] == "row_scaled":
        scale = numbers(m, "scale", dtype)
        mine = (total(g + written(m["of"], dtype)), scale, m["log"])
        return [mine, *pulled(m["of"], g + scale[:, None], dtype)]
    if m["op"] == "without_diagonal":
        return pulled(m["of"], _no_diagonal(g), dtype)
    if m["op"] == "dense":
        return [(g, numbers(m, "weight", dtype), m["log"])]
    if m["op"] == "banded":
        band = numbers(m, "weight", dtype)
        out, inside = np.full(band.shape, NONE), np.full(band.shape, NONE)
        z, y, c = _cells(m)
        out[z, c], inside[z, c] = g[z, y], band[z, c]
        return [(out, inside, m["log"])]
    left, right = numbers(m, "left", dtype), numbers(m, "right", dtype)
    return [(matmul(g, right), left, m["log"]), (matmul(g.T, left), right, m["log"])]


def best_rank(m: Matrix, dtype: str) -> Array:  # "z y"
    """The largest term of each entry of a low-rank matrix."""
    left, right = numbers(m, "left", dtype), numbers(m, "right", dtype)
    best: Array = (left[:, None] + right[None]).max(-1)
    return best


def rank_logs(m: Matrix, dtype: str) -> Array:  # "z y"
    """E[log of the term] under the distribution of the rank given both states."""
    terms = numbers(m, "left", dtype)[:, None] + numbers(m, "right", dtype)[None]
    whole = total(terms)
    share = exp(terms - np.where(np.isfinite(whole), whole, 0.0)[..., None])
    return np.where(share > 0, share * np.where(np.isfinite(terms), terms, 0.0), 0.0).sum(-1)


def size(m: Matrix, dtype: str) -> tuple[float, int]:
    """The largest |log| that its tensors make together, and the longest sum."""
    if m["op"] == "sum":
        parts = [size(term, dtype) for term in m["terms"]]
        return max(p[0] for p in parts), sum(p[1] for p in parts)
    if m["op"] in ("row_scaled", "without_diagonal"):
        whole, terms = size(m["of"], dtype)
        return whole + (_finite(numbers(m, "scale", dtype)) if m["op"] == "row_scaled" else 0.0), terms
    names = ("weight",) if m["op"] in ("dense", "banded") else ("left", "right")
    mine = sum(_finite(numbers(m, name, dtype)) for name in names)
    return mine, len(m[names[0]]) + (len(m[names[0]][0]) if len(names) == 2 else 0)


def _finite(x: Array) -> float:
    return float(np.abs(x[np.isfinite(x)]).max()) if np.isfinite(x).any() else 0.0


def _no_diagonal(x: Array) -> Array:
    return np.where(np.eye(len(x), dtype=bool), NONE, x)


def _cells(m: Matrix) -> tuple[Array, Array, Array]:
    """Source, target and column of every cell of a band that lies inside the matrix."""
    states, width = len(m["weight"]), len(m["weight"][0])
    z, c = np.indices((states, width)).reshape(2, -1)
    y = z + c + m["offset"]
    inside = (y >= 0) & (y < states)
    return z[inside], y[inside], c[inside]


def smaller(m: Matrix) -> Iterator[Matrix]:
    """Simpler operators of as many states."""
    if m["op"] == "sum":
        yield from m["terms"]
        for i, term in enumerate(m["terms"]):
            for less in smaller(term):
                yield {**m, "terms": [*m["terms"][:i], less, *m["terms"][i + 1 :]]}
    elif m["op"] in ("row_scaled", "without_diagonal"):
        yield m["of"]
        if m["op"] == "row_scaled":
            yield {**m, "scale": [0.0 if m["log"] else 1.0] * len(m["scale"])}
        for less in smaller(m["of"]):
            if m["op"] == "row_scaled" or less["op"] == "low_rank":
                yield {**m, "of": less}
    elif m["op"] in ("low_rank", "multiplied"):
        for r in range(len(m["left"][0]) if len(m["left"][0]) > 1 else 0):
            yield {**m, **{s: [row[:r] + row[r + 1 :] for row in m[s]] for s in ("left", "right")}}
        for side in ("left", "right"):
            yield from ({**m, side: less} for less in rounder(m[side]))
    else:
        yield from ({**m, "weight": less} for less in rounder(m["weight"]))


def rounder(x: list[Any]) -> Iterator[list[Any]]:
    """The same numbers with fewer digits."""
    a = np.asarray(x, dtype=np.float64)
    for digits in (1, 3):
        with np.errstate(divide="ignore", invalid="ignore"):
            power = np.floor(np.log10(np.abs(a)))
            less = np.where(np.isfinite(power), np.round(a / 10.0**power, digits - 1) * 10.0**power, a)
        if np.isfinite(less[np.isfinite(a)]).all() and not np.array_equal(less, a):
            yield less.tolist()


def without_state(m: Matrix, s: int) -> Matrix | None:
    """The operator without one state; None for a band, which has no such operator in general."""
    if m["op"] == "sum":
        terms = [without_state(term, s) for term in m["terms"]]
        return None if any(term is None for term in terms) else {**m, "terms": terms}
    if m["op"] in ("row_scaled", "without_diagonal"):
        of = without_state(m["of"], s)
        if of is None:
            return None
        return {**m, "of": of, **({"scale": _drop(m["scale"], s)} if m["op"] == "row_scaled" else {})}
    if m["op"] == "dense":
        return {**m, "weight": [_drop(row, s) for row in _drop(m["weight"], s)]}
    if m["op"] == "banded":
        reach = max(abs(m["offset"]), abs(m["offset"] + len(m["weight"][0]) - 1))
        ends = s in (0, len(m["weight"]) - 1)
        return {**m, "weight": _drop(m["weight"], s)} if ends and reach < len(m["weight"]) - 1 else None
    return {**m, "left": _drop(m["left"], s), "right": _drop(m["right"], s)}


def _drop(x: list[Any], i: int) -> list[Any]:
    return x[:i] + x[i + 1 :]


def apart(m: Matrix, dtype: str) -> float:
    """The nats between the largest and the smallest of its log tensors: what an exponential is taken of."""
    found = list(_logs(m, dtype))
    return max(found) - min(found) if found else 0.0


def _logs(m: Matrix, dtype: str) -> Iterator[float]:
    for name in ("weight", "left", "right", "scale"):
        if name in m and m["log"]:
            x = numbers(m, name, dtype)
            x = x[np.isfinite(x)]
            if len(x):
                yield from (float(x.min()), float(x.max()))
    for part in m.get("terms", [m["of"]] if "of" in m else []):
        yield from _logs(part, dtype)
