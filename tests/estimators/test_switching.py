"""Switching linear dynamics against the sum over all paths of switches, each by a Kalman filter of its own."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DataError, DomainError, ShapeError
from rankfold.estimators import SwitchingLDS


def tables(seed: int = 0, k: int = 2, d: int = 2, f: int = 3, scale: float = 1.0) -> dict[str, Any]:
    """A model whose regimes turn and shrink the latent vector differently; `scale` of their offsets."""
    rng = np.random.default_rng(seed)
    noise = 0.2 * rng.normal(size=(k, d, d))
    return {
        "initial": rng.dirichlet(np.full(k, 3.0)),
        "transition": rng.dirichlet(np.full(k, 3.0), k),
        "first_mean": rng.normal(size=d),
        "first_covariance": np.eye(d) + 0.3,
        "dynamics": 0.8 * np.stack([np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(k)]),
        "offset": scale * rng.normal(size=(k, d)),
        "noise": noise @ np.swapaxes(noise, 1, 2) + 0.1 * np.eye(d),
        "emission": rng.normal(size=(f, d)),
        "level": rng.normal(size=f),
        "variance": rng.uniform(0.1, 0.3, f),
    }


def model(p: dict[str, Any], **settings: Any) -> SwitchingLDS:
    return SwitchingLDS.from_tables(**p, **settings)


def kalman(p: dict[str, Any], frames: Any, path: Any) -> float:
    """log p(frames | switches): innovations one by one, features that are NaN left out."""
    mean, covariance, total = p["first_mean"], p["first_covariance"], 0.0
    for t, (y, s) in enumerate(zip(frames, path, strict=True)):
        if t:
            mean = p["dynamics"][s] @ mean + p["offset"][s]
            covariance = p["dynamics"][s] @ covariance @ p["dynamics"][s].T + p["noise"][s]
        here = ~np.isnan(y)
        c = p["emission"][here]
        innovation = y[here] - p["level"][here] - c @ mean
        spread = c @ covariance @ c.T + np.diag(p["variance"][here])
        gain = covariance @ c.T @ np.linalg.inv(spread)
        total -= 0.5 * (innovation @ np.linalg.inv(spread) @ innovation + np.linalg.slogdet(2 * math.pi * spread)[1])
        mean, covariance = mean + gain @ innovation, covariance - gain @ c @ covariance
    return float(total)


def enumerated(p: dict[str, Any], frames: Any) -> tuple[float, Any]:
    """The log-likelihood, and the posterior "t k" of the regimes: all paths."""
    k, length = len(p["initial"]), len(frames)
    logs = {}
    for path in itertools.product(range(k), repeat=length):
        prior = math.log(p["initial"][path[0]]) + sum(
            math.log(p["transition"][a, b]) for a, b in itertools.pairwise(path)
        )
        logs[path] = prior + kalman(p, frames, path)
    log_z = float(np.logaddexp.reduce(list(logs.values())))
    posterior = np.zeros((length, k))
    for path, value in logs.items():
        posterior[np.arange(length), list(path)] += math.exp(value - log_z)
    return log_z, posterior


def sampled(p: dict[str, Any], length: int, seed: int = 0) -> Any:
    return model(p).sample(length, random_state=seed)[0]


def test_the_bound_is_below_the_enumeration_and_near() -> None:
    """Five models, a feature and a frame missing. With regimes that differ clearly the bound is within 0.05 nats."""
    for seed in range(5):
        p = tables(seed)
        x = sampled(p, 6, seed)
        x[2, 0], x[4] = np.nan, np.nan
        exact, _ = enumerated(p, x)
        bound = model(p, n_particles=64).bound(x)
        assert bound <= exact + 1e-9
        assert bound > exact - 2.0, (seed, exact - bound)
    gaps = []
    for seed in range(3):
        p = tables(seed, scale=12.0)
        x = sampled(p, 6, seed)
        exact, posterior = enumerated(p, x)
        made = model(p, n_particles=64)
        gaps.append(exact - made.bound(x))
        np.testing.assert_allclose(made.predict_proba(x), posterior, atol=0.02)
        np.testing.assert_array_equal(made.predict(x), posterior.argmax(1))
    assert min(gaps) >= -1e-9
    assert max(gaps) < 0.05, gaps


def test_one_regime_is_exact() -> None:
    """A plain linear dynamical system: the bound, and every particle, is the Kalman filter's."""
    p = tables(3, k=1)
    x = sampled(p, 12, 1)
    x[3, 1] = np.nan
    exact = kalman(p, x, [0] * 12)
    assert model(p).bound(x) == pytest.approx(exact, rel=1e-10)
    assert model(p, n_particles=2).estimate(x)[0] == pytest.approx(exact, rel=1e-10)


