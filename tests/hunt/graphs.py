"""Captured CUDA graphs of a gradient step: replayed, they give the numbers of the oracle, or NaN, never others.

A graph cannot look at values: a sequence it cannot vouch for is NaN. Ordinary weights must not be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rankfold
from rankfold.numerics.capture import capture_graph
from tests.hunt import chain_asked, chains, rules, segment_asked, segments, tree_asked, trees
from tests.hunt.arithmetic import Array
from tests.hunt.compare import DeviatesError, array, close, expect
from tests.hunt.kind import Case, Deviation, Kind

PLAIN = 10.0  # nats: a step whose logarithms are at most so large, without zeros, needs no repeating


class Graphs(Kind):
    """A step of a chain, of segments or of trees, recorded and replayed."""

    name = "graphs"
    devices = ("cuda",)
    unit = "graph"
    weight = 1.0

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        self.kinds = {one.name: one for one in (chains.Chains(device), segments.Segments(device), trees.Trees(device))}

    def draw(self, rng: np.random.Generator) -> Case:
        """A case of one of the kinds, as a graph can take it."""
        name = str(rng.choice(list(self.kinds)))
        return {"of": name, "case": {**self.kinds[name].draw(rng), "arithmetic": "scaled", "stretch": None}}

    def large(self, case: Case) -> bool:
        return self.kinds[case["of"]].large(case["case"])

    def check(self, case: Case) -> Deviation | None:
        try:
            _replayed(case["of"], case["case"], self.device)
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        for less in self.kinds[case["of"]].smaller(case["case"]):
            yield {**case, "case": {**less, "arithmetic": "scaled", "stretch": None}}


def _replayed(name: str, case: Case, device: str) -> None:
    asked: Any = {"chains": chain_asked, "segments": segment_asked, "trees": tree_asked}[name].Asked(case, device)
    truth = asked.truth
    p = asked.p
    if name == "trees":
        ends = [x for x in tree_asked.ENDS if case[x] is not None]
        inner = asked.tensors
        log_z = truth.log_z
        words = truth.leaves(np.zeros(asked.shape))
    else:
        ends = [x for x in ("log_initial", "log_obs") if case[x] is not None]
        inner = {f"factor {i}": x for i, x in enumerate(p.transition.factors())}
        log_z = truth.solved.log_z if name == "chains" else truth.log_z
        words = truth.solved.posterior if name == "chains" else truth.padded("states")
    named: dict[str, Any] = {x: getattr(p, x) for x in ends} | inner

    def step() -> tuple[Any, ...]:
        # Everything that autograd follows is made in here: what was made on another stream cannot be captured.
        leaves = {x: tensor.detach().requires_grad_() for x, tensor in named.items()}
        made = {x: leaves[x] for x in ends}
        if name == "trees":
            out = rankfold.log_z(p._replace(**made, rules=rules.build(case["rules"], leaves)))
        else:
            made["transition"] = p.transition.with_factors(*(leaves[x] for x in inner))
            q = p._replace(**made)
            chain = name == "chains"
            out = rankfold.log_z(q, precision=case["precision"]) if chain else rankfold.log_z(q)
        grads = torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        return (out.detach(), *grads)

    graph, found = capture_graph(step)
    for x in found:
        x.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    got = array(found[0])
    posterior = array(found[1 + list(named).index("log_leaf" if name == "trees" else "log_obs")])
    more = {x: y for x in ("log_duration", "log_final") if (y := getattr(p, x, None)) is not None}
    plain = _plain(log_z, named | more) and (name == "trees" or bool((p.transition.to_dense() > 0).all()))
    # Forward and backward pass vouch for themselves: log Z may be known where its gradient is not.
    for what, x, true, limit in (
        (f"log_z of {name}", got, log_z, truth.rounded),
        (f"posterior of {name}", posterior, words, 2 * truth.rounded),
    ):
        known = ~np.isnan(x)
        expect(f"NaN in {what}, plain", bool(known.all()) or not plain, x, "expected", true)
        close(what, np.where(known, x, true), true, limit)


def _plain(log_z: Array, named: dict[str, Any]) -> bool:
    """Whether nothing is zero, nothing is far from anything else, and no logarithm is large."""
    if not np.isfinite(log_z).all():
        return False
    for name, x in named.items():
        seen = np.abs(array(x))
        seen = seen[~np.isnan(seen)]
        if (seen > PLAIN).any() or (not name.startswith("log_") and (seen < 1e-3).any()):
            return False
    return True
