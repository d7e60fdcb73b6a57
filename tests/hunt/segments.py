"""Segments: semi-Markov chains with every operator and option, censored, carried in, in stretches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.hunt import matrices, values
from tests.hunt.arithmetic import Array
from tests.hunt.compare import DeviatesError
from tests.hunt.kind import Case, Deviation, Kind
from tests.hunt.segment_asked import TABLES, Asked, Oracle

PLAIN = {
    "log_final": None,
    "lengths": None,
    "censored": False,
    "arithmetic": "scaled",
    "stretch": None,
    "border": 0,
}


class Segments(Kind):
    """A batch of semi-Markov chains."""

    name = "segments"
    weight = 2.5

    def draw(self, rng: np.random.Generator) -> Case:
        """Potentials and options."""
        dtype = str(rng.choice(["float32", "float64"]))
        states, steps, longest = int(rng.integers(4, 7)), int(rng.integers(5, 8)), int(rng.integers(1, 5))
        if rng.random() < 0.45:
            states, steps, longest = (int(rng.integers(1, n)) for n in (5, 5, 7))
        if rng.random() < 0.01:
            states, steps = 33, 4
        num = int(rng.integers(1, 4))
        how = values.style(rng)
        shapes = {"one": [], "each": [num], "carried": [num, longest]}
        first, final = str(rng.choice(["one", "each", "carried"])), str(rng.choice(["none", "one", "each"]))
        return {
            "dtype": dtype,
            "log_initial": values.logs(rng, how, dtype, *shapes[first], states),
            "transition": matrices.draw(rng, how, dtype, states),
            "log_duration": values.logs(rng, how, dtype, states, longest),
            "log_obs": values.logs(rng, how, dtype, num, steps, states),
            "log_final": None if final == "none" else values.logs(rng, how, dtype, *shapes[final], states),
            "lengths": rng.integers(1, steps + 1, num).tolist() if rng.random() < 0.6 else None,
            "censored": bool(rng.random() < 0.4),
            "upstream": rng.choice([0.0, 0.5, 1.0, 2.0], num).tolist(),
            "arithmetic": str(rng.choice(["scaled", "scaled", "log"])),
            "stretch": int(rng.integers(1, steps + 2)) if rng.random() < 0.5 else None,
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
        longest = np.shape(case["log_duration"])[1]
        for i in range(num if num > 1 else 0):
            yield _taken(case, np.delete(np.arange(num), i), steps)
        for cut in {1, steps // 2, steps - 1} - {0, steps}:
            yield _taken(case, np.arange(num), cut)
        for s in range(states if states > 1 else 0):
            transition = matrices.without_state(case["transition"], s)
            if transition is not None:
                tables = {
                    k: np.delete(np.array(case[k]), s, 0 if k == "log_duration" else -1).tolist()
                    for k in TABLES
                    if case[k] is not None
                }
                yield {**case, **tables, "transition": transition}
        if longest > 1:
            less = {**case, "log_duration": [row[:-1] for row in case["log_duration"]]}
            if np.ndim(case["log_initial"]) == 3:
                less["log_initial"] = [rows[:-1] for rows in case["log_initial"]]
            yield less
        if np.ndim(case["log_initial"]) == 3:
            yield {**case, "log_initial": np.array(case["log_initial"])[:, 0].tolist()}
        plain = {
            "log_final": None,
            "lengths": None,
            "censored": False,
            "arithmetic": "scaled",
            "stretch": None,
            "border": 0,
        }
        for key, simple in {**plain, "upstream": [1.0] * num}.items():
            if case[key] != simple:
                yield {**case, key: simple}
        yield from ({**case, "transition": less} for less in matrices.smaller(case["transition"]))
        for key in TABLES:
            if case[key] is not None:
                if np.any(case[key]):
                    yield {**case, key: np.zeros_like(case[key]).tolist()}
                yield from ({**case, key: less} for less in matrices.rounder(case[key]))

    def program(self, case: Case) -> str:
        fields = [f"tensor({case[k]})" if case[k] is not None else "None" for k in TABLES]
        lengths = "None" if case["lengths"] is None else f"torch.tensor({case['lengths']})"
        want = [float(one.log_z) for one in Oracle(case).solved]
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
                "p = rankfold.SegmentPotentials(",
                f"    {fields[0]},",
                f"    {matrices.source(case['transition'])},",
                f"    {fields[1]},",
                f"    {fields[2]},",
                f"    {fields[3]},",
                f"    {lengths},",
                f"    {case['censored']},",
                ")",
                f"log_z = rankfold.recursions.segments.log_z(p, {case['arithmetic']!r}, stretch={case['stretch']})",
                f"print(log_z)  # expected {want}",
                "inputs = [p.log_initial, p.log_duration, p.log_obs, *p.transition.factors()]",
                f"print(torch.autograd.grad(log_z, inputs, torch.tensor({case['upstream']}).to(log_z)))",
                "print(rankfold.posterior(p), rankfold.expected_counts(p), rankfold.viterbi(p))",
                "",
            ]
        )


def _taken(case: Case, rows: Array, steps: int) -> Case:
    short = {"log_obs": np.array(case["log_obs"])[rows, :steps].tolist()}
    for key in ("log_initial", "log_final"):
        if np.ndim(case[key] if case[key] is not None else 0.0) >= 2:
            short[key] = np.array(case[key])[rows].tolist()
    if case["lengths"] is not None:
        short["lengths"] = np.minimum(np.array(case["lengths"])[rows], steps).tolist()
    upstream = np.array(case["upstream"])[rows].tolist()
    return {**case, **short, "upstream": upstream, "border": min(case["border"], steps - 1)}
