"""Factor graph grammars by tables over all nodes of a rule, in wide logarithms; shares no code with the library.

A grammar is plain data: "domains" (name to size), "symbols" and "factors" (name to domains), and "rules", each with
"left", "nodes" (name to domain, externals first), "externals" (how many) and "edges" (label, node names).
Recursion is iterated to its least fixed point. Held to plain enumeration in `test_oracles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.hunt.arithmetic import NONE, Array, exp, total

Grammar = dict[str, Any]
Tables = dict[str, Array]


@dataclass
class Solved:
    """log Z, the table of every symbol, what surrounds it, and the gradient of every factor."""

    log_z: Array
    inside: Tables
    outside: Tables  # log d log Z / d table
    factors: Tables  # log d log Z / d factor
    rules: list[Array]  # expected uses


def sizes(g: Grammar, names: list[str]) -> tuple[int, ...]:
    """The shape of a table over domains."""
    return tuple(g["domains"][name] for name in names)


def spread(x: Array, names: list[str], nodes: list[str]) -> Array:
    """A table over some nodes as one that broadcasts over all of them."""
    order = sorted(range(len(names)), key=lambda i: nodes.index(names[i]))
    shape = [1] * len(nodes)
    for i in order:
        shape[nodes.index(names[i])] = x.shape[i]
    return x.transpose(order).reshape(shape)


def product(rule: Grammar, given: Tables, leave: int | None = None) -> Array:
    """The sum of the logarithms of all edges but one."""
    nodes = list(rule["nodes"])
    out = np.zeros([1] * len(nodes), dtype=np.longdouble)
    for i, (label, names) in enumerate(rule["edges"]):
        if i != leave:
            out = out + spread(given[label], names, nodes)
    return out


def over(x: Array, keep: list[str], nodes: list[str], shape: tuple[int, ...], best: bool = False) -> Array:
    """The log-sum (or maximum) over all nodes but `keep`, in their order."""
    full = np.broadcast_to(x, shape)
    gone = tuple(i for i, name in enumerate(nodes) if name not in keep)
    out = full if not gone else full.max(gone) if best else total(full, gone)
    left = [name for name in nodes if name in keep]
    return out.transpose([left.index(name) for name in keep])


def tables(g: Grammar, factors: Tables, best: bool = False, rounds: int = 4000) -> Tables:
    """The weight of every symbol at every value of its nodes."""
    found = {name: np.full(sizes(g, of), NONE) for name, of in g["symbols"].items()}
    for _ in range(rounds if g["recursive"] else len(g["symbols"])):
        new: dict[str, list[Array]] = {name: [] for name in found}
        for rule in g["rules"]:
            nodes = list(rule["nodes"])
            shape = sizes(g, list(rule["nodes"].values()))
            new[rule["left"]].append(
                over(product(rule, {**factors, **found}), nodes[: rule["externals"]], nodes, shape, best)
            )
        after = {name: np.stack(x).max(0) if best else total(np.stack(x), 0) for name, x in new.items()}
        with np.errstate(invalid="ignore"):
            still = all(((after[k] == found[k]) | (np.abs(after[k] - found[k]) < 1e-18)).all() for k in found)
        found = after
        if still:
            break
    return found


def solve(g: Grammar, factors: Tables) -> Solved:
    """Everything, from the tables down."""
    inside = tables(g, factors)
    log_z = inside[g["start"]]
    given = {**factors, **inside}
    nothing = {name: np.full(x.shape, NONE) for name, x in given.items()}
    if not np.isfinite(log_z):
        return Solved(
            log_z,
            inside,
            {k: nothing[k] for k in inside},
            {k: nothing[k] for k in factors},
            [np.zeros(()) for _ in g["rules"]],
        )
    outside = dict(nothing)
    for _ in range(4000 if g["recursive"] else len(g["symbols"]) + 1):
        new: dict[str, list[Array]] = {name: [x] for name, x in nothing.items()}
        new[g["start"]].append(-log_z)
        uses = []
        for rule in g["rules"]:
            nodes = list(rule["nodes"])
            shape = sizes(g, list(rule["nodes"].values()))
            above = spread(outside[rule["left"]], nodes[: rule["externals"]], nodes)
            uses.append(exp(total(np.broadcast_to(above + product(rule, given), shape).reshape(-1))))
            for i, (label, names) in enumerate(rule["edges"]):
                new[label].append(over(above + product(rule, given, i), names, nodes, shape))
        after = {name: total(np.stack(x), 0) for name, x in new.items()}
        with np.errstate(invalid="ignore"):
            still = all(((after[k] == outside[k]) | (np.abs(after[k] - outside[k]) < 1e-18)).all() for k in after)
        outside = after
        if still:
            break
    return Solved(log_z, inside, {k: outside[k] for k in inside}, {k: outside[k] for k in factors}, uses)


def count(g: Grammar, support: dict[str, Array]) -> int:
    """How many derivations with an assignment have any weight: whole numbers of any size."""
    found: Tables = {name: np.zeros(sizes(g, of), dtype=object) for name, of in g["symbols"].items()}
    for _ in g["symbols"]:
        given = {**{k: x.astype(object) for k, x in support.items()}, **found}
        new = {name: np.zeros(sizes(g, of), dtype=object) for name, of in g["symbols"].items()}
        for rule in g["rules"]:
            nodes = list(rule["nodes"])
            out = np.ones([1] * len(nodes), dtype=object)
            for label, names in rule["edges"]:
                out = out * spread(given[label], names, nodes)
            full = np.broadcast_to(out, sizes(g, list(rule["nodes"].values())))
            gone = tuple(range(rule["externals"], len(nodes)))
            new[rule["left"]] = new[rule["left"]] + (full.sum(gone) if gone else full)
        found = new
    return int(np.asarray(found[g["start"]]).item())


def weight(g: Grammar, factors: Tables, derivation: Any, left: str, at: tuple[int, ...]) -> Array | None:
    """The log-weight of a derivation with values; None if it is none of the grammar's."""
    index = int(derivation.rule[1:])
    rule = g["rules"][index]
    nodes = list(rule["nodes"])
    values = dict(derivation.values)
    if rule["left"] != left or tuple(values[x] for x in nodes[: rule["externals"]]) != at:
        return None
    children = iter(derivation.children)
    out = np.longdouble(0.0)
    for label, names in rule["edges"]:
        here = tuple(values[name] for name in names)
        if label in factors:
            out = out + factors[label][here]
            continue
        below = weight(g, factors, next(children), label, here)
        if below is None:
            return None
        out = out + below
    return out if next(children, None) is None else None