def test_particles_are_unbiased() -> None:
    """The mean of 400 estimates of the likelihood by 8 particles is within four standard errors of the enumeration."""
    for seed in range(2):
        p = tables(seed, k=3)
        x = sampled(p, 5, seed)
        x[3, 2] = np.nan
        exact, _ = enumerated(p, x)
        rng = np.random.default_rng(seed)
        made = model(p, n_particles=8)
        ratios = np.exp([made.estimate(x, random_state=rng)[0] - exact for _ in range(400)])
        assert ratios.std() > 1e-3  # they do vary
        assert abs(ratios.mean() - 1) < 4 * ratios.std() / 20, (seed, ratios.mean(), ratios.std())
        many = model(p, n_particles=1000)
        found = many.filter(x, random_state=0)
        for t in range(5):
            np.testing.assert_allclose(found[t], enumerated(p, x[: t + 1])[1][t], atol=0.03)


def test_variational_em_never_lowers_the_bound() -> None:
    """Random models and data, from given tables and from its own start, with missing values; more latents than
    features, too."""
    for seed in range(5):
        p = tables(seed, k=1 + seed % 3)
        x = [sampled(p, n, seed) for n in (24, 1, 11)]
        x[0][4], x[2][3, 1] = np.nan, np.nan
        start = tables(seed + 50, k=1 + seed % 3) if seed % 2 else None
        settings: dict[str, Any] = {"start": start, "n_latent": (2, 4)[seed == 4]}
        found = SwitchingLDS(1 + seed % 3, max_iter=8, tol=None, random_state=seed, **settings).fit(x)
        steps = np.diff(found.history_)
        assert (steps >= -1e-8).all(), (seed, steps.min())
        assert found.history_[-1] > found.history_[0]


def test_regimes_are_found_again() -> None:
    """Two regimes that pull the latent vector to different places: 95% of frames right, a bound above the truth's."""
    p = tables(1, f=4)
    p |= {"transition": np.array([[0.95, 0.05], [0.05, 0.95]]), "offset": np.array([[1.5, 0.0], [-1.5, 0.0]])}
    p |= {"dynamics": np.stack([0.5 * np.eye(2)] * 2)}
    x, states, latent = model(p).sample(120, random_state=0)
    found = SwitchingLDS(2, 2, max_iter=10, tol=None, random_state=0).fit(x)
    right = float((found.predict(x) == states).mean())
    assert max(right, 1 - right) > 0.95
    assert found.bound(x) > model(p).bound(x)
    assert found.latent(x).shape == latent.shape
    assert found.score(x) == found.bound(x)


def test_bad_input_is_refused() -> None:
    p, x = tables(), sampled(tables(), 9)
    cases: list[tuple[Any, Any, str]] = [
        (lambda: SwitchingLDS(0).fit(x), DomainError, "n_states"),
        (lambda: SwitchingLDS(2, min_variance=0.0).fit(x), DomainError, "min_variance"),
        (lambda: SwitchingLDS(start={"initial": [1.0]}).fit(x), DomainError, "were expected"),
        (lambda: model({**p, "transition": p["transition"] * 2}), DomainError, "no distribution"),
        (lambda: model({**p, "noise": -p["noise"]}), DomainError, "positive definite"),
        (lambda: model({**p, "level": p["level"][:2]}), ShapeError, "emission"),
        (lambda: model(p).bound(x[:, :2]), ValueError, "2 features"),
        (lambda: SwitchingLDS(start=p).fit(x[:, :2]), ShapeError, "3 features, but X has 2"),
        (lambda: SwitchingLDS().fit(np.ones((5, 2))), DataError, "never changes"),
        (lambda: SwitchingLDS().bound(x), ValueError, "not fitted"),
    ]
    for call, error, words in cases:
        with pytest.raises(error, match=words):
            call()
