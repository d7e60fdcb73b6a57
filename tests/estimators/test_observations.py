"""Every observation keeps the laws that the library relies on; one that does not is told so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfold.estimators import HMM, conformance
from rankfold.estimators.conformance import CHECKS, check_observation
from rankfold.models.config import FrameConfig
from rankfold.params.observations import OBSERVATIONS
from rankfold.params.observations.poisson import Poisson, PoissonObservation
from rankfold.params.prior import Prior
from tests.estimators.observation_cases import CASES, counts, positive


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


@pytest.mark.filterwarnings("ignore:too little data")
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("autoregressive")])
def test_frames_that_nobody_saw_change_no_table(name: str) -> None:
    """Of one state: steps of EM from the others are the same."""
    observations, make, params = CASES[name]
    x = make()
    gone = [np.r_[a, np.full_like(a[:3], -1 if a.ndim == 1 else np.nan)] for a in x]
    settings: dict[str, Any] = {"observations": observations, "max_iter": 3, "tol": None, "random_state": 0, **params}
    found, want = (HMM(1, **settings).fit(a).tables_ for a in (gone, x))
    for table, value in want.items():
        np.testing.assert_allclose(found[table], value, rtol=1e-9, atol=1e-12, err_msg=table)


@pytest.mark.parametrize("observations", ["student_t", "regression_student_t", "autoregressive_student_t"])
def test_samples_have_the_tails_of_the_density(observations: str) -> None:
    """With two degrees of freedom P(noise < x) = 1/2 + x / (2 sqrt(2 + x^2)), of each feature."""
    root, degrees = np.array([[2.0, 0.0], [-1.0, 0.5]]), [2.0, 2.0]
    tables: dict[str, Any] = {"scales": [root @ root.T] * 2, "degrees": degrees, "covariance_type": "full"}
    mean = np.array([[0.0, 3.0], [-4.0, 1.0]])
    more: dict[str, Any] = {}
    if observations == "student_t":
        tables["means"] = mean
    else:
        tables |= {"intercepts": mean, "coefficients": np.zeros((2, 2, 2))}
    if observations == "regression_student_t":
        more = {"inputs": np.ones((4000, 2))}
    model = HMM.from_tables(initial=[0.5, 0.5], transition=[[0.5, 0.5]] * 2, observations=observations, **tables)
    frames, states = model.sample(4000, random_state=0, **more)
    noise = (frames[:, :2] - mean[states]) @ np.linalg.inv(root).T
    x = np.sort(noise, 0)
    away = np.abs(0.5 + x / (2 * np.sqrt(2 + x**2)) - (np.arange(4000)[:, None] + 0.5) / 4000)
    assert away.max() < 1.95 / 4000**0.5  # Kolmogorov's bound, which one of a thousand exceeds


@pytest.mark.parametrize("covariance_type", ["diag", "full"])
def test_log_normal_is_gaussian_of_logarithms(covariance_type: Any) -> None:
    """With the same start, floors, priors and steps; likelihoods differ by the sum of logarithms."""
    x = positive()
    settings: dict[str, Any] = {
        "covariance_type": covariance_type, "variance_prior": 2.0, "mean_weight": 1.0, "min_variance": 0.3,
        "max_iter": 5, "tol": None, "random_state": 0,
    }  # fmt: skip
    logs = [np.log(one) for one in x]
    start = {
        "means": np.concatenate(logs)[[0, 12, 30]],
        "covariances": np.ones((3, 2)) if covariance_type == "diag" else np.stack([np.eye(2)] * 3),
        "initial": np.full(3, 1 / 3),
        "transition": np.full((3, 3), 0.2) + 0.4 * np.eye(3),
    }
    ours = HMM(3, observations="log_normal", start=start, **settings).fit(x)
    theirs = HMM(3, start=start, **settings).fit(logs)
    np.testing.assert_allclose(ours.means_, theirs.means_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, rtol=1e-9)
    jacobian = sum(float(one.sum()) for one in logs)
    np.testing.assert_allclose(np.add(ours.history_, jacobian), theirs.history_, rtol=1e-10)
    assert ours.score(x) == pytest.approx(theirs.score(logs) - jacobian, rel=1e-10)


def test_each_part_of_a_product_has_its_own_means_to_begin_with() -> None:
    """Of angles k-means has two coordinates; a state without frames begins where its mean is."""
    sizes = FrameConfig(
        "frame_hmm", num_states=2, num_features=2, observations="product", columns=("von_mises", "gaussian")
    )
    module = OBSERVATIONS["product"].draw(sizes, torch.Generator().manual_seed(0)).double()
    frames = torch.tensor([[0.1, 1.0], [0.2, 2.0], [-0.1, 4.0]]).double()
    means = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 7.0]]).double()
    states = torch.zeros(3, dtype=torch.long)
    assert module.coordinates(frames).shape == (3, 3)
    module.initialise(frames, states, means, Prior(), np.random.default_rng(0), near=True)
    found = {name: table.value for name, table in module.tables().items()}
    assert float(found["mean_1"][1, 0]) == 7.0


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
