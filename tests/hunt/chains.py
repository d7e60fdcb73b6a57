"""Chains: every question that can be asked of random potentials, with every operator and option."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.hunt import matrices, values
from tests.hunt.arithmetic import Array
from tests.hunt.chain_asked import Asked, Oracle
from tests.hunt.compare import DeviatesError
from tests.hunt.kind import Case, Deviation, Kind


class Chains(Kind):
    """A batch of chains, unequal lengths, one transition."""

    name = "chains"
    weight = 2.5

    def draw(self, rng: np.random.Generator) -> Case:
        """Potentials and options."""
        dtype = str(rng.choice(["float32", "float64"]))
        states, steps = int(rng.integers(4, 9)), int(rng.integers(5, 9))
        if rng.random() < 0.45:
            states, steps = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        if rng.random() < 0.01:  # more states than blocks of bands and of matrices without a diagonal hold
            states, steps = (int(rng.choice([33, 40, 65])), 4) if rng.random() < 0.8 else (259, 3)
        num = int(rng.integers(1, 4))
        how = values.style(rng)
        ends = [str(rng.choice(["one", "each"])), str(rng.choice(["none", "one", "each"]))]
        initial, final = (
            None if end == "none" else values.logs(rng, how, dtype, *([num] if end == "each" else []), states)
            for end in ends
        )
        lengths = rng.integers(1, steps + 1, num).tolist() if rng.random() < 0.6 else None
        return {
            "dtype": dtype,
            "log_initial": initial,
            "transition": matrices.draw(rng, how, dtype, states),
            "log_obs": values.logs(rng, how, dtype, num, steps, states),
            "log_final": final,
            "lengths": lengths,
            "upstream": rng.choice([0.0, 0.5, 1.0, 2.0], num).tolist(),
            "arithmetic": str(rng.choice(["scaled", "scaled", "log"])),
            "precision": str(rng.choice(["float32", "tf32", "bf16"])),
            "strided": bool(rng.random() < 0.3),
            "border": int(rng.integers(0, steps)),
            "samples": 4096 if rng.random() < 0.01 else 48,
            "seed": int(rng.integers(2**31)),
        }

    def large(self, case: Case) -> bool:
        _, steps, states = np.shape(case["log_obs"])
        return states > 3 and steps > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            Asked(case, self.device).all()
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        num, steps, states = np.shape(case["log_obs"])
        for i in range(num if num > 1 else 0):
            yield _taken(case, np.delete(np.arange(num), i), steps)
        for cut in {1, steps // 2, steps - 1} - {0, steps}:
            yield _taken(case, np.arange(num), cut)
        for s in range(states if states > 1 else 0):
            transition = matrices.without_state(case["transition"], s)
            if transition is not None:
                short = {k: np.delete(np.array(case[k]), s, -1).tolist() for k in _TABLES if case[k] is not None}
                yield {**case, **short, "transition": transition}
        for key, plain in {
            "log_final": None,
            "lengths": None,
            "arithmetic": "scaled",
            "precision": "float32",
            "strided": False,
            "border": 0,
            "upstream": [1.0] * num,
        }.items():
            if case[key] != plain:
                yield {**case, key: plain}
        yield from ({**case, "transition": less} for less in matrices.smaller(case["transition"]))
        for key in _TABLES:
            if case[key] is not None:
                if np.any(case[key]):
                    yield {**case, key: np.zeros_like(case[key]).tolist()}
                yield from ({**case, key: less} for less in matrices.rounder(case[key]))

    def program(self, case: Case) -> str:
        solved = Oracle(case).solved
        end = "None" if case["log_final"] is None else f"tensor({case['log_final']})"
        lengths = "None" if case["lengths"] is None else f"torch.tensor({case['lengths']})"
        return "\n".join(
            [
                "import torch",
                "import rankfold",
                "",
                'inf = float("inf")',
                "",
                "",
                "def tensor(x):",
                f"    return torch.tensor(x, dtype=torch.{case['dtype']}, device={self.device!r}, requires_grad=True)",
                "",
                "",
                "p = rankfold.ChainPotentials(",
                f"    tensor({case['log_initial']}),",
                f"    {matrices.source(case['transition'])},",
                f"    tensor({case['log_obs']}),",
                f"    {end},",
                f"    {lengths},",
                ")",
                f"log_z = rankfold.log_z(p, {case['arithmetic']!r}, {case['precision']!r})",
                f"print(log_z)  # expected {solved.log_z.astype(float).tolist()}",
                "inputs = [p.log_initial, p.log_obs, *p.transition.factors()]",
                f"print(torch.autograd.grad(log_z, inputs, torch.tensor({case['upstream']}).to(log_z)))",
                f"print(rankfold.posterior(p).state)  # expected {solved.posterior.astype(float).tolist()}",
                "print(rankfold.expected_counts(p), rankfold.viterbi(p), rankfold.entropy(p))",
                "print(rankfold.online.filter(p))",
                "",
            ]
        )


_TABLES = ("log_initial", "log_final", "log_obs")


def _taken(case: Case, rows: Array, steps: int) -> Case:
    """Some sequences, cut."""
    short = {"log_obs": np.array(case["log_obs"])[rows, :steps].tolist()}
    for key in ("log_initial", "log_final"):
        if np.ndim(case[key] if case[key] is not None else 0.0) == 2:
            short[key] = np.array(case[key])[rows].tolist()
    if case["lengths"] is not None:
        short["lengths"] = np.minimum(np.array(case["lengths"])[rows], steps).tolist()
    upstream = np.array(case["upstream"])[rows].tolist()
    return {**case, **short, "upstream": upstream, "border": min(case["border"], steps - 1)}
