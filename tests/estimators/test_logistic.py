"""Symbols by softmax regression on inputs: against all paths in plain numpy, and against its own Newton's method."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.estimators import HMM, HSMM
from tests.estimators.test_input_driven import regression

RNG = np.random.default_rng(0)
INITIAL, MOVES = RNG.dirichlet(np.ones(2)), RNG.dirichlet(np.ones(2), 2)
COEFFICIENTS, INTERCEPTS = RNG.standard_normal((2, 3, 2)), RNG.standard_normal((2, 3))


def shares(u: Any) -> Any:  # "t k" -> "t z c"
    logits = np.einsum("zck,tk->tzc", COEFFICIENTS, u) + INTERCEPTS
    weights = np.exp(logits - logits.max(2, keepdims=True))
    return weights / weights.sum(2, keepdims=True)


def known(**params: Any) -> HMM:
    return HMM.from_tables(
        initial=INITIAL, transition=MOVES, observations="logistic", coefficients=COEFFICIENTS, intercepts=INTERCEPTS,
        **params,
    )  # fmt: skip


def drawn(num: int, length: int, seed: int) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    xs, us = [], []
    for _ in range(num):
        u = rng.standard_normal((length, 2))
        p, z, x = shares(u), int(rng.integers(2)), []
        for t in range(length):
            z = int(rng.choice(2, p=MOVES[z])) if t else z
            x.append([float(rng.choice(3, p=p[t, z]))])
        xs.append(np.array(x))
        us.append(u)
    return xs, us


def test_likelihoods_and_posteriors_are_those_of_all_paths() -> None:
    (x,), (u,) = drawn(1, 5, 0)
    x[2] = np.nan  # nobody saw it
    weights = {}
    for path in itertools.product(range(2), repeat=5):
        p = INITIAL[path[0]] * np.prod([MOVES[a, b] for a, b in itertools.pairwise(path)])
        for t, z in enumerate(path):
            p *= 1.0 if np.isnan(x[t, 0]) else shares(u)[t, z, int(x[t, 0])]
        weights[path] = p
    total = sum(weights.values())
    model = HMM.from_tables(
        initial=INITIAL, transition=MOVES, observations="logistic", coefficients=COEFFICIENTS, intercepts=INTERCEPTS
    )
    whole = np.hstack([x, u])
    assert model.score(whole) == pytest.approx(np.log(total), rel=1e-12)
    posterior = sum(w * np.eye(2)[list(path)] for path, w in weights.items()) / total
    np.testing.assert_allclose(model.predict_proba(whole), posterior, rtol=0, atol=1e-12)
    assert model.decode(whole)[0] == pytest.approx(np.log(max(weights.values())), rel=1e-12)
    frames, states = model.sample(4000, inputs=np.tile(u[:1], (4000, 1)), random_state=0)
    for z in range(2):
        found = np.bincount(frames[states == z, 0].astype(int), minlength=3) / (states == z).sum()
        assert np.abs(found - shares(u[:1])[0, z]).max() < 5 * 0.5 / (states == z).sum() ** 0.5


def test_one_state_is_a_regression() -> None:
    """EM of one state ends at the maximum that Newton's method in numpy finds."""
    x, u = drawn(4, 40, 1)
    with_one = np.c_[np.ones(160), np.concatenate(u)]
    counts = np.eye(3)[np.concatenate(x)[:, 0].astype(int)]
    for ridge, smoothing in ((0.0, 0.0), (0.5, 0.3)):
        model = HMM(1, observations="logistic", input_prior=ridge, smoothing=smoothing, tol=None, max_iter=150)
        model.fit(x, inputs=u)
        logits = with_one[:, 1:] @ model.coefficients_[0].T + model.intercepts_[0]
        ours = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(ours, regression(with_one, counts, ridge, np.full(3, smoothing)), rtol=0, atol=1e-6)
        assert np.diff(model.history_).min() > -1e-9


