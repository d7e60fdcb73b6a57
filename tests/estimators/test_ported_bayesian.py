"""The questions that hmmlearn's tests of its variational models and of its divergences ask, for `BayesianHMM`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.estimators import HMM, BayesianHMM
from rankfold.training.conjugate import Dirichlet, NormalWishart

KINDS = ("full", "tied", "diag", "spherical")
TURN, THIRDS = np.roll(np.eye(3), 1, 1), np.full(3, 1 / 3)


def turning(num: int, length: int, seed: int = 0, turn: Any = TURN) -> list[Any]:
    """Three symbols in a fixed order, from a random one on."""
    made = HMM.from_tables(initial=THIRDS, transition=turn, observations="categorical", emission=np.eye(3))
    return list(made.sample(length, n_sequences=num, random_state=seed)[0])


def symbols(num_states: int = 4, **settings: Any) -> BayesianHMM:
    common: dict[str, Any] = {"tol": None, "max_iter": 10, "random_state": 0}
    return BayesianHMM(num_states, observations="categorical", **{**common, **settings})


def expect_rising(model: BayesianHMM) -> None:
    rises = np.diff(model.history_)
    assert (rises > -1e-8 * abs(model.history_[-1])).all()
    assert rises.max() > 1e-6


def test_symbols_from_beliefs_of_ones_own() -> None:
    start = {
        "initial": np.full(4, 7 / 4),
        "transition": np.full((4, 4), 7 / 4),
        "emission": [[0.3, 0.4, 0.3], [0.8, 0.1, 0.1], [0.2, 0.2, 0.6], [0.2, 0.6, 0.2]],
    }
    priors = {
        "initial_prior": 0.25,
        "transition_prior": np.full((4, 4), 0.25),
        "emission_prior": np.full((4, 3), 1 / 3),
    }
    expect_rising(symbols(start=start, **priors).fit(turning(7, 30)))


def test_symbols_are_counted_and_checked() -> None:
    x = turning(3, 30)
    model = symbols(max_iter=3).fit(x)
    assert model.emission_.shape == (4, 3)
    assert symbols(max_iter=3, n_symbols=5).fit(x).emission_.shape == (4, 5)
    with pytest.raises(ValueError, match="none of the 2 known ones"):
        symbols(n_symbols=2).fit(x)
    with pytest.raises(ValueError, match="whole numbers from 0"):
        symbols().fit([np.array([0, -2, 1])])
    with pytest.raises(ValueError, match="whole numbers"):
        symbols().fit([np.array([0.0, 0.5, 1.0])])


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"initial_prior": np.full(3, 0.25)}, r"initial_prior has shape \(3,\), but \(4,\)"),
        ({"transition_prior": np.full((3, 3), 0.25)}, r"transition_prior has shape \(3, 3\), but \(4, 4\)"),
        ({"emission_prior": np.full((3, 3), 1 / 3)}, r"emission_prior has shape \(3, 3\), but \(4, 3\)"),
        ({"emission_prior": np.full((4, 4), 7 / 4)}, r"emission_prior has shape \(4, 4\), but \(4, 3\)"),
        ({"start": {"initial": np.ones(3), "transition": np.ones((4, 4)), "emission": np.ones((4, 3))}}, "'initial'"),
        (
            {"start": {"initial": np.ones(4), "transition": np.ones((3, 3)), "emission": np.ones((4, 3))}},
            "'transition'",
        ),
        ({"start": {"initial": np.ones(4), "transition": np.ones((4, 4)), "emission": np.ones((4, 4))}}, "'emission'"),
    ],
    ids=["initial", "transition", "emission", "more symbols", "first initial", "first transition", "first emission"],
)
def test_priors_of_symbols_are_checked(settings: dict[str, Any], shape: str) -> None:
    x = turning(2, 20)
    with pytest.raises(ValueError, match=shape):
        symbols(**settings).fit(x)
    expect_rising(symbols(initial_prior=1, transition_prior=2, emission_prior=3).fit(x))


def test_three_machines() -> None:
    """One turns right, one left, one tosses a coin; twelve states: the bound rises, and some states are not needed."""
    coin = [np.random.default_rng(seed).integers(0, 2, 39) for seed in range(7)]
    x = [*turning(7, 39), *turning(7, 39, 1, TURN.T), *coin]
    model = symbols(12, initial_prior=1 / 12, transition_prior=1 / 12, emission_prior=1 / 3, max_iter=60).fit(x)
    expect_rising(model)
    used = np.bincount(np.concatenate(model.predict(x)), minlength=12) > 0
    assert 7 <= used.sum() <= 12
    # A machine's states are its own: a sequence that turns is far less probable as a coin's.
    assert model.score_samples(x[:14]).min() > model.score_samples(coin).max()


def expect_equal_answers(bayesian: BayesianHMM, plain: HMM, x: Any) -> None:
    """An HMM of the expected tables says what the Bayesian one says."""
    assert plain.score(x) == pytest.approx(bayesian.score(x), rel=1e-9)
    for method in ("viterbi", "posterior"):
        (mine, paths), (other, others) = (model.decode(x, method=method) for model in (bayesian, plain))  # type: ignore[arg-type]
        assert mine == pytest.approx(other, rel=1e-9)
        np.testing.assert_array_equal(np.concatenate(paths), np.concatenate(others))
    for own, other in zip(bayesian.predict_proba(x), plain.predict_proba(x), strict=True):
        np.testing.assert_allclose(own, other, atol=1e-9)
    drawn = [model.sample(50, random_state=42) for model in (bayesian, plain)]
    np.testing.assert_allclose(drawn[0][0], drawn[1][0])
    np.testing.assert_array_equal(drawn[0][1], drawn[1][1])


def test_states_without_use_keep_their_prior() -> None:
    """Three symbols in turn need three states; the beliefs about a fourth stay near its prior."""
    x = turning(7, 60)
    fits = [
        symbols(
            initial_prior=0.25, transition_prior=0.25, emission_prior=1 / 3, max_iter=200, tol=1e-9, random_state=seed
        ).fit(x)
        for seed in range(4)
    ]
    model = max(fits, key=lambda one: one.history_[-1])
    frames = np.bincount(np.concatenate(model.predict(x)), minlength=4)
    unused = int(frames.argmin())
    assert frames[unused] == 0
    np.testing.assert_allclose(model.beliefs_["transition"][unused], 0.25, rtol=1e-3)
    np.testing.assert_allclose(model.beliefs_["emission"][unused], 1 / 3, rtol=1e-3)
    plain = HMM.from_tables(
        initial=model.initial_, transition=model.transition_, observations="categorical", emission=model.emission_
    )
    expect_equal_answers(model, plain, x)


def test_sequences_of_one_symbol() -> None:
    expect_rising(symbols().fit([*turning(5, 30), *turning(2, 1, 3)]))


def four_peaks(num: int, length: int, seed: int = 0) -> list[Any]:
    """One feature, peaks at -1.5, 0, 1.5 and 3."""
    moves = np.array([[2, 2, 3, 3], [3, 2, 2, 3], [2, 3, 3, 2], [3, 3, 2, 2]]) / 10
    made = HMM.from_tables(
        initial=np.full(4, 0.25),
        transition=moves,
        means=[[-1.5], [0.0], [1.5], [3.0]],
        covariances=np.full((4, 1), 0.06),
    )
    return list(made.sample(length, n_sequences=num, random_state=seed)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_of_frames_rise(kind: Any) -> None:
    rng = np.random.default_rng(1)
    centres = rng.integers(-20, 20, (3, 3))
    x = [centres[rng.integers(0, 3, 60)] + rng.standard_normal((60, 3)) for _ in range(4)]
    expect_rising(BayesianHMM(4, covariance_type=kind, tol=None, max_iter=12, random_state=0).fit(x))


@pytest.mark.parametrize("kind", KINDS)
def test_four_peaks_as_hmmlearn_finds_them(kind: Any) -> None:
    """Five states, from hmmlearn's own start to convergence: its means, and the answers of an HMM with these tables."""
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    (x,) = four_peaks(1, 200)
    peer = vhmm.VariationalGaussianHMM(5, covariance_type=kind, n_iter=30, tol=1e-7, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer._init(x, [200])
        names = {"initial": "startprob", "transition": "transmat", "mean": "means", "mean_weight": "beta"}
        names |= {"dof": "dof", "scale": "scale"}
        start = {own: np.array(getattr(peer, f"{name}_posterior_"), float) for own, name in names.items()}
        peer.init_params = ""
        peer.fit(x)
    if kind in ("diag", "spherical"):
        start["mean_weight"] = start["mean_weight"][:, None]
    if kind == "diag":
        start["dof"] = start["dof"][:, None]
    model = BayesianHMM(
        5, covariance_type=kind, initial_prior=0.2, transition_prior=0.2, mean_prior=x.mean(0), dof_prior=1.0,
        scale_prior=1e-3, start=start, max_iter=len(peer.monitor_.history), tol=None,
    ).fit(x)  # fmt: skip
    np.testing.assert_allclose(model.means_, peer.means_posterior_, rtol=1e-6, atol=1e-6)
    spread = 200 / 2 * np.log(2 * np.pi)  # which theirs leaves out
    assert model.history_[-1] + spread == pytest.approx(peer.monitor_.history[-1], abs=1e-6)
    plain = HMM.from_tables(
        initial=model.initial_, transition=model.transition_, means=model.means_, covariances=model.covariances_,
        covariance_type=kind,
    )  # fmt: skip
    expect_equal_answers(model, plain, [x])


@pytest.mark.parametrize("kind", KINDS)
def test_means_from_beliefs_of_ones_own(kind: Any) -> None:
    x = four_peaks(4, 40)
    common: dict[str, Any] = {"covariance_type": kind, "tol": None, "max_iter": 10, "random_state": 0}
    model = BayesianHMM(4, **common).fit(x)
    start = {
        **model.beliefs_,
        "mean": [[2.0], [1.0], [3.0], [4.0]],
        "mean_weight": np.ones_like(model.beliefs_["mean_weight"]),
    }
    expect_rising(BayesianHMM(4, mean_prior=np.ones((4, 1)), start=start, **common).fit(x))
    weights = (4, 1) if kind in ("diag", "spherical") else (4,)
    assert model.beliefs_["mean_weight"].shape == weights
    for wrong, name in (
        ({"mean_prior": np.ones((3, 1))}, "mean_prior"),
        ({"mean_weight": np.ones(3)}, "mean_weight"),
        ({"start": {**start, "mean": np.ones((3, 1))}}, "'mean'"),
        ({"start": {**start, "mean_weight": np.ones(3)}}, "'mean_weight'"),
        ({"covariance_type": "incorrect"}, "covariance_type is 'incorrect'"),
    ):
        with pytest.raises(ValueError, match=name):
            BayesianHMM(4, **{**common, **wrong}).fit(x)


@pytest.mark.parametrize("kind", KINDS)
def test_priors_of_precisions_are_checked(kind: Any) -> None:
    x = four_peaks(4, 40)
    common: dict[str, Any] = {"covariance_type": kind, "tol": None, "max_iter": 10, "random_state": 0}
    priors = {"mean_prior": np.zeros((4, 1)), "mean_weight": 2.0, "dof_prior": 2.0, "scale_prior": 2.0}
    model = BayesianHMM(4, **priors, **common).fit(x)
    expect_rising(model)
    start = {**model.beliefs_, "dof": 0 * model.beliefs_["dof"] + 1.0, "scale": 0 * model.beliefs_["scale"] + 2.0}
    expect_rising(BayesianHMM(4, **priors, start=start, **common).fit(x))
    for wrong, name in (
        ({"dof_prior": np.ones(3)}, "dof_prior"),
        ({"scale_prior": np.full((3, 1, 1), 2.0)}, "scale_prior"),
        ({"start": {**start, "dof": np.ones(3)}}, "'dof'"),
        ({"start": {**start, "scale": np.full((3, 1, 1, 1), 2.0)}}, "'scale'"),
    ):
        with pytest.raises(ValueError, match=name):
            BayesianHMM(4, **{**common, **wrong}).fit(x)


def test_divergences_of_concentrations() -> None:
    kl = pytest.importorskip("hmmlearn._kl_divergence")
    first, second = torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), torch.tensor([4.0, 3.0, 2.0, 1.0]).double()
    for own, other in ((first, second), (second, first)):
        assert float(Dirichlet(own).divergence(Dirichlet(own))) == pytest.approx(0.0, abs=1e-12)
        found = float(Dirichlet(own).divergence(Dirichlet(other)))
        assert found > 0
        assert found == pytest.approx(kl.kl_dirichlet(own.numpy(), other.numpy()), rel=1e-12)


