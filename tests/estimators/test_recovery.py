"""Parameters of known models are found again, of every observation, from frames drawn by numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, HSMM
from rankfold.params.observations import OBSERVATIONS

SEQUENCES, FRAMES = 20, 200
MOVES = np.array([[0.95, 0.05], [0.1, 0.9]])
RNG = np.random.default_rng(11)


def paths() -> Any:
    """States of all sequences, "s t"."""
    u, found = RNG.random((SEQUENCES, FRAMES)), np.zeros((SEQUENCES, FRAMES), int)
    found[:, 0] = u[:, 0] < 0.5
    for t in range(1, FRAMES):
        found[:, t] = u[:, t] < MOVES[found[:, t - 1], 1]
    return found


STATES = paths()
Z = STATES.reshape(-1)
NUM = len(Z)
MEANS, FULL = np.array([[0.0, 1.0], [3.0, -1.0]]), np.array([[[1.0, 0.5], [0.5, 0.8]], [[0.6, -0.3], [-0.3, 1.2]]])
DIAGONAL = np.array([[1.0, 0.5], [0.4, 2.0]])
NOISE = RNG.standard_normal((NUM, 2))
INPUTS = RNG.standard_normal((NUM, 1))
HEAVY = np.random.default_rng(12).standard_t(3.0, (NUM, 1))


def of(*values: Any) -> Any:
    """The value of each frame's state."""
    return np.array(values)[Z]


def correlated(covariances: Any) -> Any:
    return MEANS[Z] + np.einsum("nij,nj->ni", np.linalg.cholesky(covariances)[Z], NOISE)


def autoregressive(noise: Any = NOISE) -> Any:
    x = np.zeros((SEQUENCES, FRAMES))
    for t, s in itertools.product(range(FRAMES), range(SEQUENCES)):
        z = STATES[s, t]
        before = x[s, t - 1] if t else 0.0
        x[s, t] = [0.9, -0.5][z] * before + [0.0, 2.0][z] + [0.3, 0.6][z] * noise[s * FRAMES + t, 0]
    return x.reshape(-1, 1)


def logistic() -> Any:
    slope = of(4.0, -4.0)
    return (RNG.random(NUM) < 1 / (1 + np.exp(-slope * INPUTS[:, 0]))).astype(float)[:, None]


def mixture() -> Any:
    which = (RNG.random(NUM) < of(0.7, 0.4)).astype(int)
    return np.array([[-1.0, -5.0], [9.0, 5.0]])[Z, which][:, None] + NOISE[:, :1]


def symbols(p: Any) -> Any:
    return (RNG.random(NUM)[:, None] > np.cumsum(p, 1)[Z]).sum(1)


