"""Estimators from known tables: likelihoods, posteriors and best paths are those of the enumeration of all paths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankfold
from rankfold.estimators import HMM, HSMM
from tests.oracles import chain, frames, semi_markov

NAN = math.nan
RNG = np.random.default_rng(5)
INITIAL, MOVES = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3)
MEANS = RNG.standard_normal((3, 2))
ROOTS = RNG.standard_normal((3, 2, 2)) + 2 * np.eye(2)
FULL = ROOTS @ ROOTS.transpose(0, 2, 1)
VARIANCES = RNG.uniform(0.3, 2.0, (3, 2))
X = RNG.standard_normal((4, 2))
X[1] = NAN
X[2, 0] = NAN  # one feature of a full covariance
COUNTS = RNG.poisson(2.0, (4, 2)).astype(float)
COUNTS[2] = NAN
WEIGHTS = RNG.dirichlet(np.ones(2), 3)
MIXED = np.column_stack([X, [1.0, 0.0, NAN, 3.0], [0.0, 2.0, 1.0, NAN]])
EMISSION = RNG.dirichlet(np.ones(3), 3)
RATES = RNG.gamma(2.0, 1.0, (3, 2))
RATES[0, 1] = 0.0
COEFFICIENTS = RNG.standard_normal((3, 1, 1))
COMPONENTS = RNG.standard_normal((3, 2, 2))
SCALES, DOFS = RNG.uniform(0.5, 2.0, (3, 2)), RNG.uniform(1.0, 9.0, (3, 2))
LAGS = RNG.standard_normal((3, 2, 4)) / 3
LOADINGS = RNG.standard_normal((3, 2, 1))
WHOLE = np.nan_to_num(X)
ZEROS, DRY = RNG.random((3, 2)), X**2
ZEROS[1, 0] = DRY[0, 1] = 0.0


def each(density: Callable[[int, list[float]], float], x: Any) -> list[list[float]]:
    return [[density(z, list(map(float, row))) for z in range(3)] for row in x]


def diag(v: Any) -> Any:
    return np.diag(v).tolist()


def lag_mean(t: int, z: int) -> list[float]:
    before = [WHOLE[t - k] if t >= k else np.zeros(2) for k in (1, 2)]
    return (LAGS[z] @ np.concatenate(before) + MEANS[z]).tolist()


CASES: dict[str, tuple[dict[str, Any], Any, list[list[float]]]] = {
    "full": (
        {"means": MEANS, "covariances": FULL, "covariance_type": "full"},
        X,
        each(lambda z, x: frames.normal(x, MEANS[z].tolist(), FULL[z].tolist()), X),
    ),
    "tied": (
        {"means": MEANS, "covariances": FULL[1], "covariance_type": "tied"},
        X,
        each(lambda z, x: frames.normal(x, MEANS[z].tolist(), FULL[1].tolist()), X),
    ),
    "diag": (
        {"means": MEANS, "covariances": VARIANCES, "covariance_type": "diag"},
        X,
        each(lambda z, x: frames.gaussian(x, MEANS[z].tolist(), VARIANCES[z].tolist()), X),
    ),
    "spherical": (
        {"means": MEANS, "covariances": VARIANCES[:, 0], "covariance_type": "spherical"},
        X,
        each(lambda z, x: frames.gaussian(x, MEANS[z].tolist(), [VARIANCES[z, 0]] * 2), X),
    ),
    "low_rank": (
        {"means": MEANS, "loadings": LOADINGS, "noises": VARIANCES, "covariance_type": "low_rank"},
        X,
        each(
            lambda z, x: frames.normal(
                x, MEANS[z].tolist(), (LOADINGS[z] @ LOADINGS[z].T + np.diag(VARIANCES[z])).tolist()
            ),
            X,
        ),
    ),
    "mixture": (
        {
            "observations": "gaussian_mixture",
            "weights": WEIGHTS,
            "means": COMPONENTS,
            "covariances": np.stack([FULL, FULL[::-1]], 1),
            "covariance_type": "full",
        },
        X,
        each(
            lambda z, x: frames.mixture(
                x, WEIGHTS[z].tolist(), COMPONENTS[z].tolist(), [FULL[z].tolist(), FULL[2 - z].tolist()]
            ),
            X,
        ),
    ),
    "mixture-tied": (
        {
            "observations": "gaussian_mixture",
            "weights": WEIGHTS,
            "means": COMPONENTS,
            "covariances": FULL,
            "covariance_type": "tied",
        },
        X,
        each(lambda z, x: frames.mixture(x, WEIGHTS[z].tolist(), COMPONENTS[z].tolist(), [FULL[z].tolist()] * 2), X),
    ),
    "student": (
        {"observations": "student_t", "means": MEANS, "scales": SCALES, "degrees": DOFS},
        X,
        each(lambda z, x: frames.student(x, MEANS[z].tolist(), SCALES[z].tolist(), DOFS[z].tolist()), X),
    ),
    "student-full": (
        {
            "observations": "student_t",
            "means": MEANS,
            "scales": FULL,
            "degrees": DOFS[:, 0],
            "covariance_type": "full",
        },
        X,
        each(lambda z, x: frames.multivariate_t(x, MEANS[z].tolist(), FULL[z].tolist(), DOFS[z, 0]), X),
    ),
    "student-tied": (
        {
            "observations": "student_t",
            "means": MEANS,
            "scales": FULL[0],
            "degrees": DOFS[:, 0],
            "covariance_type": "tied",
        },
        X,
        each(lambda z, x: frames.multivariate_t(x, MEANS[z].tolist(), FULL[0].tolist(), DOFS[z, 0]), X),
    ),
    "poisson": (
        {"observations": "poisson", "rates": RATES},
        COUNTS,
        each(lambda z, x: frames.counts(x, RATES[z].tolist()), COUNTS),
    ),
    "gamma": (
        {"observations": "gamma", "shapes": DOFS, "rates": SCALES},
        X**2,
        each(lambda z, x: frames.gamma(x, DOFS[z].tolist(), SCALES[z].tolist()), X**2),
    ),
    "exponential": (
        {"observations": "exponential", "rates": SCALES},
        X**2,
        each(lambda z, x: frames.exponential(x, SCALES[z].tolist()), X**2),
    ),
    "half_normal": (
        {"observations": "half_normal", "deviations": SCALES},
        X**2,
        each(lambda z, x: frames.half_normal(x, SCALES[z].tolist()), X**2),
    ),
    "log_normal": (
        {"observations": "log_normal", "means": MEANS, "covariances": FULL, "covariance_type": "full"},
        X**2,
        each(lambda z, x: frames.log_normal(x, MEANS[z].tolist(), FULL[z].tolist()), X**2),
    ),
    "negative_binomial": (
        {"observations": "negative_binomial", "shapes": DOFS, "rates": SCALES},
        COUNTS,
        each(lambda z, x: sum(map(frames.negative_binomial_count, x, DOFS[z], SCALES[z])), COUNTS),
    ),
    "zero_inflated_poisson": (
        {"observations": "zero_inflated_poisson", "zeros": ZEROS, "rates": RATES},
        COUNTS,
        each(
            lambda z, x: sum(
                frames.zero_inflated(a, p, frames.counts([a], [r]))
                for a, p, r in zip(x, ZEROS[z], RATES[z], strict=True)
            ),
            COUNTS,
        ),
    ),
    "zero_inflated_gamma": (
        {"observations": "zero_inflated_gamma", "zeros": ZEROS, "shapes": DOFS, "rates": SCALES},
        DRY,
        each(
            lambda z, x: sum(
                frames.zero_inflated(a, p, frames.gamma([a], [k], [r]) if a else None)
                for a, p, k, r in zip(x, ZEROS[z], DOFS[z], SCALES[z], strict=True)
            ),
            DRY,
        ),
    ),
    "beta": (
        {"observations": "beta", "alpha": DOFS, "beta": SCALES},
        1 / (1 + X**2),
        each(lambda z, x: frames.beta(x, DOFS[z].tolist(), SCALES[z].tolist()), 1 / (1 + X**2)),
    ),
    "von_mises": (
        {"observations": "von_mises", "means": MEANS, "concentrations": SCALES},
        3 * X,
        each(lambda z, x: frames.von_mises(x, MEANS[z].tolist(), SCALES[z].tolist()), 3 * X),
    ),
    "multinomial": (
        {"observations": "multinomial", "probabilities": EMISSION[:, :2] / EMISSION[:, :2].sum(1, keepdims=True)},
        COUNTS,
        each(
            lambda z, x: frames.multinomial(x, (EMISSION[z, :2] / EMISSION[z, :2].sum()).tolist()),
            COUNTS,
        ),
    ),
    "regression": (
        {
            "observations": "regression",
            "coefficients": COEFFICIENTS,
            "intercepts": MEANS[:, :1],
            "covariances": FULL[:, :1, :1],
            "covariance_type": "full",
        },
        WHOLE,
        each(
            lambda z, x: frames.normal(
                x[:1], frames.linear([[COEFFICIENTS[z, 0, 0], MEANS[z, 0]]], x[1:]), FULL[z, :1, :1].tolist()
            ),
            WHOLE,
        ),
    ),
    "regression_student_t": (
        {
            "observations": "regression_student_t",
            "coefficients": COEFFICIENTS,
            "intercepts": MEANS[:, :1],
            "scales": VARIANCES[:, :1],
            "degrees": DOFS[:, 0],
        },
        WHOLE,
        each(
            lambda z, x: frames.multivariate_t(
                x[:1], frames.linear([[COEFFICIENTS[z, 0, 0], MEANS[z, 0]]], x[1:]), diag(VARIANCES[z, :1]), DOFS[z, 0]
            ),
            WHOLE,
        ),
    ),
    "autoregressive_student_t": (
        {
            "observations": "autoregressive_student_t",
            "coefficients": LAGS,
            "intercepts": MEANS,
            "scales": FULL,
            "degrees": DOFS[:, 0],
            "covariance_type": "full",
        },
        WHOLE,
        [
            [frames.multivariate_t(row.tolist(), lag_mean(t, z), FULL[z].tolist(), DOFS[z, 0]) for z in range(3)]
            for t, row in enumerate(WHOLE)
        ],
    ),
    "autoregressive": (
        {
            "observations": "autoregressive",
            "coefficients": LAGS,
            "intercepts": MEANS,
            "covariances": FULL,
            "covariance_type": "full",
        },
        WHOLE,
        [
            [frames.normal(row.tolist(), lag_mean(t, z), FULL[z].tolist()) for z in range(3)]
            for t, row in enumerate(WHOLE)
        ],
    ),
    "autoregressive-diag": (
        {"observations": "autoregressive", "coefficients": LAGS, "intercepts": MEANS, "covariances": VARIANCES},
        WHOLE,
        [
            [frames.gaussian(row.tolist(), lag_mean(t, z), VARIANCES[z].tolist()) for z in range(3)]
            for t, row in enumerate(WHOLE)
        ],
    ),
    "product": (
        {
            "observations": ("gaussian", "gaussian", "poisson", "categorical:3"),
            "means": MEANS,
            "covariances": FULL,
            "covariance_type": "full",
            "rates": RATES[:, :1],
            "emission": EMISSION,
        },
        MIXED,
        each(
            lambda z, x: (
                frames.normal(x[:2], MEANS[z].tolist(), FULL[z].tolist())
                + frames.counts(x[2:3], RATES[z, :1].tolist())
                + frames.categorical(-1 if math.isnan(x[3]) else int(x[3]), EMISSION[z].tolist())
            ),
            MIXED,
        ),
    ),
}


def enumerated(paths: dict[Any, float]) -> tuple[float, Any]:
    """The log-sum of all paths, and the posterior of each state at each frame."""
    total = chain.log_sum_exp(list(paths.values()))
    posterior = np.zeros((4, 3))
    for path, weight in paths.items():
        posterior[np.arange(4), list(path)] += math.exp(weight - total)
    return total, posterior


@pytest.mark.parametrize("name", CASES)
def test_chains_are_those_of_the_enumeration(name: str) -> None:
    given, x, log_obs = CASES[name]
    model = HMM.from_tables(initial=INITIAL, transition=MOVES, **given)
    paths = chain.paths(np.log(INITIAL).tolist(), MOVES.tolist(), log_obs)
    total, posterior = enumerated(paths)
    assert model.score(x) == pytest.approx(total, rel=1e-10)
    np.testing.assert_allclose(model.predict_proba(x), posterior, atol=1e-10)
    best = max(paths, key=paths.__getitem__)
    log_prob, states = model.decode(x)
    assert log_prob == pytest.approx(paths[best], rel=1e-10)
    assert tuple(states) == best
    if name.startswith("autoregressive"):  # four frames are too few for five weights of each state
        return
    model.set_params(max_iter=1, tol=None, min_variance=0.0)
    assert model.fit(x).history_[0] == pytest.approx(total, rel=1e-10)  # a fit begins with the tables


@pytest.mark.parametrize("name", ["full", "poisson", "product", "autoregressive_student_t"])
def test_segments_are_those_of_the_enumeration(name: str) -> None:
    given, x, log_obs = CASES[name]
    table = np.array([[0.5, 0.2, 0.3], [0.1, 0.9, 0.0], [0.4, 0.4, 0.2]])
    moves = MOVES * (1 - np.eye(3))
    moves = moves / moves.sum(1, keepdims=True)
    model = HSMM.from_tables(initial=INITIAL, transition=moves, durations=table, **given)
    with np.errstate(divide="ignore"):
        weights = semi_markov.weights(
            np.log(INITIAL).tolist(), moves.tolist(), np.log(table).tolist(), log_obs, censored=False
        )
    assert model.score(x) == pytest.approx(chain.log_sum_exp(list(weights.values())), rel=1e-10)
    assert model.decode(x)[0] == pytest.approx(max(weights.values()), rel=1e-10)
    np.testing.assert_allclose(model.durations_, table, atol=1e-12)


def test_low_rank_transitions() -> None:
    left, right = RNG.dirichlet(np.ones(2), 3), RNG.dirichlet(np.ones(3), 2).T
    low, dense = (
        HMM.from_tables(initial=INITIAL, transition=moves, means=MEANS, covariances=VARIANCES)
        for moves in ((left, right), left @ right.T)
    )
    assert low.score(X) == pytest.approx(dense.score(X), rel=1e-12)
    np.testing.assert_allclose(low.transition_, left @ right.T, rtol=1e-12)
    assert low.rank == 2


@pytest.mark.parametrize(
    ("observations", "table", "shape"),
    [
        ("gaussian", "covariances", (2, 2)),
        ("student_t", "scales", (2, 2)),
        ("gaussian_mixture", "covariances", (1, 2, 2)),
    ],
)
def test_one_state_has_tables_of_the_shape_of_several(observations: str, table: str, shape: tuple[int, ...]) -> None:
    """A covariance that all states share is a matrix, of one state, too; that of a mixture has an axis of states."""
    model = HMM(1, observations=observations, covariance_type="tied", max_iter=2, tol=None, random_state=0)
    model.fit(np.random.default_rng(0).standard_normal((30, 2)))
    assert getattr(model, f"{table}_").shape == shape
    again = HMM.from_tables(**model.tables_, observations=observations, covariance_type="tied")
    assert again.score(X) == pytest.approx(model.score(X), rel=1e-12)


def test_rows_of_a_transition_may_be_tuples() -> None:
    """A pair of matrices is a low rank, a tuple of rows is not."""
    rows = tuple(map(tuple, MOVES))
    two = HMM.from_tables(
        initial=(0.5, 0.5), transition=((0.9, 0.1), (0.2, 0.8)), means=MEANS[:2], covariances=VARIANCES[:2]
    )
    assert two.rank is None
    np.testing.assert_allclose(two.transition_, [[0.9, 0.1], [0.2, 0.8]])
    three = HMM.from_tables(initial=INITIAL, transition=rows, means=MEANS, covariances=VARIANCES)
    np.testing.assert_allclose(three.transition_, MOVES)


def test_symbols_have_names() -> None:
    model = HMM.from_tables(
        initial=INITIAL, transition=MOVES, observations="categorical", emission=EMISSION, symbols=["c", "a", "b"]
    )
    plain = HMM.from_tables(initial=INITIAL, transition=MOVES, observations="categorical", emission=EMISSION)
    assert model.score(["caab"]) == pytest.approx(plain.score([[0, 1, 1, 2]]), rel=1e-12)
    assert model.symbols_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(model.emission_, EMISSION[:, [1, 2, 0]], rtol=1e-12)
    first = model.set_params(max_iter=1).fit(["caab"]).history_[0]
    assert first == pytest.approx(plain.score([[0, 1, 1, 2]]), rel=1e-12)


def test_tables_are_read_and_set() -> None:
    """Attributes set one after the other, as hmmlearn's users do; each can be changed later."""
    model = HMM(3, covariance_type="full")
    model.initial_, model.transition_, model.means_ = INITIAL, MOVES, MEANS
    with pytest.raises(ValueError, match="not fitted"):
        model.score(X)
    model.covariances_ = FULL
    known = HMM.from_tables(initial=INITIAL, transition=MOVES, means=MEANS, covariances=FULL, covariance_type="full")
    assert model.score(X) == known.score(X)
    for name, table in (("initial_", INITIAL), ("transition_", MOVES), ("means_", MEANS), ("covariances_", FULL)):
        np.testing.assert_allclose(getattr(known, name), table, rtol=1e-12)
    known.means_ = MEANS + 1
    assert known.score(X + 1) == pytest.approx(model.score(X), rel=1e-12)
    with pytest.raises(AttributeError, match="no rates_; it has initial, transition, mean, covariance"):
        _ = known.rates_
    with pytest.raises(ValueError, match="an HMM has no table of durations"):
        _ = known.durations_