def test_divergences_of_means_and_precisions() -> None:
    """Of a mean given the precision: that of two normal distributions, on average; of precisions: gamma and Wishart."""
    kl = pytest.importorskip("hmmlearn._kl_divergence")

    def belief(mean: Any, weight: float, dof: float, scale: Any) -> NormalWishart:
        size = len(mean)
        return NormalWishart(
            torch.tensor(mean).double().reshape(1, 1, size), torch.full((1, 1), weight).double(),
            torch.full((1, 1), dof).double(), torch.tensor(scale).double().reshape(1, 1, size, size),
        )  # fmt: skip

    one = belief([0.0], 1.0, 5.0, [[2.0]])
    assert float(one.divergence(one)) == pytest.approx(0.0, abs=1e-12)
    moved = float(one.divergence(belief([1.0], 1.0, 5.0, [[2.0]])))
    # The expected precision is dof / scale; both means have its variance.
    assert moved == pytest.approx(kl.kl_normal_distribution(0, 2 / 5, 1, 2 / 5), rel=1e-12)
    for dof, scale in ((7.0, 2.0), (5.0, 3.0)):  # a Wishart of one feature is a gamma of dof / 2 and scale / 2
        found = float(one.divergence(belief([0.0], 1.0, dof, [[scale]])))
        assert found > 0
        assert found == pytest.approx(kl.kl_gamma_distribution(5 / 2, 2 / 2, dof / 2, scale / 2), rel=1e-12)
    scales = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.2], [-0.2, 3.0]])
    both = belief([0.0, 1.0], 2.0, 9.0, scales[0])
    found = float(both.divergence(belief([1.0, 0.0], 3.0, 4.0, scales[1])))
    spread = scales[0] / 9
    wanted = kl.kl_multivariate_normal_distribution([0.0, 1.0], spread / 2, [1.0, 0.0], spread / 3)
    wanted += kl.kl_wishart_distribution(9.0, scales[0], 4.0, scales[1])
    assert found == pytest.approx(float(wanted), rel=1e-10)
    assert float(belief([0.0], 1.0, 952.0, [[339.8]]).divergence(belief([0.0], 1.0, 1.0, [[0.001]]))) > 0
