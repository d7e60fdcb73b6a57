"""Equality with hmmlearn 0.3.3: likelihoods, posteriors, best paths and every step of EM, for all its models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM

peer = pytest.importorskip("hmmlearn.hmm")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
LENGTHS = [40, 25, 55]
STATES, STEPS = 3, 6


def start(seed: int = 0) -> tuple[np.random.Generator, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return rng, {"initial": rng.dirichlet(np.ones(STATES)), "transition": rng.dirichlet(np.ones(STATES), STATES)}


def frames(rng: np.random.Generator, width: int = 3) -> Any:
    states = np.repeat(rng.integers(0, STATES, 24), 5)
    centres, mix = 3 * rng.standard_normal((STATES, width)), rng.standard_normal((width, width))
    return centres[states] + rng.standard_normal((len(states), width)) @ mix


def theirs_of(kind: Any, tables: dict[str, Any], **settings: Any) -> Any:
    model = kind(STATES, n_iter=STEPS, tol=-np.inf, init_params="", **settings)
    model.startprob_, model.transmat_ = tables["initial"], tables["transition"]
    return model


def log_joint(theirs: Any, symbols: Any, path: Any) -> float:
    """The log-probability of symbols and states, sequence by sequence."""
    total, at = 0.0, 0
    for length in LENGTHS:
        x, y = symbols[at : at + length], path[at : at + length]
        total += np.log(theirs.startprob_[y[0]]) + np.log(theirs.transmat_[y[:-1], y[1:]]).sum()
        total += np.log(theirs.emissionprob_[y, x]).sum()
        at += length
    return float(total)


def compare(ours: HMM, theirs: Any, x: Any, *, fits: bool = True) -> None:
    """Likelihood, posteriors, best path, then the values before each step and the tables after the last."""
    symbols = x[:, 0] if x.ndim == 2 and x.dtype.kind == "i" and ours.observations == "categorical" else x
    assert ours.score(symbols, LENGTHS) == pytest.approx(theirs.score(x, LENGTHS), rel=1e-9)
    posterior = theirs.predict_proba(x, LENGTHS)
    np.testing.assert_allclose(ours.predict_proba(symbols, LENGTHS), posterior, atol=1e-8)
    log_prob, path = theirs.decode(x, LENGTHS)
    mine = ours.decode(symbols, LENGTHS)
    assert mine[0] == pytest.approx(log_prob, rel=1e-9)
    if ours.observations == "categorical":  # where a symbol repeats, other orders of the same moves are as good
        assert log_joint(theirs, symbols, mine[1]) == pytest.approx(log_prob, rel=1e-9)
    else:
        np.testing.assert_array_equal(mine[1], path)
    total, best = theirs.decode(x, LENGTHS, algorithm="map")
    mine = ours.decode(symbols, LENGTHS, method="posterior")
    assert mine[0] == pytest.approx(total, rel=1e-9)
    np.testing.assert_array_equal(mine[1], best)
    if fits:
        ours.set_params(max_iter=STEPS, tol=None, min_variance=0.0).fit(symbols, LENGTHS)
        theirs.fit(x, LENGTHS)
        np.testing.assert_allclose(ours.history_, theirs.monitor_.history, rtol=1e-9)
        np.testing.assert_allclose(ours.transition_, theirs.transmat_, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(ours.initial_, theirs.startprob_, rtol=1e-6, atol=1e-12)


COVARIANCES: dict[str, Any] = {
    "diag": lambda rng: rng.uniform(0.5, 4.0, (STATES, 3)),
    "spherical": lambda rng: rng.uniform(0.5, 4.0, STATES),
    "full": lambda rng: np.stack([a @ a.T + np.eye(3) for a in rng.standard_normal((STATES, 3, 3))]),
    "tied": lambda rng: 4 * np.eye(3) + np.ones((3, 3)),
}


@pytest.mark.parametrize("implementation", ["log", "scaling"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_gaussian(covariance: Any, implementation: str) -> None:
    rng, tables = start()
    x = frames(rng)
    means, covariances = x[[3, 50, 90]], COVARIANCES[covariance](rng)
    ours = HMM.from_tables(**tables, means=means, covariances=covariances, covariance_type=covariance)
    theirs = theirs_of(
        peer.GaussianHMM, tables, covariance_type=covariance, covars_prior=0.0, implementation=implementation
    )
    theirs.means_, theirs.covars_, theirs.n_features = means, covariances, 3
    assert ours.bic(x, LENGTHS) == pytest.approx(theirs.bic(x, LENGTHS), rel=1e-9)
    assert ours.aic(x, LENGTHS) == pytest.approx(theirs.aic(x, LENGTHS), rel=1e-9)
    compare(ours, theirs, x)
    np.testing.assert_allclose(ours.means_, theirs.means_, rtol=1e-6)
    mine = ours.covariances_
    written = {"diag": lambda v: np.stack([np.diag(r) for r in v]), "spherical": lambda v: v[:, None, None] * np.eye(3)}
    mine = written.get(covariance, lambda v: np.broadcast_to(v, (STATES, 3, 3)))(mine)
    peers = theirs.covars_
    if covariance == "spherical":  # after a fit its property repeats each state three times
        peers = theirs._covars_[:, :1, None] * np.eye(3)
    np.testing.assert_allclose(mine, np.broadcast_to(peers, (STATES, 3, 3)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_gaussian_with_priors(covariance: Any) -> None:
    """The most probable means and covariances, transitions and starts under conjugate priors are hmmlearn's, too."""
    rng, tables = start(1)
    x = frames(rng)
    means, covariances = x[[3, 50, 90]], COVARIANCES[covariance](rng)
    frames_seen, spread = 4.0, x.var(0)
    prior = frames_seen * (spread if covariance == "diag" else np.diag(spread))
    moves, first = rng.uniform(1.0, 3.0, (STATES, STATES)), rng.uniform(1.0, 3.0, STATES)
    ours = HMM.from_tables(
        **tables, means=means, covariances=covariances, covariance_type=covariance, variance_prior=frames_seen,
        mean_prior=np.ones(3), mean_weight=2.5, transition_prior=moves, initial_prior=first,
    ).set_params(max_iter=STEPS, tol=None, min_variance=0.0)  # fmt: skip
    theirs = theirs_of(
        peer.GaussianHMM, tables, covariance_type=covariance, covars_prior=prior, means_prior=np.ones((STATES, 3)),
        means_weight=2.5, covars_weight=frames_seen + (1 if covariance == "diag" else 3),
        transmat_prior=moves, startprob_prior=first,
    )  # fmt: skip
    theirs.means_, theirs.covars_ = means, covariances
    ours.fit(x, LENGTHS)
    theirs.fit(x, LENGTHS)
    assert (np.diff(ours.history_) > 0).all()
    np.testing.assert_allclose(ours.means_, theirs.means_, rtol=1e-6)
    np.testing.assert_allclose(ours.transition_, theirs.transmat_, rtol=1e-6)
    np.testing.assert_allclose(ours.initial_, theirs.startprob_, rtol=1e-6)
    mine = np.stack([np.diag(v) for v in ours.covariances_]) if covariance == "diag" else ours.covariances_
    np.testing.assert_allclose(mine, theirs.covars_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("covariance", ["diag", "spherical", "full", "tied"])
def test_mixture(covariance: Any) -> None:
    """Its step of covariances is taken around the means before it, which is not the maximum where both are free.

    So steps are compared with means or with covariances held; with both free ours gains at least as much.
    """
    rng, tables = start(2)
    x = frames(rng)
    weights, means = rng.dirichlet(np.ones(2), STATES), x[rng.choice(len(x), 2 * STATES)].reshape(STATES, 2, 3)
    shape = {"diag": (STATES, 2, 3), "spherical": (STATES, 2)}.get(covariance)
    covariances = rng.uniform(2.0, 6.0, shape) if shape else np.stack([COVARIANCES["full"](rng)] * 2, 1)
    covariances = covariances[:, 0] if covariance == "tied" else covariances
    given = {"weights": weights, "means": means, "covariances": covariances}
    spherical = {"covars_prior": -2.5, "covars_weight": 0.0} if covariance == "spherical" else {}

    def peers(params: str) -> Any:
        model = theirs_of(peer.GMMHMM, tables, n_mix=2, covariance_type=covariance, params=params, **spherical)
        model.weights_, model.means_, model.covars_ = weights.copy(), means.copy(), covariances.copy()
        return model

    def own(fixed: tuple[str, ...]) -> HMM:
        return HMM.from_tables(
            **tables, observations="gaussian_mixture", covariance_type=covariance, fixed=fixed, **given
        )

    name = "variance" if shape else "covariance"
    compare(own((name,)), peers("stmw"), x)
    compare(own(("mean",)), peers("stcw"), x)
    both = own(()).set_params(max_iter=2, tol=None, min_variance=0.0).fit(x, LENGTHS)
    theirs = peers("stmcw").set_params(n_iter=2).fit(x, LENGTHS)
    assert both.history_[1] >= theirs.monitor_.history[1] - 1e-9


def test_poisson() -> None:
    rng, tables = start(3)
    rates = rng.gamma(2.0, 2.0, (STATES, 2))
    x = rng.poisson(rates[np.repeat(rng.integers(0, STATES, 24), 5)])
    guess = rng.gamma(2.0, 2.0, (STATES, 2))
    ours = HMM.from_tables(**tables, observations="poisson", rates=guess)
    theirs = theirs_of(peer.PoissonHMM, tables)
    theirs.lambdas_ = guess.copy()
    compare(ours, theirs, x)
    np.testing.assert_allclose(ours.rates_, theirs.lambdas_, rtol=1e-6)


def test_categorical() -> None:
    rng, tables = start(4)
    emission = rng.dirichlet(np.ones(4), STATES)
    x = np.concatenate([rng.integers(0, 4, (100, 1)), np.full((20, 1), 2)])
    ours = HMM.from_tables(**tables, observations="categorical", emission=emission)
    theirs = theirs_of(peer.CategoricalHMM, tables)
    theirs.emissionprob_, theirs.n_features = emission.copy(), 4
    compare(ours, theirs, x)
    np.testing.assert_allclose(ours.emission_, theirs.emissionprob_, rtol=1e-6, atol=1e-12)


def test_multinomial() -> None:
    rng, tables = start(5)
    emission = rng.dirichlet(np.ones(4), STATES)
    x = np.stack([rng.multinomial(9, emission[z]) for z in np.repeat(rng.integers(0, STATES, 24), 5)])
    guess = rng.dirichlet(np.ones(4), STATES)
    ours = HMM.from_tables(**tables, observations="multinomial", emission=guess)
    theirs = theirs_of(peer.MultinomialHMM, tables, n_trials=9)
    theirs.emissionprob_, theirs.n_features = guess.copy(), 4
    compare(ours, theirs, x)
    np.testing.assert_allclose(ours.emission_, theirs.emissionprob_, rtol=1e-6, atol=1e-12)


def test_stationary_distribution() -> None:
    _, tables = start(6)
    ours = HMM.from_tables(**tables, means=np.zeros((STATES, 1)), covariances=np.ones((STATES, 1)))
    theirs = theirs_of(peer.GaussianHMM, tables)
    np.testing.assert_allclose(ours.stationary_distribution_, theirs.get_stationary_distribution(), rtol=1e-9)