def test_stationary_distribution() -> None:
    model = HMM.from_tables(initial=INITIAL, transition=MOVES, means=MEANS, covariances=VARIANCES)
    share = model.stationary_distribution_
    np.testing.assert_allclose(share @ MOVES, share, rtol=1e-10)
    assert share.sum() == pytest.approx(1.0)
    model.transition_ = np.eye(3)
    with pytest.raises(ValueError, match="never meet"):
        _ = model.stationary_distribution_


def test_stationary_distribution_has_no_rounding_of_its_own() -> None:
    """A state that is left for good has 0 exactly, and one that is hardly ever entered its share to full precision."""
    model = HMM.from_tables(initial=INITIAL, transition=MOVES, means=MEANS, covariances=VARIANCES)
    model.transition_ = np.array([[0.3, 0.3, 0.4], [0.0, 0.25, 0.75], [0.0, 0.5, 0.5]])
    share = model.stationary_distribution_
    assert share[0] == 0
    np.testing.assert_allclose(share[1:], [0.4, 0.6], rtol=1e-14)
    rare = 2.0**-60
    model.transition_ = np.array([[1 - rare, rare, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    np.testing.assert_allclose(model.stationary_distribution_, [1.0, 2 * rare, 2 * rare], rtol=1e-12)


def full(**changes: Any) -> dict[str, Any]:
    return {"means": MEANS, "covariances": FULL, "covariance_type": "full", **changes}


SINGULAR = np.stack([FULL[0], FULL[1], np.ones((2, 2))])
REFUSED: list[tuple[dict[str, Any], str]] = [
    (full(covariances=SINGULAR), "matrix 2 of .*covariance.* is singular"),
    (full(covariances=FULL + np.triu(np.ones((2, 2)), 1)), "matrix 0 of .* is not symmetric"),
    (full(covariances=VARIANCES), r"has shape \(3, 2\), but \(3, 2, 2\) was expected"),
    (full(covariance_type="round"), "covariance_type is 'round'"),
    (full(transition=MOVES + 0.1), "is no distribution"),
    (full(means=MEANS * NAN), "not finite"),
    (full(rates=RATES), "tables has 'rates', but a model of this kind has"),
    ({"means": MEANS}, "'covariances' is not given, but a model of gaussian observations needs .*means, covariances"),
    (full(covariance_typ="full"), "covariance_typ is 'full', but a table is an array of numbers(.|\n)*get_params"),
    (full(means=[[0.0], [1.0, 2.0]]), "means is .*, but a table is an array of numbers"),
    (full(n_states=2), "initial has 3 states, but n_states is 2"),
    ({"observations": "poisson", "rates": -RATES}, "not at least 0"),
    ({"observations": "poisson", "lambdas": RATES}, "tables has 'lambdas', but a model of this kind has .*rate"),
    ({"observations": "poison", "rates": RATES}, "observations is 'poison', but must be one of"),
    (full(means=1.0), r"means has shape \(\), but \(3, 1\) was expected"),
    (full(initial=[1.5, -0.5, 0.0]), "initial is no distribution: it has entries below 0"),
    ({}, "no table of the observations is given, but a model of gaussian observations needs means, covariances.$"),
    ({"observations": "poisson"}, "no table .* is given, but a model of poisson observations needs rates.$"),
    ({"covariance_type": "low_rank", "covariance_rank": 5}, "gaussian observations needs means, loadings, noises.$"),
    ({"observations": "regression"}, "a model of regression observations needs .*coefficients"),
    ({"means": MEANS, "covariances": -VARIANCES}, "not above 0"),
    (full(durations=np.ones((3, 1))), "an HMM has none"),
    ({"observations": "categorical", "emission": EMISSION, "symbols": "ab"}, "symbols are 2, but emission has 3"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=[says[:30] for _, says in REFUSED])
def test_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HMM.from_tables(**{"initial": INITIAL, "transition": MOVES, **given})


MISSING: list[tuple[Any, Any, str]] = [
    (HMM(2, observations="poisson"), [[1.0, -2.0], [1.0, 3.0]], "feature 1 is -2, but .*whole numbers of at least 0"),
    (HMM(2, observations="poisson"), [[1.0, 0.5], [1.0, 3.0]], "feature 1 is 0.5, but .*whole numbers"),
    (HMM(2, observations="gamma"), [[1.0, 0.0], [1.0, 3.0]], "feature 1 is 0, but .*above 0"),
    (HMM(2, observations="exponential"), [[1.0, -1.0], [1.0, 3.0]], "feature 1 is -1, but .*at least 0"),
    (HMM(2, observations="exponential"), [[1.0, 0.0], [1.0, 0.0]], "feature 1 in state 0 are all 0"),
    (HMM(2, observations="log_normal"), [[1.0, 0.0], [1.0, 3.0]], "feature 1 is 0, but .*above 0"),
    (HMM(2, observations="negative_binomial"), [[1.0, 0.5], [1.0, 3.0]], "feature 1 is 0.5, but .*whole numbers"),
    (HMM(2, observations="negative_binomial"), [[1.0, 0.0], [2.0, 0.0]], "feature 1 is 0 in every frame"),
    (HMM(2, observations="zero_inflated_gamma"), [[1.0, -1.0], [1.0, 3.0]], "feature 1 is -1, but .*at least 0"),
    (HMM(2, observations="zero_inflated_gamma"), [[1.0, 0.0], [2.0, 0.0]], "feature 1 has no value in every frame"),
    (HMM(2, observations="zero_inflated_poisson"), [[1.0, 0.5], [1.0, 3.0]], "feature 1 is 0.5, but .*whole numbers"),
    (HMM(2, observations="student_t", covariance_type="spherical"), [[1.0], [2.0], [4.0]], 'it is "diag", "full"'),
    (HMM(2, observations="beta"), [[0.5, 0.1], [0.3, 1.0]], "row 1: feature 1 is 1, but .*above 0 and below 1"),
    (HMM(2, observations="multinomial"), [[1.0, NAN], [1.0, 3.0]], "the whole frame is missing"),
    (HMM(2, observations="autoregressive"), [[1.0], [NAN], [2.0]], "a missing lag cannot be summed out"),
    (HMM(2, observations="regression", n_inputs=1), [[1.0, NAN], [2.0, 1.0], [3.0, 2.0]], "known inputs"),
    (HMM(2, observations="regression"), [[1.0, 2.0]], "a regression has at least one input"),
    (HMM(2, n_inputs=1), [[1.0, 2.0]], "nothing else has any"),
    (HMM(2, observations=["gaussian", "poisson"]), [[1.0, 2.5], [2.0, 1.0]], "feature 1 is 2.5, but .*whole"),
    (HMM(2, observations=["gaussian"]), [[1.0, 2.5], [2.0, 1.0]], "names 1 columns, but X has 2"),
    (HMM(2, observations=["gaussian", "regression"]), [[1.0, 2.5]], "columns are of gaussian"),
    (HMM(2, observations=["categorical:2"]), [[1.0], [2.0]], "a whole number from 0 to 1"),
    (HMM(2, covariance_type="low_rank", covariance_rank=3), [[1.0, 2.5], [2.0, 1.0]], "covariance_rank is 3"),
    (HMM(2, tied_variance=True, covariance_type="full"), [[1.0, 2.5], [2.0, 1.0]], "tied_variance is true"),
]


@pytest.mark.parametrize(("model", "x", "says"), MISSING, ids=[case[2][:30] for case in MISSING])
def test_values_that_cannot_be_observed(model: Any, x: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        model.fit(np.array(x))


def test_diagonal_covariances_may_be_written_out() -> None:
    """As hmmlearn's `covars_` has them; numbers off the diagonal are not passed over."""
    made = [
        HMM.from_tables(initial=INITIAL, transition=MOVES, means=MEANS, covariances=c)
        for c in (VARIANCES, [np.diag(v) for v in VARIANCES])
    ]
    np.testing.assert_array_equal(made[0].covariances_, made[1].covariances_)
    with pytest.raises(ValueError, match=r"covariances has shape \(3, 2, 2\), but \(3, 2\) was expected"):
        HMM.from_tables(initial=INITIAL, transition=MOVES, means=MEANS, covariances=FULL)


def test_durations_with_a_formula_are_no_table_to_set() -> None:
    model = HSMM(2, max_duration=4, max_iter=1, tol=None, random_state=0).fit(np.arange(12.0)[:, None] % 5)
    with pytest.raises(ValueError, match=r'durations are \'poisson\', .*\n  Use HSMM\(durations="categorical"\)'):
        model.durations_ = np.full((2, 4), 0.25)


@pytest.mark.parametrize("observations", ["poisson", "zero_inflated_poisson"])
def test_counts_that_are_always_zero_have_a_prior(observations: str) -> None:
    x = np.column_stack([np.zeros(12), np.arange(12.0)])
    history = HMM(2, observations=observations, smoothing=0.1, max_iter=5, tol=None, random_state=0).fit(x).history_
    assert np.isfinite(history).all()
    assert (np.diff(history) > 0).all()


def test_what_depends_on_the_past_is_not_cut() -> None:
    given, x, _ = CASES["autoregressive"]
    model = HMM.from_tables(initial=INITIAL, transition=MOVES, **given)
    batch = model.model_.batch([x[2:]])._replace(first=False)
    with pytest.raises(ValueError, match="a frame depends on the 2 before it"):
        model.model_.potentials(batch)
    regression, _, _ = CASES["regression"]
    with pytest.raises(ValueError, match="needs its inputs"):
        HMM.from_tables(initial=INITIAL, transition=MOVES, **regression).sample(3)


@pytest.mark.parametrize("name", ["autoregressive", "autoregressive_student_t"])
@pytest.mark.parametrize("kind", [HMM, HSMM])
def test_streams_carry_their_lags(kind: Any, name: str) -> None:
    """Step by step the filter of the whole, of models whose frames depend on those before."""
    given, _, _ = CASES[name]
    x = np.random.default_rng(1).standard_normal((9, 2))
    moves, more = MOVES, {}
    if kind is HSMM:
        moves = MOVES * (1 - np.eye(3))
        moves, more = moves / moves.sum(1, keepdims=True), {"durations": np.full((3, 4), 0.25), "censored": True}
    model = kind.from_tables(initial=INITIAL, transition=moves, **given, **more)
    with pytest.raises(ValueError, match=r"feature 0 of a frame is nan, but .*a missing lag cannot be summed out"):
        model.step([NAN, 1.0])
    state, found = None, []
    for frame in x:
        probability, state = model.step(frame, state)
        found.append(probability)
    np.testing.assert_allclose(found, model.filter(x), atol=1e-10)
    if kind is HMM:
        assert state.log_likelihood == pytest.approx(model.score(x), rel=1e-10)


def test_known_regressions_take_inputs_apart_or_as_columns() -> None:
    rng = np.random.default_rng(0)
    y, u = rng.standard_normal((9, 2)), rng.standard_normal((9, 3))
    known = HMM.from_tables(
        initial=[0.5, 0.5],
        transition=[[0.9, 0.1], [0.2, 0.8]],
        observations="regression",
        coefficients=rng.standard_normal((2, 2, 3)),
        intercepts=rng.standard_normal((2, 2)),
        covariances=[np.eye(2), 2 * np.eye(2)],
        covariance_type="full",
    )
    assert known.score(y, inputs=u) == known.score(np.hstack([y, u]))
    with pytest.raises(rankfold.DomainError, match="2 features, but HMM is expecting 5"):
        known.score(y)
    with pytest.raises(rankfold.ShapeError, match="inputs have 2 columns"):
        known.score(y, inputs=u[:, :2])


def test_known_symbols_in_a_column_are_counted_by_their_table() -> None:
    known = HMM.from_tables(
        initial=[0.5, 0.5],
        transition=[[0.9, 0.1], [0.2, 0.8]],
        observations=["poisson", "categorical"],
        rates=[[1.0], [5.0]],
        emission=[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]],
    )
    assert known.model_.config.columns == ("poisson", "categorical:3")
    weight = np.array([0.5 * np.exp(-1) * 0.2, 0.5 * np.exp(-5) * 0.8])
    np.testing.assert_allclose(known.score(np.array([[0.0, 2.0]])), np.log(weight.sum()), rtol=1e-12)


def test_tables_that_several_columns_have_are_named_by_column() -> None:
    """Read, given, and fixed."""
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, 40), rng.standard_normal(40), rng.integers(0, 2, 40), rng.integers(0, 4, 40)], 1)
    columns = ["categorical", "student_t", "bernoulli", "categorical"]
    model = HMM(2, observations=columns, smoothing=0.2, max_iter=2, tol=None, random_state=0).fit(x)
    again = HMM.from_tables(**model.tables_, observations=columns)
    assert again.score(x) == pytest.approx(model.score(x), rel=1e-12)
    start = {"emission_0": [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]], "emission_2": [[0.3], [0.6]], "means": [[0.5], [-0.5]]}
    for fixed in start:
        held = HMM(2, observations=columns, start=start, fixed=(fixed,), max_iter=3, tol=None, random_state=0).fit(x)
        own = {"means": "mean"}.get(fixed, fixed.replace("emission", "probability"))
        np.testing.assert_allclose(held.tables_[own], start[fixed], rtol=1e-12)
        assert not np.allclose(held.tables_["probability_3"], model.tables_["probability_3"])
        assert (np.diff(held.history_) > 0).all()


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"observations": "poisson", "rates": [[-1.0], [2.0]]}, "rates has entries"),
        ({"observations": "categorical", "emission": [[0.5, 0.6], [0.5, 0.5]]}, "emission is no distribution"),
        (
            {"means": [[0.0], [1.0]], "covariances": [[[0.0]], [[1.0]]], "covariance_type": "full"},
            "matrix 0 of covariances is singular",
        ),
    ],
)
def test_errors_name_the_argument(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(rankfold.DomainError, match=f"^{said}"):
        HMM.from_tables(initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], **tables)


