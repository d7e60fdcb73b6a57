"""Trees: sentences under dense, low-rank, matricised and shared rules, with every question a tree has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.hunt import matrices, rules, values
from tests.hunt.compare import DeviatesError
from tests.hunt.kind import Case, Deviation, Kind
from tests.hunt.tree_asked import ENDS, Asked


class Trees(Kind):
    """A batch of sentences and a grammar."""

    name = "trees"
    weight = 2.0

    def draw(self, rng: np.random.Generator) -> Case:
        """Potentials and options."""
        dtype = str(rng.choice(["float32", "float64"]))
        n, p, words = int(rng.integers(4, 6)), int(rng.integers(1, 6)), int(rng.integers(5, 7))
        if rng.random() < 0.45:
            n, p, words = (int(rng.integers(1, 5)) for _ in range(3))
        num = int(rng.integers(1, 3))
        how = values.style(rng)
        made, tensors = rules.draw(rng, how, dtype, n, p, num)
        plain = {**how, "zeros": how["zeros"] * 0.3}

        def end(size: int) -> list[Any]:
            return values.logs(rng, plain, dtype, *([num] if rng.random() < 0.3 else []), size)

        return {
            "dtype": dtype,
            "log_leaf": values.logs(rng, plain, dtype, num, words, p),
            "rules": made,
            "tensors": tensors,
            "axes": {name: 3 if name.startswith(("weight", "pair")) else 2 for name in tensors},
            "log_root": end(n),
            "log_root_leaf": end(p) if rng.random() < 0.7 else None,
            "log_span": values.logs(rng, plain, dtype, num, words + 1, words + 1) if rng.random() < 0.5 else None,
            "lengths": rng.integers(1, words + 1, num).tolist() if rng.random() < 0.6 else None,
            "upstream": rng.choice([0.0, 0.5, 1.0, 2.0], num).tolist(),
            "arithmetic": str(rng.choice(["scaled", "scaled", "log"])),
            "samples": 24,
            "seed": int(rng.integers(2**31)),
        }

    def large(self, case: Case) -> bool:
        return np.shape(case["log_root"])[-1] > 3 and np.shape(case["log_leaf"])[1] > 4

    def check(self, case: Case) -> Deviation | None:
        try:
            Asked(case, self.device).all()
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        num, words, _ = np.shape(case["log_leaf"])
        if num > 1 and all(np.ndim(x) == case["axes"][k] for k, x in case["tensors"].items()):
            for i in range(num):
                keep = np.delete(np.arange(num), i)
                less = {k: np.array(case[k])[keep].tolist() for k in ("log_leaf", "upstream")}
                for k in ("log_root", "log_root_leaf", "log_span", "lengths"):
                    if case[k] is not None and (k in ("log_span", "lengths") or np.ndim(case[k]) == 2):
                        less[k] = np.array(case[k])[keep].tolist()
                yield {**case, **less}
        if words > 1:
            less = {"log_leaf": [x[:-1] for x in case["log_leaf"]]}
            if case["log_span"] is not None:
                less["log_span"] = np.array(case["log_span"])[:, :-1, :-1].tolist()
            if case["lengths"] is not None:
                less["lengths"] = np.minimum(case["lengths"], words - 1).tolist()
            yield {**case, **less}
        for key, simple in {
            "log_root_leaf": None,
            "log_span": None,
            "lengths": None,
            "arithmetic": "scaled",
            "upstream": [1.0] * num,
        }.items():
            if case[key] != simple:
                yield {**case, key: simple}
        for key in ENDS:
            if case[key] is not None:
                if np.any(case[key]):
                    yield {**case, key: np.zeros_like(case[key]).tolist()}
                yield from ({**case, key: less} for less in matrices.rounder(case[key]))
        for name, x in case["tensors"].items():
            for less in matrices.rounder(x):
                yield {**case, "tensors": {**case["tensors"], name: less}}
