"""Likelihoods, filtered and smoothed states and best paths that dynamax 1.0.3 gives for known parameters.

Its numbers are in `dynamax.json`, in float64. Where dynamax is installed (extra `bench`) they are computed again and
compared with the file. Made anew by

    python -m tests.estimators.test_dynamax
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM

FILE = Path(__file__).with_name("dynamax.json")
STATES, LENGTH, WIDTH, INPUTS, LAGS, RANK = 3, 20, 2, 2, 2, 1


def cases() -> dict[str, dict[str, Any]]:
    """Parameters and frames of each model, drawn once."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.standard_normal(shape).round(3)

    def covariances() -> Any:
        roots = numbers(STATES, WIDTH, WIDTH)
        return roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(WIDTH)

    def chain() -> dict[str, Any]:
        return {"initial": rng.dirichlet(np.ones(STATES)), "transition": rng.dirichlet(np.ones(STATES), STATES)}

    linear = {"coefficients": numbers(STATES, WIDTH, INPUTS), "intercepts": numbers(STATES, WIDTH)}
    lagged = {"coefficients": 0.3 * numbers(STATES, WIDTH, LAGS * WIDTH), "intercepts": numbers(STATES, WIDTH)}
    wide = {"means": numbers(STATES, 4), "loadings": numbers(STATES, 4, RANK)}
    wide["noises"] = rng.uniform(0.3, 2.0, (STATES, 4))
    return {
        "regression": {**chain(), **linear, "covariances": covariances(), "x": 2 * numbers(LENGTH, WIDTH + INPUTS)},
        "autoregressive": {**chain(), **lagged, "covariances": covariances(), "x": 2 * numbers(LENGTH, WIDTH)},
        "poisson": {**chain(), "rates": rng.uniform(0.5, 9.0, (STATES, WIDTH)), "x": rng.poisson(4.0, (LENGTH, WIDTH))},
        "low_rank": {**chain(), **wide, "x": 2 * numbers(LENGTH, 4)},
    }


SETTINGS: dict[str, dict[str, Any]] = {
    "regression": {"observations": "regression", "covariance_type": "full", "n_inputs": INPUTS},
    "autoregressive": {"observations": "autoregressive", "covariance_type": "full", "order": LAGS},
    "poisson": {"observations": "poisson"},
    "low_rank": {"observations": "gaussian", "covariance_type": "low_rank", "covariance_rank": RANK},
}


def by_dynamax(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Its answers, in float64."""
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import (
        LinearAutoregressiveHMM,
        LinearRegressionHMM,
        LowRankGaussianHMM,
        PoissonHMM,
    )

    with jax.enable_x64(True):
        table = {name: jnp.asarray(np.asarray(value, dtype=np.float64)) for name, value in given.items()}
        x, inputs = table["x"], None
        own: dict[str, Any] = {}
        if kind == "regression":
            model = LinearRegressionHMM(STATES, INPUTS, WIDTH)
            x, inputs = x[:, :WIDTH], x[:, WIDTH:]
        elif kind == "autoregressive":
            model = LinearAutoregressiveHMM(STATES, WIDTH, LAGS)
            inputs = model.compute_inputs(x)
        elif kind == "poisson":
            model = PoissonHMM(STATES, WIDTH)
            own = {"emission_rates": table["rates"]}
        else:
            model = LowRankGaussianHMM(STATES, 4, RANK)
            own = {
                "emission_means": table["means"],
                "emission_cov_diag_factors": table["noises"],
                "emission_cov_low_rank_factors": table["loadings"],
            }
        if inputs is not None:
            own = {
                "emission_weights": table["coefficients"],
                "emission_biases": table["intercepts"],
                "emission_covariances": table["covariances"],
            }
        params, _ = model.initialize(
            jax.random.PRNGKey(0), initial_probs=table["initial"], transition_matrix=table["transition"], **own
        )
        smoothed = model.smoother(params, x, inputs)
        return {
            "log_likelihood": float(smoothed.marginal_loglik),
            "filtered": np.asarray(smoothed.filtered_probs).tolist(),
            "smoothed": np.asarray(smoothed.smoothed_probs).tolist(),
            "path": np.asarray(model.most_likely_states(params, x, inputs)).tolist(),
        }


@pytest.mark.parametrize("kind", SETTINGS)
def test_answers_equal_dynamaxs(kind: str) -> None:
    stored = json.loads(FILE.read_text())[kind]
    given, wanted = stored["given"], stored["dynamax"]
    x = np.array(given.pop("x"), dtype=float)
    model = HMM.from_tables(**given, **SETTINGS[kind])
    assert model.score(x) == pytest.approx(wanted["log_likelihood"], abs=1e-6)
    np.testing.assert_allclose(model.filter(x), wanted["filtered"], atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(x), wanted["smoothed"], atol=1e-6)
    np.testing.assert_array_equal(model.predict(x), wanted["path"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_numbers_are_those_of_the_installed_dynamax() -> None:
    pytest.importorskip("dynamax")
    for kind, stored in json.loads(FILE.read_text()).items():
        again = by_dynamax(kind, stored["given"])
        for name, value in stored["dynamax"].items():
            np.testing.assert_allclose(again[name], value, rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    made = {
        kind: {
            "given": {name: np.asarray(value).tolist() for name, value in given.items()},
            "dynamax": by_dynamax(kind, given),
        }
        for kind, given in cases().items()
    }
    FILE.write_text(json.dumps(made) + "\n")
