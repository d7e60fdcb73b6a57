"""A network of inputs next to the linear mean of a regression: against all paths, and against plain least squares."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import ShapeError, UnsupportedError
from rankfold.estimators import HMM

MOVES = np.array([[0.9, 0.1], [0.2, 0.8]])


class Bend(torch.nn.Module):
    """u -> scale * u^2 in one direction for the first state, the other for the second: numpy can say what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([0.5, -0.5]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:  # "n 1" -> "n z 1"
        return (inputs.square() * self.scale).unsqueeze(2)


def drawn(num: int, length: int, seed: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Frames u + a u^2 + noise, where a is 2 in the first state and -2 in the second."""
    rng = np.random.default_rng(seed)
    xs, us, zs = [], [], []
    for _ in range(num):
        u, z, states = rng.standard_normal((length, 1)), int(rng.integers(2)), []
        for t in range(length):
            z = int(rng.choice(2, p=MOVES[z])) if t else z
            states.append(z)
        bend = np.array([2.0, -2.0])[states][:, None]
        xs.append(u + bend * u**2 + 0.3 * rng.standard_normal((length, 1)))
        us.append(u)
        zs.append(np.array(states))
    return xs, us, zs


def fitted(x: Any, u: Any, **params: Any) -> HMM:
    given: dict[str, Any] = {
        "input_driven": {"observations": Bend()}, "max_iter": 25, "tol": None, "random_state": 0, **params
    }  # fmt: skip
    return HMM(2, **{"observations": "regression", **given}).fit(x, inputs=u)


@pytest.mark.filterwarnings("ignore:too little data")
def test_parameters_come_back_and_posteriors_are_those_of_all_paths() -> None:
    x, u, z = drawn(8, 60, 0)
    model = fitted(x, u)
    scale = model.model_.observation.network.scale.detach().numpy()
    order = np.argsort(-scale)
    np.testing.assert_allclose(scale[order], [2, -2], rtol=0, atol=0.1)
    np.testing.assert_allclose(model.coefficients_[:, 0, 0], 1, rtol=0, atol=0.1)
    np.testing.assert_allclose(model.covariances_[:, 0], 0.09, rtol=0, atol=0.03)
    np.testing.assert_allclose(model.transition_[order][:, order], MOVES, rtol=0, atol=0.08)
    assert np.diff(model.history_).min() > -1e-9
    assert np.mean(order.argsort()[np.concatenate(model.predict(x, inputs=u))] == np.concatenate(z)) > 0.85

    y, v = x[0][:5].copy(), u[0][:5]
    y[2] = np.nan
    mean = model.coefficients_[:, 0, 0] * v + model.intercepts_[:, 0] + scale * v**2  # "t z"
    variance = model.covariances_[:, 0]
    density = np.exp(-((y - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    density[2] = 1.0
    weights = {}
    for path in itertools.product(range(2), repeat=5):
        p = model.initial_[path[0]] * np.prod([model.transition_[a, b] for a, b in itertools.pairwise(path)])
        weights[path] = p * np.prod([density[t, s] for t, s in enumerate(path)])
    total = sum(weights.values())
    posterior = sum(w * np.eye(2)[list(path)] for path, w in weights.items()) / total
    assert model.score(y, inputs=v) == pytest.approx(np.log(total), rel=1e-9)
    np.testing.assert_allclose(model.predict_proba(y, inputs=v), posterior, rtol=0, atol=1e-9)
    assert pickle.loads(pickle.dumps(model)).score(x, inputs=u) == model.score(x, inputs=u)
    frames, states = model.sample(4000, inputs=np.full((4000, 1), 1.5), random_state=0)
    expected = model.coefficients_[:, 0, 0] * 1.5 + model.intercepts_[:, 0] + scale * 2.25
    for s in range(2):
        assert abs(frames[states == s, 0].mean() - expected[s]) < 0.05


@pytest.mark.filterwarnings("ignore:too little data")
def test_one_state_is_least_squares() -> None:
    """A network that is linear in its parameters: with one state EM ends at numpy's least squares."""

    class Square(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 2, bias=False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(inputs.square())
            return found

    x, u, _ = drawn(3, 40, 1)
    y = [np.hstack([a, a[::-1]]) for a in x]
    torch.manual_seed(0)
    model = HMM(1, observations="regression", input_driven={"observations": Square()}, max_iter=8, tol=None,
                random_state=0, min_variance=0.0, covariance_type="full").fit(y, inputs=u)  # fmt: skip
    v = np.concatenate(u)
    design = np.hstack([v, v**2, np.ones_like(v)])
    best, *_ = np.linalg.lstsq(design, np.concatenate(y), rcond=None)
    left = np.concatenate(y) - design @ best
    np.testing.assert_allclose(model.coefficients_[0, :, 0], best[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.covariances_[0], left.T @ left / len(left), rtol=1e-5, atol=0)
    weight = model.model_.observation.network.layer.weight.detach().numpy()
    np.testing.assert_allclose(weight[:, 0], best[1], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:too little data")
def test_missing_features_priors_and_gradients() -> None:
    x, u, _ = drawn(4, 40, 2)
    y = [np.hstack([a, -a + 0.1 * b]) for a, b in zip(x, u, strict=True)]
    y[0][3, 0] = y[0][9] = y[2][5, 1] = np.nan
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))
    prior: dict[str, Any] = {"input_driven": {"observations": net}, "input_prior": 0.1, "variance_prior": 2.0}
    held = {"coefficient": np.ones((2, 2, 1)), "intercept": np.zeros((2, 2))}
    for params in (
        {"covariance_type": "full"},
        {"fixed": ("coefficient", "intercept"), "start": held},
        {"observations": "regression_student_t"},
        {"covariance_type": "diag"},
    ):
        model = fitted(y, u, **prior, max_iter=6, missing="feature", **params)
        assert np.diff(model.history_).min() > -1e-9
    assert model.history_[-1] > model.history_[0] + 10
    climbed = model.set_params(learning_rate=0.02, fixed=()).fit(y, inputs=u, algorithm="sgd").history_
    assert max(climbed) > climbed[0]
    with pytest.raises(UnsupportedError, match="network of your own"):
        model.model_.save_pretrained("nowhere")
    with pytest.raises(ShapeError, match="network of the observations gave"):
        HMM(3, observations="regression", input_driven={"observations": net}).fit(x, inputs=u)
