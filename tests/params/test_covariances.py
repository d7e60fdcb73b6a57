"""Covariances: the maximum above a floor, factor analysis, marginals of some features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankfold.estimators import HSMM
from rankfold.params.observations.factor_gaussian import FactorGaussianObservation
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
