"""Binary rules as plain data: four rules of named tensors, which they may share; built, written out, differentiated.

A rule is {"op": "dense" | "cpd" | "matricised", "log": bool, "of": names of its tensors, None for an identity head}.
`written` and `pulled` share nothing with the library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rankfold
from tests.hunt import values
from tests.hunt.arithmetic import NONE, Array, log, total, wide
from tests.hunt.tree_oracle import KINDS

Rules = dict[str, Any]


def draw(rng: values.Rng, how: dict[str, Any], dtype: str, n: int, p: int, num: int) -> tuple[Rules, dict[str, Any]]:
    """Four rules and their tensors: those of the papers, which share a head, or any mixture."""
    tensors: dict[str, Any] = {}
    logged = bool(rng.random() < 0.5)
    each = [num] if rng.random() < 0.2 else []  # rules of each sentence

    def new(name: str, *shape: int) -> str:
        tensors[name] = (values.logs if logged else values.weights)(rng, how, dtype, *each, *shape)
        return name

    size = {"s": n, "l": p}
    rules: Rules = {}
    if rng.random() < 0.5:
        rank = n if rng.random() < 0.2 else int(rng.integers(1, n + 3))
        head = None if rank == n and rng.random() < 0.5 else new("head", n, rank)
        shared = rng.random() < 0.7
        for kind in KINDS:
            sides = []
            for side, child in zip(("left", "right"), kind, strict=True):
                name = f"{side}_{child}" if shared else f"{side}_{kind}"
                sides.append(name if name in tensors else new(name, size[child], rank))
            rules[kind] = {"op": "cpd", "log": logged, "of": [head, *sides]}
        return rules, tensors
    for kind in KINDS:
        logged = bool(rng.random() < 0.5)
        sizes = [size[child] for child in kind]
        op = str(rng.choice(["dense", "cpd", "matricised"]))
        rank = int(rng.integers(1, n + 3))
        if op == "dense":
            of: list[str | None] = [new(f"weight_{kind}", n, *sizes)]
        elif op == "matricised":
            of = [new(f"parent_{kind}", n, rank), new(f"pair_{kind}", *sizes, rank)]
        else:
            of = [
                new(f"head_{kind}", n, rank),
                *(new(f"{x}_{kind}", y, rank) for x, y in zip(("left", "right"), sizes, strict=True)),
            ]
        rules[kind] = {"op": op, "log": logged, "of": of}
    return rules, tensors


def build(rules: Rules, tensors: dict[str, Any]) -> rankfold.Branch:
    """The library's rules of its tensors."""
    makers = {"dense": rankfold.BinaryDense, "cpd": rankfold.BinaryCPD, "matricised": rankfold.BinaryMatricised}
    made = []
    for kind in KINDS:
        rule = rules[kind]
        make: Any = makers[rule["op"]]
        of = [None if name is None else tensors[name] for name in rule["of"]]
        made.append((make.from_log if rule["log"] else make)(*of))
    return rankfold.Branch(*made)


def numbers(case: dict[str, Any], name: str, sentence: int) -> Array:
    """The logarithms of a tensor, of one sentence where each has its own."""
    logged = next(rule["log"] for rule in case["rules"].values() if name in rule["of"])
    x = wide(case["tensors"][name], case["dtype"])
    if x.ndim > case["axes"][name]:
        x = x[sentence]
    return x if logged else log(x)


def parts(case: dict[str, Any], kind: str, sentence: int) -> list[Array]:
    """The logarithms of a rule's tensors; an identity head is written."""
    rule = case["rules"][kind]
    given = [None if name is None else numbers(case, name, sentence) for name in rule["of"]]
    if given[0] is None:
        rank = given[1].shape[1]
        given[0] = np.where(np.eye(rank, dtype=bool), 0.0, NONE)
    return given


def written(case: dict[str, Any], kind: str, sentence: int, best: bool = False) -> Array:  # "a n m"
    """The logarithm of a rule; `best`: of its largest rank instead of their sum."""
    op, x = case["rules"][kind]["op"], parts(case, kind, sentence)
    if op == "dense":
        return x[0]
    if op == "matricised":
        terms = x[0][:, None, None, :] + x[1][None]
    else:
        terms = x[0][:, None, None, :] + x[1][None, :, None, :] + x[2][None, None, :, :]
    return terms.max(-1) if best else total(terms)


def pulled(case: dict[str, Any], kind: str, g: Array, sentence: int) -> dict[str, Array]:  # "a n m"
    """For each tensor of a rule the log of its gradient in linear weights; `g` that of the rule."""
    rule, x = case["rules"][kind], parts(case, kind, sentence)
    if rule["op"] == "dense":
        return {rule["of"][0]: g}
    if rule["op"] == "matricised":
        parent = total((g[..., None] + x[1][None]).reshape(*g.shape[:1], -1, x[1].shape[-1]), 1)
        return {rule["of"][0]: parent, rule["of"][1]: total(g[..., None] + x[0][:, None, None, :], 0)}
    head, left, right = x
    cells = g[..., None]
    out = {
        rule["of"][1]: total(cells + head[:, None, None] + right[None, None], (0, 2)),
        rule["of"][2]: total(cells + head[:, None, None] + left[None, :, None], (0, 1)),
    }
    if rule["of"][0] is not None:
        out[rule["of"][0]] = total(cells + left[None, :, None] + right[None, None], (1, 2))
    return out
