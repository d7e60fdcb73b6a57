"""Covariances: the maximum above a floor, factor analysis, marginals of some features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DomainError
from rankfold.estimators import HSMM
from rankfold.models.config import FrameConfig
from rankfold.params.observations.factor_gaussian import FactorGaussianObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.linear_gaussian import marginal_root, raise_to_floor
from rankfold.params.prior import Prior


def matrices(num: int, size: int, seed: int = 0) -> torch.Tensor:
    roots = torch.randn(num, size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return roots @ roots.mT + 0.01 * torch.eye(size, dtype=torch.float64)


def value(covariance: torch.Tensor, scatter: torch.Tensor) -> torch.Tensor:
    """The log-likelihood of a frame in the mean, up to a constant."""
    trace = torch.linalg.solve(covariance, scatter).diagonal(dim1=-2, dim2=-1).sum(-1)
    return -torch.linalg.slogdet(covariance)[1] - trace


def test_above_a_floor_no_covariance_is_better() -> None:
    """Every other one above the floor, near or far, has a smaller likelihood."""
    scatter, floor = matrices(1, 4)[0], torch.tensor([0.5, 1.0, 2.0, 0.1]).double()
    best = raise_to_floor(scatter[None], floor)[0]
    bound = torch.diag(floor)
    assert float(torch.linalg.eigvalsh(scatter - bound)[0]) < 0 <= float(torch.linalg.eigvalsh(best - bound)[0]) + 1e-12
    others = [
        raise_to_floor((best + step * x)[None], floor)[0] for step in (1e-3, 0.1, 1.0) for x in matrices(50, 4, 1)
    ]
    others += [bound + step * x for step in (1e-3, 0.1, 1.0) for x in matrices(50, 4, 2)]
    for shift in (1e-3, 1e-2, 0.1):
        others += [bound + (1 - shift) * (best - bound) + shift * x for x in matrices(50, 4, 3)]
    assert bool((value(torch.stack(others), scatter) < value(best, scatter) + 1e-12).all())
    assert torch.equal(raise_to_floor(scatter[None], 1e-6)[0], scatter)


def test_marginals_are_parts_of_the_covariance() -> None:
    covariance = matrices(2, 5)
    features = torch.tensor([0, 2, 3])
    part = marginal_root(torch.linalg.cholesky(covariance), features)
    torch.testing.assert_close(part @ part.mT, covariance[:, features][:, :, features])


def test_neighbours_share_a_matrix() -> None:
    """Densities, and the maximum with a prior: each matrix is that of what its states leave of their frames."""
    config = FrameConfig(num_states=4, num_features=3, covariance="full", covariance_states=2, min_variance=0.0)
    module = GaussianObservation.draw(config, torch.Generator().manual_seed(0)).double()
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal((50, 3)) * [1.0, 2.0, 3.0], rng.dirichlet(np.ones(4), 50)
    prior = Prior(centre=torch.from_numpy(x.mean(0)), spread=torch.tensor([1.0, 2.0, 0.5]), variance_frames=7.0)
    frames = torch.from_numpy(x)
    module.maximise(module.count(module.statistics(frames, prior), torch.from_numpy(weight)), prior)
    means = weight.T @ x / weight.sum(0)[:, None]
    found = module.log_obs(frames[None])[0].detach().numpy()
    for pair in ((0, 1), (2, 3)):
        scatter = sum((x - means[z]).T @ ((x - means[z]) * weight[:, z, None]) for z in pair)
        number = sum(weight[:, z].sum() for z in pair)
        covariance = (scatter + 7 * np.diag([1.0, 2.0, 0.5])) / (number + 7)
        for z in pair:
            away = x - means[z]
            squares = (away @ np.linalg.inv(covariance) * away).sum(1)
            expected = -(squares + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
            np.testing.assert_allclose(found[:, z], expected, rtol=1e-10, atol=1e-10)
    assert module.num_free == 4 * 3 + 2 * 6


@pytest.mark.parametrize(
    "settings",
    [{"covariance": "low_rank"}, {"observations": "student_t", "covariance": "full"}, {"covariance": "tied"}],
)
def test_only_full_matrices_are_shared_by_neighbours(settings: dict[str, Any]) -> None:
    with pytest.raises(DomainError, match=r"covariance_states is 2, but the matrices that states may share"):
        FrameConfig(num_states=4, covariance_states=2, **settings)
    with pytest.raises(DomainError, match=r"covariance_states is 3, but 4 states cannot be shared out evenly"):
        FrameConfig(num_states=4, covariance_states=3, covariance="full")
    with pytest.raises(DomainError, match=r"covariance_states is 0, but must be at least 1"):
        FrameConfig(num_states=4, covariance_states=0)


def test_low_rank_is_factor_analysis() -> None:
    """Steps on the counts of one state come to the likelihood and the covariance of scikit-learn's FactorAnalysis."""
    peer = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 6)) + rng.standard_normal((300, 6))
    theirs = peer.FactorAnalysis(2, tol=1e-3, max_iter=2000, svd_method="lapack").fit(x)
    frames = torch.from_numpy(x)
    loading = torch.from_numpy(rng.standard_normal((1, 6, 2)))
    module = FactorGaussianObservation(torch.zeros(1, 6).double(), loading)
    prior = Prior(centre=frames.mean(0), spread=frames.var(0, correction=0))
    counts = module.count(module.statistics(frames, prior), torch.ones(300, 1))
    values = []
    for _ in range(800):
        values.append(float(module.log_obs(frames[None]).detach().sum()) if len(values) < 20 else values[-1])
        module.maximise(counts, prior)
    assert (np.diff(values[:20]) > 0).all()
    gain = float(module.log_obs(frames[None]).detach().sum()) - theirs.score(x) * len(x)
    assert 0 <= gain < 0.5  # theirs stops where a step gains less than 1e-3
    np.testing.assert_allclose(module.covariance[0].detach(), theirs.get_covariance(), atol=0.1)


def test_shares_of_segments_in_the_long_run() -> None:
    """Two states that alternate: their shares are as their mean durations."""
    model = HSMM.from_tables(
        initial=[1.0, 0.0], transition=[[0.0, 1.0], [1.0, 0.0]], observations="poisson", rates=[[1.0], [5.0]],
        durations=[[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]],
    )  # fmt: skip
    np.testing.assert_allclose(model.stationary_distribution_, [1.5 / 5, 3.5 / 5], rtol=1e-12)