EMISSION = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
ONES = np.array([[0.9, 0.2], [0.3, 0.6]])
TRIALS = np.array([RNG.multinomial(8, EMISSION[z]) for z in Z]).astype(float)
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "gaussian": (MEANS[Z] + NOISE * np.sqrt(DIAGONAL)[Z], {"means": MEANS, "covariances": DIAGONAL}, {}),
    "gaussian-full": (correlated(FULL), {"means": MEANS, "covariances": FULL}, {"covariance_type": "full"}),
    "gaussian-tied": (
        correlated(FULL[[0, 0]]),
        {"means": MEANS, "covariances": FULL[0]},
        {"covariance_type": "tied"},
    ),
    "gaussian_mixture": (
        mixture(),
        {"weights": [[0.3, 0.7], [0.6, 0.4]], "means": [[[-1.0], [-5.0]], [[9.0], [5.0]]]},
        {"n_init": 4},
    ),
    "student_t": (
        3 * Z[:, None] + RNG.standard_t(of(3.0, 8.0))[:, None],
        {"means": [[0.0], [3.0]], "scales": [[1.0], [1.0]]},
        {},
    ),
    "student_t-full": (
        MEANS[Z] + (correlated(FULL) - MEANS[Z]) / np.sqrt(RNG.chisquare(of(4.0, 9.0)) / of(4.0, 9.0))[:, None],
        {"means": MEANS, "scales": FULL},
        {"covariance_type": "full"},
    ),
    "gamma": (
        RNG.gamma(of(2.0, 6.0), 1 / of(2.0, 1.0))[:, None],
        {"shapes": [[2.0], [6.0]], "rates": [[2.0], [1.0]]},
        {},
    ),
    "exponential": (RNG.exponential(of(0.3, 4.0))[:, None], {"rates": [[1 / 0.3], [1 / 4.0]]}, {}),
    "half_normal": (np.abs(NOISE[:, :1]) * of([0.4], [3.0]), {"deviations": [[0.4], [3.0]]}, {}),
    "log_normal": (
        np.exp(correlated(FULL)),
        {"means": MEANS, "covariances": FULL},
        {"covariance_type": "full"},
    ),
    "beta": (RNG.beta(of(2.0, 6.0), of(5.0, 2.0))[:, None], {"alpha": [[2.0], [6.0]], "beta": [[5.0], [2.0]]}, {}),
    "von_mises": (
        RNG.vonmises(of(0.0, 2.5), of(3.0, 6.0))[:, None],
        {"means": [[0.0], [2.5]], "concentrations": [[3.0], [6.0]]},
        {},
    ),
    "poisson": (RNG.poisson(of([2.0, 4.0], [8.0, 1.0])).astype(float), {"rates": [[2.0, 4.0], [8.0, 1.0]]}, {}),
    "negative_binomial": (
        RNG.negative_binomial(of(2.0, 8.0), of(0.6, 0.4))[:, None].astype(float),
        {"shapes": [[2.0], [8.0]], "rates": [[1.5], [2 / 3]]},
        {"max_iter": 400},
    ),
    "zero_inflated_poisson": (
        np.where(RNG.random(NUM) < of(0.5, 0.1), 0.0, RNG.poisson(of(2.0, 8.0)))[:, None],
        {"zeros": [[0.5], [0.1]], "rates": [[2.0], [8.0]]},
        {},
    ),
    "zero_inflated_negative_binomial": (
        np.where(RNG.random(NUM) < of(0.5, 0.1), 0.0, RNG.negative_binomial(of(9.0, 8.0), of(0.8, 0.4)))[:, None],
        {"zeros": [[0.5], [0.1]]},
        {"max_iter": 400},
    ),
    "zero_inflated_gamma": (
        np.where(RNG.random(NUM) < of(0.8, 0.1), 0.0, RNG.gamma(of(1.0, 4.0), 1 / of(2.0, 1.0)))[:, None],
        {"zeros": [[0.8], [0.1]], "shapes": [[1.0], [4.0]], "rates": [[2.0], [1.0]]},
        {},
    ),
    "zero_inflated_log_normal": (
        np.where(RNG.random(NUM) < of(0.8, 0.1), 0.0, np.exp(of(0.0, 2.0) + of(1.0, 0.5) * NOISE[:, 0]))[:, None],
        {"zeros": [[0.8], [0.1]], "means": [[0.0], [2.0]], "covariances": [[1.0], [0.25]]},
        {},
    ),
    "multinomial": (TRIALS, {"emission": EMISSION}, {}),
    "bernoulli": ((RNG.random((NUM, 2)) < ONES[Z]).astype(float), {"emission": ONES}, {}),
    "categorical": (symbols(EMISSION), {"emission": EMISSION}, {"n_init": 4}),
    "regression": (
        np.c_[of(1.0, -2.0) * INPUTS[:, 0] + of(0.0, 1.0) + of(0.5, 0.8) * NOISE[:, 0], INPUTS],
        {"coefficients": [[[1.0]], [[-2.0]]], "intercepts": [[0.0], [1.0]], "covariances": [[0.25], [0.64]]},
        {"n_inputs": 1, "n_init": 2},
    ),
    "regression_student_t": (
        np.c_[of(1.0, -2.0) * INPUTS[:, 0] + of(0.0, 1.0) + of(0.5, 0.8) * HEAVY[:, 0], INPUTS],
        {"coefficients": [[[1.0]], [[-2.0]]], "intercepts": [[0.0], [1.0]], "scales": [[0.25], [0.64]]},
        {"n_inputs": 1, "n_init": 2},
    ),
    "logistic": (np.c_[logistic(), INPUTS], {}, {"n_inputs": 1, "n_init": 4, "input_prior": 0.1}),
    "autoregressive": (
        autoregressive(),
        {"coefficients": [[[0.9]], [[-0.5]]], "intercepts": [[0.0], [2.0]], "covariances": [[0.09], [0.36]]},
        {"n_init": 2},
    ),
    "autoregressive_student_t": (
        autoregressive(HEAVY),
        {
            "coefficients": [[[0.9]], [[-0.5]]],
            "intercepts": [[0.0], [2.0]],
            "scales": [[0.09], [0.36]],
            "degrees": [3.0, 3.0],
        },
        {"n_init": 2},
    ),
    "product": (
        np.c_[correlated(FULL), RNG.poisson(of(2.0, 6.0)), symbols(EMISSION)],
        {"means": MEANS, "covariances": FULL, "rates": [[2.0], [6.0]], "emission": EMISSION},
        {"columns": ("gaussian", "gaussian", "poisson", "categorical"), "covariance_type": "full"},
    ),
}


