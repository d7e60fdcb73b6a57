"""Chains of blocks: every position has states and transitions of its own, all in logarithms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import rankfold
from rankfold.recursions import blocks
from tests.hunt import chain_oracle, matrices, values
from tests.hunt.arithmetic import EPS, NONE, exp, magnitude, rare, rounding, wide
from tests.hunt.compare import DeviatesError, close, expect
from tests.hunt.kind import Case, Deviation, Kind

TABLES = ("log_initial", "log_transition", "log_obs")


class Blocks(Kind):
    """A batch of chains of blocks."""

    name = "blocks"
    weight = 2.0

    def draw(self, rng: np.random.Generator) -> Case:
        """Potentials."""
        dtype = str(rng.choice(["float32", "float64"]))
        states, steps = int(rng.integers(4, 9)), int(rng.integers(5, 9))
        if rng.random() < 0.45:
            states, steps = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        num = int(rng.integers(1, 4))
        how = values.style(rng)
        return {
            "dtype": dtype,
            "log_initial": values.logs(rng, how, dtype, num, states),
            "log_transition": values.logs(rng, how, dtype, num, steps - 1, states, states),
            "log_obs": values.logs(rng, how, dtype, num, steps, states),
            "block": rng.integers(0, 4, (num, steps)).tolist(),
            "lengths": rng.integers(1, steps + 1, num).tolist() if rng.random() < 0.6 else None,
            "upstream": rng.choice([0.0, 0.5, 1.0, 2.0], num).tolist(),
            "samples": 4096 if rng.random() < 0.01 else 48,
            "seed": int(rng.integers(2**31)),
        }

    def large(self, case: Case) -> bool:
        _, steps, states = np.shape(case["log_obs"])
        return states > 3 and steps > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            check(case, self.device)
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        num, steps, states = np.shape(case["log_obs"])
        keys = (*TABLES, "block", "upstream", *(["lengths"] if case["lengths"] else []))
        for i in range(num if num > 1 else 0):
            yield {**case, **{k: case[k][:i] + case[k][i + 1 :] for k in keys}}
        if steps > 1:
            cut = {k: [row[:-1] for row in case[k]] for k in ("log_transition", "log_obs", "block")}
            lengths = None if case["lengths"] is None else np.minimum(case["lengths"], steps - 1).tolist()
            yield {**case, **cut, "lengths": lengths}
        for s in range(states if states > 1 else 0):
            less = {k: np.delete(np.array(case[k]), s, -1) for k in TABLES}
            less["log_transition"] = np.delete(less["log_transition"], s, -2)
            yield {**case, **{k: x.tolist() for k, x in less.items()}}
        if case["lengths"] is not None:
            yield {**case, "lengths": None}
        for key in TABLES:
            if np.any(case[key]):
                yield {**case, key: np.zeros_like(case[key]).tolist()}
            yield from ({**case, key: less} for less in matrices.rounder(case[key]))


def check(case: Case, device: str) -> None:
    """Every question, in turn."""
    dtype = case["dtype"]
    initial, a, obs = (wide(case[k], dtype) for k in TABLES)
    num, steps, states = obs.shape
    a = a.reshape(num, steps - 1, states, states)
    lengths = np.array(case["lengths"] or [steps] * num)
    final = np.zeros((num, states), obs.dtype)
    fields = (initial, a, obs, final, lengths)
    solved = chain_oracle.solve(*fields)
    possible = np.isfinite(solved.log_z)
    size = steps * (magnitude(obs) + magnitude(a)) + magnitude(initial)
    # Messages are normalised logarithms: a step rounds sums of one transition, one observation and one message.
    once = magnitude(obs) + magnitude(a) + magnitude(initial)
    tol = {x: rounding(x, steps, states, 0.0, size) + 3 * steps * 4 * once * EPS[x] for x in EPS}

    tensors = []
    for name, inside in zip(TABLES, (None, solved.inside[:, 1:], solved.inside), strict=True):
        x = np.array(case[name]).reshape(
            (num, steps - 1, states, states) if name == "log_transition" else np.shape(case[name])
        )
        if inside is not None:
            x[~inside] = np.nan
        tensors.append(torch.tensor(x, dtype=getattr(torch, dtype), device=device).requires_grad_())
    counted = None if case["lengths"] is None else torch.tensor(case["lengths"], device=device)
    p = rankfold.BlockPotentials(*tensors, torch.tensor(case["block"], device=device), counted)

    out = blocks.log_z(p)
    close("log_z", out, solved.log_z, tol[dtype])
    upstream = np.array(case["upstream"])
    grads = torch.autograd.grad(out, tensors, torch.tensor(upstream, device=device))
    posterior = solved.posterior * upstream[:, None, None]
    moves = exp(np.where(np.isfinite(solved.moves + a), solved.moves + a, NONE)) * upstream[:, None, None, None]
    for name, got, want in zip(TABLES, grads, (posterior[:, 0], moves, posterior), strict=True):
        close(f"gradient of {name}", got, want, tol[dtype] * max(1.0, upstream.max()))
    close("posterior", rankfold.posterior(p).state, solved.posterior, tol[dtype])
    close(
        "entropy",
        rankfold.entropy(p),
        chain_oracle.entropy(solved, a, a, initial, obs, final, lengths),
        tol["float64"] * (1 + size),
    )
    last, log_total = blocks.advance(p)
    ends = np.where(
        possible[:, None],
        solved.alpha[np.arange(num), lengths - 1] - np.where(possible, solved.log_z, 0.0)[:, None],
        NONE,
    )
    close("filtered", last, ends, tol[dtype] + EPS[dtype] * np.abs(np.where(np.isfinite(ends), ends, 0.0)))
    close("log_z of advance", log_total, solved.log_z, tol[dtype])

    path, log_prob = blocks.best_path(p)
    best = chain_oracle.best(*fields)
    exact = 16 * steps * EPS["float64"] * (1 + size)
    close("best path", log_prob, best, exact)
    generator = torch.Generator(device).manual_seed(case["seed"])
    drawn = blocks.draw(p, case["samples"], generator)
    floor = np.where(possible, solved.log_z, 0.0) - steps * np.log(states) - np.log(1e15)
    block = np.array(case["block"])
    known = solved.inside & possible[:, None]
    for what, paths, least in (("best path", path[None], best - 2 * exact), ("sample", drawn, floor)):
        index = paths.cpu().numpy() - block * states
        expect(what, bool(((paths.cpu().numpy() >= 0) == known).all()), "-1 in the wrong places")
        expect(what, bool(((index >= 0) & (index < states))[:, known].all()), "a state outside of its block")
        weight = chain_oracle.weight(np.where(known, index, 0), *fields)[:, possible]
        expect(what, bool((weight >= least[possible]).all()), index, "weighs", weight, "expected", least)
    seen = ((drawn.cpu().numpy() - block * states)[..., None] == np.arange(states)).sum(0)
    odd = rare(case["samples"], seen, solved.posterior) & known[..., None]
    expect("sample frequencies", not odd.any(), seen[odd], "of", case["samples"])