def test_errors_name_the_table_of_durations() -> None:
    with pytest.raises(rankfold.DomainError, match=r"^durations is no distribution"):
        HSMM.from_tables(initial=[0.5, 0.5], transition=[[0, 1], [1, 0]], means=[[0.0], [1.0]],
                         covariances=[[1.0], [1.0]], durations=[[0.5, 0.6], [0.5, 0.5]])  # fmt: skip


def test_steps_of_a_known_regression_take_inputs_apart() -> None:
    rng = np.random.default_rng(0)
    model = HMM.from_tables(
        initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], observations="regression",
        coefficients=rng.normal(size=(2, 1, 2)), intercepts=rng.normal(size=(2, 1)), covariances=np.ones((2, 1, 1)),
    )  # fmt: skip
    x, u = rng.normal(size=(5, 1)), rng.normal(size=(5, 2))
    state, found = None, []
    for frame, inputs in zip(x, u, strict=True):
        now, state = model.step(frame, state, inputs=inputs)
        found.append(now)
    assert np.allclose(found, model.filter(x, inputs=u), rtol=0, atol=1e-12)
    assert state is not None
    assert state.log_likelihood == pytest.approx(model.score(x, inputs=u), rel=1e-12)
    with pytest.raises(rankfold.DomainError, match="but 1 finite features were expected"):
        model.step([1.0, 2.0], inputs=u[0])


def test_steps_of_a_regression_sum_out_missing_outputs() -> None:
    """One of two outputs, and both; the inputs stand apart."""
    rng = np.random.default_rng(0)
    model = HMM.from_tables(
        initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.2, 0.8]], observations="regression",
        coefficients=rng.normal(size=(2, 2, 1)), intercepts=rng.normal(size=(2, 2)), covariances=np.ones((2, 2)),
    )  # fmt: skip
    x, u = rng.normal(size=(5, 2)), rng.normal(size=(5, 1))
    x[1, 1] = x[3] = np.nan
    state = None
    for t in range(5):
        now, state = model.step(x[t], state, inputs=u[t])
        np.testing.assert_allclose(now, model.filter(x, inputs=u)[t], rtol=0, atol=1e-12)
