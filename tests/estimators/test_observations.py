"""Every observation keeps the laws that the library relies on; one that does not is told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfold.estimators import conformance
from rankfold.estimators.conformance import CHECKS, check_observation
from rankfold.params.observations import OBSERVATIONS
from rankfold.params.observations.poisson import Poisson, PoissonObservation
from rankfold.params.prior import Prior
from tests.estimators.observation_cases import CASES, counts


@pytest.mark.parametrize("name", CASES)
def test_conforms(name: str) -> None:
    observations, make, params = CASES[name]
    x = make()
    kind = OBSERVATIONS[observations if isinstance(observations, str) else "product"]
    if not (kind.symbols or kind.needs == "all"):
        x[0][3] = x[1][2, 0] = np.nan  # a frame and a feature nobody saw
        if kind.complete:
            x[1][2] = np.nan
    assert len(check_observation(observations, x, **params)) == len(CHECKS)


def test_every_observation_has_a_case() -> None:
    found = {case[0] if isinstance(case[0], str) else "product" for case in CASES.values()}
    assert found == set(OBSERVATIONS)


class Wrong(Poisson):
    """A sampler of other rates."""

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.poisson(self.log_rate.exp()[(states + 1) % len(self.log_rate)], generator=generator)


class WrongSampler(PoissonObservation):
    def forward(self, keep: Tensor | None = None) -> Wrong:
        return Wrong(*super().forward(keep))


class WrongStep(PoissonObservation):
    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:
        super().maximise(counts, prior)
        self.log_rate.add_(1.0)


class WrongMissing(PoissonObservation):
    def forward(self, keep: Tensor | None = None) -> Any:
        found = super().forward(keep)

        class Shifted(Poisson):
            def log_obs(self, frames: Tensor) -> Tensor:
                return found.log_obs(frames) + 1.0

        return Shifted(*found)


@pytest.mark.filterwarnings("ignore:a step of EM lost")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (WrongSampler, "samples of state"),
        (WrongStep, "a step of EM|do not keep"),
        (WrongMissing, "a missing frame has a log-weight"),
    ],
)
def test_what_breaks_a_law_is_found(kind: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBSERVATIONS, "wrong", kind)
    with pytest.raises(conformance.ConformanceError, match=says):
        check_observation("wrong", counts())