@pytest.mark.filterwarnings("ignore:segments last at most")
def test_parameters_come_back_and_inputs_may_drive_both() -> None:
    coefficients = np.array([[[0.0], [3.0]], [[0.0], [-3.0]]])
    truth = HMM.from_tables(
        initial=[0.5, 0.5], transition=[[0.9, 0.1], [0.1, 0.9]], observations="logistic", coefficients=coefficients,
        intercepts=np.zeros((2, 2)), random_state=0,
    )  # fmt: skip
    u = RNG.standard_normal((1500, 1))
    frames, states = truth.sample(1500, inputs=u)
    x, u = np.split(frames[:, :1], 10), np.split(u, 10)
    model = HMM(2, observations="logistic", random_state=0, n_init=2, tol=1e-5, max_iter=80).fit(x, inputs=u)
    slopes = model.coefficients_[:, 1, 0] - model.coefficients_[:, 0, 0]
    order = np.argsort(-slopes)
    assert np.abs(slopes[order] - [3, -3]).max() < 1.2
    assert np.abs(model.transition_[order][:, order] - [[0.9, 0.1], [0.1, 0.9]]).max() < 0.06
    found = np.concatenate(model.predict(x, inputs=u))
    assert np.mean(order.argsort()[found] == states) > 0.85
    both = HMM(2, observations="logistic", input_driven="transition", input_prior=0.1, max_iter=5, tol=None)
    assert np.diff(both.fit(x, inputs=u).history_).min() > -1e-9
    segments = HSMM(2, observations="logistic", max_duration=20, max_iter=3, tol=None, random_state=0)
    assert np.diff(segments.fit(x, inputs=u).history_).min() > -1e-9


@pytest.mark.filterwarnings("ignore:too little data")
def test_a_network_of_the_observations_is_fitted_without_a_loss() -> None:
    """Symbols that no linear regression tells apart: whether two inputs have the same sign."""
    rng = np.random.default_rng(4)
    u = [rng.standard_normal((60, 2)) for _ in range(4)]
    x = [((v[:, :1] * v[:, 1:] > 0) ^ (rng.random((60, 1)) < 0.05)).astype(float) for v in u]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    linear = HMM(1, observations="logistic", max_iter=20, tol=None, random_state=0).fit(x, inputs=u)
    model = HMM(1, observations="logistic", input_driven={"observations": net}, input_prior=0.01, smoothing=0.1,
                max_iter=12, tol=None, random_state=0).fit(x, inputs=u)  # fmt: skip
    assert np.diff(model.history_).min() > -1e-9
    assert model.score(x, inputs=u) > linear.score(x, inputs=u) + 40
    assert pickle.loads(pickle.dumps(model)).score(x, inputs=u) == model.score(x, inputs=u)
    wide = torch.nn.Linear(2, 4)
    both = HMM(2, observations="logistic", input_driven={"observations": wide, "transition": None}, input_prior=0.1,
               max_iter=5, tol=None, random_state=0)  # fmt: skip
    assert np.diff(both.fit(x, inputs=u).history_).min() > -1e-9
    climbed = both.set_params(learning_rate=0.02).fit(x, inputs=u, algorithm="sgd").history_
    assert max(climbed) > climbed[0]
    with pytest.raises(UnsupportedError, match="network of your own"):
        model.model_.save_pretrained("nowhere")
    with pytest.raises(UnsupportedError, match="no counts that add up"):
        model.partial_fit(x, inputs=u)
    with pytest.raises(UnsupportedError, match="no counts that add up"):
        model.fit(x, inputs=u, algorithm="minibatch")
    with pytest.raises(ShapeError, match="network of the observations gave"):
        HMM(3, observations="logistic", input_driven={"observations": wide}).fit(x, inputs=u)
    with pytest.raises(UnsupportedError, match="logistic"):
        HMM(3, input_driven={"observations": wide}).fit(x, inputs=u)


def test_bad_symbols_are_refused() -> None:
    x, u = drawn(2, 10, 3)
    model = known()
    with pytest.raises(DomainError, match="a symbol is 3, but this model knows 0 to 2"):
        model.score(np.hstack([x[0] + 3 * (np.arange(10) == 4)[:, None] - x[0] * (np.arange(10) == 4)[:, None], u[0]]))
    for wrong, text in ((-1.0, "feature 0 is -1"), (0.5, "feature 0 is 0.5")):
        bad = x[0].copy()
        bad[1] = wrong
        with pytest.raises(DataError, match=text):
            HMM(2, observations="logistic").fit([bad], inputs=[u[0]])
    with pytest.raises(DomainError, match="one symbol, and then"):
        HMM(2, observations="logistic").fit([np.hstack([x[0], x[0]])], inputs=[u[0]])
    for fixed in (("coefficient",), ("intercept",)):
        held = known(fixed=fixed, max_iter=3, tol=None).fit([np.hstack(pair) for pair in zip(x, u, strict=True)])
        assert np.allclose(held.coefficients_, COEFFICIENTS, rtol=0, atol=1e-12) == (fixed == ("coefficient",))
        assert np.allclose(held.intercepts_, INTERCEPTS, rtol=0, atol=1e-12) == (fixed == ("intercept",))
