"""Every observation of the catalogue with a few sequences of valid frames, drawn by numpy from two plain regimes."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTHS = (13, 9, 16, 11)


def regimes(seed: int) -> tuple[np.random.Generator, list[Any]]:
    """Random numbers, and the states of each sequence: runs of a few frames."""
    rng = np.random.default_rng(seed)
    return rng, [np.repeat(rng.permutation(3)[np.arange(9) % 3], rng.integers(2, 6, 9))[:n] for n in LENGTHS]


def measured(width: int = 3, seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    mix = rng.standard_normal((width, width))
    centres = 3 * rng.standard_normal((3, width))
    return [centres[y] + rng.standard_normal((len(y), width)) @ mix for y in states]


def counts(width: int = 3, seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    rates = rng.gamma(2.0, 2.0, (3, width))
    return [rng.poisson(rates[y]).astype(float) for y in states]


def positive(width: int = 2, seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    shapes, rates = rng.uniform(0.5, 5.0, (3, width)), rng.uniform(0.2, 3.0, (3, width))
    return [rng.gamma(shapes[y], 1 / rates[y]) for y in states]


def often_zero(make: Any) -> Any:
    """The same, with zeros in two of three regimes."""

    def found(width: int = 2, seed: int = 0) -> list[Any]:
        rng, states = regimes(seed)
        dry = np.array([0.0, 0.3, 0.7])
        x = make(width, seed)
        return [np.where(rng.random(a.shape) < dry[y][:, None], 0.0, a) for a, y in zip(x, states, strict=True)]

    return found


def shares(width: int = 2, seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    alpha, beta = rng.uniform(0.5, 8.0, (2, 3, width))
    return [rng.beta(alpha[y], beta[y]) for y in states]


def angles(width: int = 2, seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    mean, concentration = rng.uniform(-3, 3, (3, width)), rng.uniform(0.5, 8.0, (3, width))
    return [rng.vonmises(mean[y], concentration[y]) for y in states]


def often_last(seed: int = 0) -> list[Any]:
    """Two positive columns, and one that is often 0."""
    return [np.c_[a, b] for a, b in zip(positive(2, seed), often_zero(positive)(1, seed), strict=True)]


def bits(seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    p = rng.random((3, 4))
    return [(rng.random((len(y), 4)) < p[y]).astype(float) for y in states]


def choices(seed: int = 0) -> list[Any]:
    """A symbol that depends on two inputs, which come after it."""
    rng, states = regimes(seed)
    weight, found = rng.standard_normal((3, 3, 2)), []
    for y in states:
        u = rng.standard_normal((len(y), 2))
        logits = np.einsum("tck,tk->tc", weight[y], u) + rng.gumbel(size=(len(y), 3))
        found.append(np.c_[logits.argmax(1), u])
    found[0][:3, 0] = np.arange(3)
    return found


def symbols(seed: int = 0) -> list[Any]:
    rng, states = regimes(seed)
    p = rng.dirichlet(np.ones(4), 3)
    found = [np.array([rng.choice(4, p=p[z]) for z in y]) for y in states]
    found[0][:4] = np.arange(4)
    return found


def mixed(seed: int = 0) -> list[Any]:
    """Two measured columns, a count, a symbol."""
    parts = zip(measured(2, seed), counts(1, seed), symbols(seed), strict=True)
    return [np.concatenate([a, b, c[:, None].astype(float)], 1) for a, b, c in parts]


MEANS = {"gaussian", "gaussian_mixture", "additive_gaussian", "student_t", "log_normal", "zero_inflated_log_normal"}
PRIORS = {
    "mean_weight": MEANS,
    "variance_prior": MEANS | {x + y for x in ("regression", "autoregressive") for y in ("", "_student_t")},
    "emission_prior": {"bernoulli", "categorical", "multinomial"},
}


def heeded(observations: Any, **priors: Any) -> dict[str, Any]:
    """Those of these priors that are of a table which the observations have."""
    kinds = {observations} if isinstance(observations, str) else {x.partition(":")[0] for x in observations}
    return {name: value for name, value in priors.items() if PRIORS[name] & kinds}


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{
        f"gaussian-{kind}": ("gaussian", measured, {"covariance_type": kind})
        for kind in ("diag", "full", "tied", "spherical", "low_rank")
    },
    **{
        f"mixture-{kind}": ("gaussian_mixture", measured, {"covariance_type": kind, "min_variance": 0.05})
        for kind in ("diag", "full", "tied", "spherical")
    },
    "student_t": ("student_t", measured, {}),
    "student_t-full": ("student_t", measured, {"covariance_type": "full", "min_variance": 0.05}),
    "student_t-tied": ("student_t", measured, {"covariance_type": "tied"}),
    "poisson": ("poisson", counts, {}),
    "gamma": ("gamma", positive, {}),
    "exponential": ("exponential", often_zero(positive), {}),
    "half_normal": ("half_normal", positive, {}),
    "log_normal": ("log_normal", positive, {}),
    "log_normal-full": ("log_normal", positive, {"covariance_type": "full", "min_variance": 0.05}),
    "negative_binomial": ("negative_binomial", counts, {}),
    "zero_inflated_poisson": ("zero_inflated_poisson", often_zero(counts), {}),
    "zero_inflated_negative_binomial": ("zero_inflated_negative_binomial", often_zero(counts), {}),
    "zero_inflated_gamma": ("zero_inflated_gamma", often_zero(positive), {}),
    "zero_inflated_log_normal": ("zero_inflated_log_normal", often_zero(positive), {"min_variance": 0.05}),
    "beta": ("beta", shares, {}),
    "von_mises": ("von_mises", angles, {}),
    "multinomial": ("multinomial", counts, {}),
    "bernoulli": ("bernoulli", bits, {}),
    "categorical": ("categorical", symbols, {}),
    "regression": ("regression", measured, {"n_inputs": 1}),
    "regression-full": ("regression", measured, {"n_inputs": 1, "covariance_type": "full"}),
    "regression_student_t": ("regression_student_t", measured, {"n_inputs": 1, "covariance_type": "full"}),
    "logistic": ("logistic", choices, {"n_inputs": 2}),
    "autoregressive": ("autoregressive", measured, {"order": 2, "min_variance": 0.05}),
    "autoregressive_student_t": (
        "autoregressive_student_t",
        measured,
        {"order": 2, "covariance_type": "full", "min_variance": 0.05},
    ),
    "autoregressive_student_t-diag": ("autoregressive_student_t", measured, {"order": 1, "min_variance": 0.05}),
    "product": (("gaussian", "gaussian", "poisson", "categorical"), mixed, {"covariance_type": "full"}),
    "product-positive": (("log_normal", "log_normal", "zero_inflated_gamma"), often_last, {"covariance_type": "full"}),
    "additive_gaussian": ("additive_gaussian", measured, {"covariance_type": "full"}),
}