def test_every_observation_is_here() -> None:
    """A sum of chains is one of `FactorialHMM`, whose parts are known up to a vector (test_structured.py)."""
    assert {name.partition("-")[0] for name in CASES} == set(OBSERVATIONS) - {"additive_gaussian"}


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_found_again(name: str) -> None:
    x, truth, settings = CASES[name]
    settings = dict(settings)
    observations = settings.pop("columns", name.partition("-")[0])
    model = HMM(2, observations=observations, random_state=0, **{"max_iter": 200, **settings})
    model.fit(list(x.reshape(SEQUENCES, FRAMES, *x.shape[1:])))
    near(model, truth)


def near(model: Any, truth: dict[str, Any]) -> None:
    """The tables and transitions are the known ones, in one of the orders of states (and of a mixture's parts)."""
    best = np.inf
    for order in ([0, 1], [1, 0]):
        away = [np.abs(model.transition_[np.ix_(order, order)] - MOVES).max() / 0.03]
        for table, value in truth.items():
            found, known = getattr(model, f"{table}_"), np.asarray(value, dtype=float)
            shared = table == "covariances" and model.covariance_type == "tied"
            found = found if shared else found[order]
            if "weights" in truth:
                flip = np.argsort(model.means_[order][..., 0], 1)[:, ::-1]  # its parts are in the order of means
                found = np.stack([row[f] for row, f in zip(found, flip, strict=True)])
            away.append((np.abs(found - known) / (0.1 + 0.15 * np.abs(known))).max())
        best = min(best, max(away))
    assert best < 1, {table: getattr(model, f"{table}_") for table in truth}


@pytest.mark.parametrize("durations", ["poisson", "negative_binomial", "categorical"])
def test_durations_are_found_again(durations: Any) -> None:
    """Segments of one state last 3 to 6 frames, of the other 8 to 15, uniformly: their means, and all of a table."""
    x = []
    for _ in range(30):
        lengths = [int(RNG.integers(*([3, 7] if i % 2 == 0 else [8, 16]))) for i in range(16)]
        states = np.repeat(np.arange(16) % 2, lengths)
        x.append(3 * states[:, None] + RNG.standard_normal((len(states), 1)))
    model = HSMM(2, max_duration=20, durations=durations, random_state=0).fit(x)
    order = np.argsort(model.means_[:, 0])
    table = model.durations_[order]
    np.testing.assert_allclose(table @ np.arange(1, 21), [4.5, 11.5], rtol=0.05)
    if durations == "categorical":
        known = np.zeros((2, 20))
        known[0, 2:6], known[1, 7:15] = 1 / 4, 1 / 8
        np.testing.assert_allclose(table, known, atol=0.08)
