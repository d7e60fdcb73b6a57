"""What must hold before a speed is worth reporting: every library computes the same.

Read next: `__main__.py`, which refuses to go on otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.libraries.hmm import Hmm, random_hmm
from benchmarks.libraries.own import DENSE, GradientStep, Size
from benchmarks.libraries.peers import (
    DYNAMAX,
    HMMLEARN,
    HMMLEARN_SCALING,
    POMEGRANATE,
    RANKFOLD_32,
    RANKFOLD_64,
    RANKFOLD_LOW_RANK,
    Stepper,
    make,
)

EXACT = 1e-8  # float64
ROUGH = 1e-5  # float32


@dataclass(frozen=True)
class Check:
    """Two results and how far they are apart, relatively."""

    what: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed  # NaN fails


def verify() -> list[Check]:
    """All checks, on a model of 16 states."""
    return [*_libraries(random_hmm(16, num_tokens=20, num_symbols=30)), *_gradients()]


def _libraries(hmm: Hmm) -> Iterator[Check]:
    ours = _stepped(RANKFOLD_64, hmm)
    for name in (HMMLEARN, HMMLEARN_SCALING):
        theirs = _stepped(name, hmm)
        yield Check(f"log-likelihood: rankfold and {name}, float64", _apart(ours.log_z(), theirs.log_z()), EXACT)
        for part, a, b in zip(("initial", "transition", "emission"), _params(ours), _params(theirs), strict=True):
            yield Check(f"{part} after one EM step: rankfold and {name}, float64", _apart(a, b), EXACT)
    for name in (POMEGRANATE, DYNAMAX, RANKFOLD_32, RANKFOLD_LOW_RANK):
        text = f"log-likelihood: rankfold dense float64 and {name}"
        yield Check(text, _apart(ours.log_z(), _stepped(name, hmm).log_z()), ROUGH)


def _stepped(name: str, hmm: Hmm) -> Stepper:
    stepper = make(name, hmm)
    stepper.prepare()
    stepper.step()
    return stepper


def _params(stepper: Stepper) -> tuple[Any, Any, Any]:
    assert stepper.params is not None
    return stepper.params()


def _gradients() -> Iterator[Check]:
    size = Size(40, 5, num_sequences=3, num_tokens=12)
    for kind in (DENSE, "low rank", "banded", "sum"):
        pair = [GradientStep(kind, size, torch.float64, plain=plain) for plain in (False, True)]
        values = [step.run() for step in pair]
        errors = [_apart(*values)]
        errors += [_apart(a.grad, b.grad) for a, b in zip(pair[0].leaves(), pair[1].leaves(), strict=True)]
        yield Check(f"log Z and gradients, {kind}: rankfold and plain autograd, float64", float(np.max(errors)), EXACT)


def _apart(a: Any, b: Any) -> float:
    """The largest relative difference of two arrays, entry by entry."""
    x, y = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (a, b))
    return float(((x - y).abs() / torch.maximum(x.abs(), y.abs()).clamp(min=1e-300)).max())
