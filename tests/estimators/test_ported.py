"""The questions that the tests of hmmlearn 0.3.3 ask, written anew for our estimators.

`ported.toml` says which test of ours asks what each of theirs asks, and why the others cannot be asked; a test compares
it with the tests in hmmlearn's wheel. Those of its variational models are in `test_ported_bayesian`.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, select

KINDS = ("spherical", "diag", "tied", "full")
HERE = Path(__file__).parent


def theirs(path: Path) -> set[str]:
    """The names of the tests of a file, with their classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {
            owner + one.name for one in inside if isinstance(one, ast.FunctionDef) and one.name.startswith("test")
        }
    return found


def test_every_test_of_theirs_has_an_answer() -> None:
    folder = Path(pytest.importorskip("hmmlearn").__file__).parent / "tests"
    table = tomllib.loads((HERE / "ported.toml").read_text())
    missing, gallery = table.pop("not_here"), table.pop("gallery")
    known = {f"{module}.{name}" for module, answers in table.items() for name in answers} | set(missing)
    asked = {f"{path.stem}.{name}" for path in folder.glob("test_*.py") for name in theirs(path)}
    assert known == asked
    for answer in (*gallery.values(), *(one for answers in table.values() for one in answers.values())):
        file, _, name = answer.rpartition(".")
        assert name in theirs(HERE / f"{file or 'test_ported'}.py"), answer
    assert len(missing) <= 0.05 * len(asked)
    assert not set(missing) & {f"{module}.{name}" for module, answers in table.items() for name in answers}


STARTS, MOVES = np.array([0.6, 0.3, 0.1]), np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.3, 0.3, 0.4]])
CENTRES = np.array([[-10.0, 0.0, 4.0], [0.0, 10.0, -6.0], [9.0, -8.0, 0.0]])


def spreads(kind: str, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if kind in ("spherical", "diag"):
        return rng.uniform(0.5, 1.5, 3 if kind == "spherical" else (3, 3))
    roots = np.eye(3) + 0.3 * rng.standard_normal((3, 3, 3))
    matrices = roots @ roots.transpose(0, 2, 1)
    return matrices[0] if kind == "tied" else matrices


def gaussian(kind: str, **settings: Any) -> HMM:
    given: dict[str, Any] = {"covariance_type": kind, "covariances": spreads(kind), **settings}
    return HMM.from_tables(initial=STARTS, transition=MOVES, means=CENTRES, **given)


@pytest.mark.parametrize("observations", ["gaussian", "gaussian_mixture"])
def test_bad_covariance_type(observations: str) -> None:
    with pytest.raises(ValueError, match="covariance_type is 'badcovariance_type'"):
        HMM(3, observations=observations, covariance_type="badcovariance_type").fit(np.eye(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_states_are_found(kind: str) -> None:
    states = np.repeat(np.arange(3), 5)
    x = CENTRES[states] + 0.3 * np.random.default_rng(0).standard_normal((15, 3))
    model = gaussian(kind)
    posterior = model.predict_proba(x)
    assert posterior.shape == (15, 3)
    np.testing.assert_allclose(posterior.sum(1), 1.0)
    np.testing.assert_array_equal(model.decode(x)[1], states)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_samples(kind: str) -> None:
    x, states = gaussian(kind).sample(1000, random_state=0)
    assert x.shape == (1000, 3)
    for z in range(3):
        np.testing.assert_allclose(x[states == z].mean(0), CENTRES[z], atol=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_fits_rise(kind: Any) -> None:
    x, _ = gaussian(kind).sample(40, n_sequences=5, random_state=1)
    model = HMM(3, covariance_type=kind, max_iter=5, tol=None, random_state=0).fit(x)
    assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
    assert model.score(x) >= model.history_[0]


def test_criteria() -> None:
    """AIC and BIC are finite for every number of states, of each kind; their smallest is selected."""
    rng = np.random.default_rng(0)
    counts = [rng.poisson(np.array([[2.0], [20.0]])[np.repeat([0, 1, 0], 15)]).astype(float) for _ in range(3)]
    x, _ = gaussian("diag").sample(40, n_sequences=3, random_state=1)
    for made, data in (
        (HMM(max_iter=10, random_state=0), x),
        (HMM(observations="gaussian_mixture", max_iter=10, random_state=0, min_variance=0.05), x),
        (HMM(observations="poisson", max_iter=10, random_state=0), counts),
    ):
        found = select(made, data, {"n_states": [1, 2, 3]}, n_init=1)
        assert np.isfinite([[one.aic, one.bic] for one in found.candidates]).all()
        assert found.best_index == np.argmin([one.bic for one in found.candidates])


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_different_lengths(kind: Any) -> None:
    """Among them one of a single frame."""
    rng, lengths = np.random.default_rng(0), [3, 4, 5, 1, 10]
    x = rng.standard_normal((sum(lengths), 3))
    model = HMM(3, covariance_type=kind, max_iter=3, tol=None, min_variance=0.1, random_state=0).fit(x, lengths)
    assert model.predict(x, lengths).shape == (sum(lengths),)
    assert np.isfinite(model.score(x, lengths))


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_priors_lead_back(kind: Any) -> None:
    """With the truth as prior of starts, transitions and means a fit comes back to it."""
    x, _ = gaussian(kind).sample(100, n_sequences=6, random_state=3)
    model = HMM(
        3, covariance_type=kind, initial_prior=10 * STARTS + 2, transition_prior=10 * MOVES + 2,
        mean_prior=CENTRES.mean(0), mean_weight=0.5, variance_prior=1.0, start={"means": CENTRES + 1},
        max_iter=30, random_state=0,
    ).fit(x)  # fmt: skip
    assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
    np.testing.assert_allclose(model.means_, CENTRES, atol=0.35)
    np.testing.assert_allclose(model.transition_, MOVES, atol=0.12)


def test_spherical_tables_are_sampled() -> None:
    model = HMM(2, covariance_type="spherical")
    model.initial_, model.transition_ = [0.6, 0.4], [[0.4, 0.6], [0.9, 0.1]]
    model.means_, model.covariances_ = [[3.0], [5.0]], [4.0, 3.0]
    x, _ = model.sample(200, random_state=0)
    assert x.shape == (200, 1)


def test_only_starts_and_transitions_are_fitted() -> None:
    x, _ = gaussian("spherical").sample(50, n_sequences=4, random_state=0)
    model = gaussian("spherical", fixed=("mean", "variance"), max_iter=5, tol=None)
    before = model.tables_
    model.fit(x)
    np.testing.assert_allclose(model.means_, before["mean"])
    np.testing.assert_allclose(model.covariances_, before["variance"])
    assert not np.allclose(model.transition_, before["transition"])
    assert model.history_[-1] > model.history_[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_outlier_does_not_underflow(dtype: Any) -> None:
    """One frame 10,000 deviations away: hmmlearn's scaled implementation gives up here."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 1)) + np.repeat([0.0, 5.0, 0.0, 5.0], 100)[:, None]
    x[40] = 10000.0
    model = HMM.from_tables(
        initial=[0.0, 1.0], transition=[[0.4, 0.6], [0.6, 0.4]], means=[[0.0], [5.0]], covariances=[[1.0], [1.0]],
        dtype=dtype, min_variance=0.0,
    )  # fmt: skip
    assert np.isfinite(model.score(x))
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1.0, rtol=1e-5)
    model.fit(x)
    assert np.isfinite(model.history_).all()


def test_a_feature_that_never_changes_is_refused_by_name() -> None:
    """Theirs gives it a variance by its prior; a density that has none is no answer."""
    x = np.random.default_rng(0).standard_normal((9, 3))
    x[:, 1] = 715.0
    for observations in ("gaussian", "gaussian_mixture"):
        with pytest.raises(ValueError, match="feature 1"):
            HMM(3, observations=observations, random_state=0).fit(x)


def test_tables_set_before_a_fit_are_its_start() -> None:
    """By `from_tables` or `start`; of tables set as attributes a fit says that it makes a start of its own."""
    x, _ = gaussian("diag").sample(40, random_state=0)
    model = gaussian("diag", max_iter=2, tol=None)
    before = model.score(x)
    assert model.fit(x).history_[0] == pytest.approx(before, rel=1e-12)
    model = HMM(3, max_iter=2, tol=None, random_state=0)
    model.initial_ = STARTS
    with pytest.warns(
        UserWarning, match=r"initial_ set before this fit will be overwritten(.|\n)*start={'initial': ...}"
    ):
        model.fit(x)
    model.means_ = CENTRES
    with pytest.warns(UserWarning, match="means_ set before this fit"):
        model.fit(x)
    model.fit(x)  # once


def test_tables_of_labels_are_shares() -> None:
    """Where all states are known, tables are counts that add up to 1 along their last axis; zeros stay zeros."""
    rng = np.random.default_rng(0)
    states, symbols = rng.integers(0, 3, 128), rng.integers(0, 4, 128)
    states[np.flatnonzero(states[:-1] == 2) + 1] = 0  # nothing but 0 follows 2
    symbols[states == 1] = rng.integers(0, 2, (states == 1).sum())
    model = HMM(3, observations="categorical", max_iter=1, tol=None, random_state=0)
    model.fit([symbols], labels=[states])
    moves = np.array([[np.sum((states[:-1] == a) & (states[1:] == b)) for b in range(3)] for a in range(3)])
    said = np.array([np.bincount(symbols[states == z], minlength=4) for z in range(3)])
    assert (moves == 0).any()
    assert (said == 0).any()
    np.testing.assert_allclose(model.transition_, moves / moves.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(model.emission_, said / said.sum(1, keepdims=True), rtol=1e-12)
    assert (model.transition_[moves == 0] == 0).all()
    assert (model.emission_[said == 0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_covariance_type_is_a_full_one(kind: str) -> None:
    """Written out as matrices it says the same."""
    own = np.asarray(spreads(kind))
    written = {
        "spherical": lambda: own[:, None, None] * np.eye(3),
        "diag": lambda: own[:, None] * np.eye(3),
        "tied": lambda: np.stack([own] * 3),
        "full": lambda: own,
    }[kind]()
    x, _ = gaussian(kind).sample(30, random_state=0)
    assert gaussian(kind).score(x) == pytest.approx(gaussian("full", covariances=written).score(x), rel=1e-12)


def test_covariances_can_be_set() -> None:
    model = HMM(1, max_iter=2, random_state=0).fit(np.random.default_rng(0).standard_normal((50, 5)))
    model.covariances_ = np.full((1, 5), 2.0)
    assert model.covariances_.tolist() == [[2.0] * 5]


def test_left_to_right_stays() -> None:
    """Zeros of a table stay zero, and so do those of forbidden transitions."""
    rng, lengths = np.random.default_rng(0), [10, 8, 1]
    x = rng.random((sum(lengths), 3))
    moves = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    start = {"initial": [1.0, 0.0, 0.0], "transition": moves}
    for settings in ({}, {"forbidden": "linear"}):
        model = HMM(3, start=start, max_iter=5, min_variance=0.1, random_state=0, **settings).fit(x, lengths)  # type: ignore[arg-type]
        assert model.initial_.tolist()[1:] == [0.0, 0.0]
        assert (model.transition_[moves == 0] == 0).all()
        np.testing.assert_allclose(model.predict_proba(x, lengths).sum(1), 1.0)
        assert np.isfinite(model.decode(x, lengths)[0])


def mixture(kind: str, far: float = 1.0, **settings: Any) -> HMM:
    """Two Gaussians for each state, two deviations apart."""
    means = far * np.stack([CENTRES, CENTRES + 2.0], 1)
    own = spreads(kind)
    covariances = np.broadcast_to(own, (3, 3, 3)) if kind == "tied" else np.stack([own, own], 1)
    return HMM.from_tables(
        initial=STARTS, transition=MOVES, observations="gaussian_mixture", weights=[[0.4, 0.6]] * 3, means=means,
        covariances=covariances, covariance_type=kind, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_mixture_states_are_found(kind: str) -> None:
    model = mixture(kind)
    x, states = model.sample(60, random_state=0)
    posterior = model.predict_proba(x)
    np.testing.assert_allclose(posterior.sum(1), 1.0)
    assert (model.decode(x)[1] == states).mean() > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_mixture_samples(kind: str) -> None:
    x, states = mixture(kind).sample(1000, random_state=0)
    for z in range(3):
        np.testing.assert_allclose(x[states == z].mean(0), CENTRES[z] + 1.2, atol=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_mixture_fits_rise(kind: Any) -> None:
    x = mixture(kind).sample(40, n_sequences=3, random_state=1)[0]
    x[1] = x[1][:7]
    model = HMM(3, observations="gaussian_mixture", covariance_type=kind, max_iter=5, tol=None, random_state=0).fit(x)
    assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
    np.testing.assert_allclose(model.weights_.sum(1), 1.0)


def test_mixtures_far_apart() -> None:
    x, _ = mixture("full", far=1000.0).sample(200, random_state=0)
    model = HMM(3, observations="gaussian_mixture", covariance_type="full", max_iter=3, tol=None, random_state=0).fit(x)
    assert np.isfinite(model.history_).all()
    assert np.isfinite(model.means_).all()


def test_more_components_than_frames() -> None:
    """Two groups, the second with fewer frames than components: means stay among the frames."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0, 1, (100, 2)), rng.uniform(5, 6, (5, 2))])
    model = HMM(2, observations="gaussian_mixture", n_mix=10, max_iter=5, tol=None, min_variance=0.01, random_state=0)
    model.fit(x)
    used = model.weights_ > 1e-6
    assert (model.means_[used] > -0.5).all()
    assert (model.means_[used] < 6.5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_in_chunks(kind: Any) -> None:
    """One long sequence, or the same cut in five: nearly the same tables."""
    x, _ = mixture(kind).sample(250, random_state=0)
    start = {"initial": [1 / 3] * 3, "means": np.stack([CENTRES, CENTRES + 2.0], 1)}
    whole, cut = (
        HMM(3, observations="gaussian_mixture", covariance_type=kind, max_iter=6, tol=None, start=start, random_state=1)
        for _ in range(2)
    )
    whole.fit(x)
    cut.fit(x, [50] * 5)
    np.testing.assert_allclose(whole.means_, cut.means_, atol=0.05)
    np.testing.assert_allclose(whole.covariances_, cut.covariances_, atol=0.1)
    np.testing.assert_allclose(whole.weights_, cut.weights_, atol=0.02)


def test_the_order_of_sequences_does_not_matter() -> None:
    x = mixture("diag").sample(30, n_sequences=3, random_state=2)[0]
    model = mixture("diag", max_iter=4, tol=None, min_variance=0.0)
    fits = [model.fit([x[i] for i in order]).history_ for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0])]
    np.testing.assert_allclose(fits[1], fits[0], rtol=1e-10)
    np.testing.assert_allclose(fits[2], fits[0], rtol=1e-10)


def test_poisson() -> None:
    rates = np.array([[3.1, 1.4, 4.5], [1.6, 5.3, 0.1]])
    model = HMM.from_tables(
        initial=[0.6, 0.4], transition=[[0.7, 0.3], [0.4, 0.6]], observations="poisson", rates=rates
    )
    x, _ = model.sample(60, n_sequences=5, random_state=0)
    np.testing.assert_allclose(model.predict_proba(x[0]).sum(1), 1.0)
    assert (np.concatenate(x) == np.floor(np.concatenate(x))).all()
    for fixed in ((), ("initial", "transition")):
        start = {"rates": rates + 1, "transition": [[0.5, 0.5], [0.5, 0.5]], "initial": [0.5, 0.5]}
        fitted = HMM(2, observations="poisson", start=start, fixed=fixed, max_iter=30, random_state=0).fit(x)
        assert (np.diff(fitted.history_) >= -1e-9 * abs(fitted.history_[-1])).all()
        np.testing.assert_allclose(fitted.rates_, rates, atol=0.6)
    fresh = HMM(2, observations="poisson", max_iter=5, tol=None, random_state=0).fit(x)
    assert fresh.history_[-1] > fresh.history_[0]


EMISSION = np.array([[0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])


def test_multinomial() -> None:
    rng = np.random.default_rng(0)
    states = np.repeat([0, 1, 0, 1], 15)
    x = [np.stack([rng.multinomial(5, EMISSION[z]) for z in states]) for _ in range(3)]
    settings: dict[str, Any] = {"initial": [0.6, 0.4], "transition": [[0.8, 0.2], [0.2, 0.8]]}
    model = HMM.from_tables(**settings, observations="multinomial", emission=EMISSION)
    np.testing.assert_allclose(model.predict_proba(x[0]).sum(1), 1.0)
    drawn, _ = model.sample(100, random_state=0)
    assert (drawn.sum(1) == 1).all()
    drawn, hidden = model.sample(400, n_trials=5, random_state=0)
    assert (drawn.sum(1) == 5).all()
    assert len(np.unique(drawn)) == 6
    for z in range(2):
        np.testing.assert_allclose(drawn[hidden == z].mean(0) / 5, EMISSION[z], atol=0.05)
    with pytest.raises(ValueError, match="n_trials is 0"):
        model.sample(10, n_trials=0)
    for fixed in ((), ("initial", "transition")):
        model.set_params(fixed=fixed, max_iter=10, tol=None).fit(x)
        assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
        np.testing.assert_allclose(model.emission_, EMISSION, atol=0.1)
    fresh = HMM(2, observations="multinomial", max_iter=5, tol=None, random_state=0).fit(x)
    assert fresh.history_[-1] > fresh.history_[0]


@pytest.mark.parametrize(
    ("x", "says"),
    [([[0, 2.5, 2.5, 0]], "whole numbers"), ([[0, -2, 1, 6]], "whole numbers"), ([0, 1], "Reshape your data")],
)
def test_counts_are_checked(x: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HMM(2, observations="multinomial").fit(np.array(x))


WEATHER: dict[str, Any] = {"initial": [0.6, 0.4], "transition": [[0.7, 0.3], [0.4, 0.6]]}
DOES = [[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]]  # walk, shop, clean; rainy, sunny


def test_weather() -> None:
    """The example of the encyclopedia: walk, shop, clean. Words, numbers, and counts of one trial say the same."""
    words = HMM.from_tables(**WEATHER, observations="categorical", emission=DOES, symbols=["walk", "shop", "clean"])
    numbers = HMM.from_tables(**WEATHER, observations="categorical", emission=DOES)
    trials = HMM.from_tables(**WEATHER, observations="multinomial", emission=DOES)
    expected = [[0.23170303, 0.76829697], [0.62406281, 0.37593719], [0.86397706, 0.13602294]]
    for model, x in ((words, [["walk", "shop", "clean"]]), (numbers, [[0, 1, 2]]), (trials, [np.eye(3)])):
        log_prob, (path,) = model.decode(x)
        assert np.exp(log_prob) == pytest.approx(0.01344)
        assert path.tolist() == [1, 0, 0]
        assert model.decode(x, method="posterior")[1][0].tolist() == [1, 0, 0]
        assert model.predict(x)[0].tolist() == [1, 0, 0]
        np.testing.assert_allclose(model.predict_proba(x)[0], expected, atol=1e-6)  # as many digits as they give


def test_symbols() -> None:
    model = HMM.from_tables(**WEATHER, observations="categorical", emission=EMISSION)
    x, _ = model.sample(200, n_sequences=5, random_state=0)
    assert np.array_equal(np.unique(np.concatenate(x)), np.arange(3))
    np.testing.assert_allclose(model.predict_proba(x)[0].sum(1), 1.0)
    wide = HMM(2, observations="categorical", n_symbols=5, smoothing=0.1, max_iter=2, random_state=0).fit(x)
    assert wide.emission_.shape == (2, 5)
    for fixed in ((), ("initial", "transition")):
        model.set_params(fixed=fixed, max_iter=10, tol=None).fit(x)
        assert (np.diff(model.history_) >= -1e-9 * abs(model.history_[-1])).all()
        np.testing.assert_allclose(model.emission_, EMISSION, atol=0.15)
    fresh = HMM(2, observations="categorical", max_iter=5, tol=None, random_state=0).fit(x)
    assert fresh.history_[-1] > fresh.history_[0]


@pytest.mark.parametrize(
    ("x", "says"),
    [([[0, 2.5]], "whole numbers"), ([[0, -2]], "whole numbers from 0"), ([[0, 0, 3]], "none of the 2 known ones")],
)
def test_symbols_are_checked(x: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HMM(2, observations="categorical", n_symbols=2).fit(x)


def test_another_fit_forgets_the_first() -> None:
    x, _ = gaussian("diag").sample(40, random_state=0)
    model = HMM(2, max_iter=3, tol=None, random_state=0).fit(x)
    first = model.history_
    assert model.fit(x).history_ == first
    assert model.n_iter_ == 3


def test_umbrella() -> None:
    """Five days with and without umbrella: likelihood, filtered states, posteriors and best path as published."""
    model = HMM.from_tables(
        initial=[0.5, 0.5], transition=[[0.7, 0.3], [0.3, 0.7]], observations="categorical",
        emission=[[0.9, 0.1], [0.2, 0.8]],
    )  # fmt: skip
    x = [[0, 0, 1, 0, 0]]
    assert model.score(x) == pytest.approx(-3.3725, abs=1e-4)
    assert model.score_samples(x)[0] == pytest.approx(-3.3725, abs=1e-4)
    forward = np.array([[0.45, 0.1], [0.3105, 0.041], [0.023, 0.0975], [0.0408, 0.0150], [0.0298, 0.0046]])
    np.testing.assert_allclose(model.filter(x)[0], forward / forward.sum(1, keepdims=True), atol=2e-3)
    posterior = [[0.8673, 0.1327], [0.8204, 0.1796], [0.3075, 0.6925], [0.8204, 0.1796], [0.8673, 0.1327]]
    np.testing.assert_allclose(model.predict_proba(x)[0], posterior, atol=1e-4)
    log_prob, (path,) = model.decode(x)
    assert log_prob == pytest.approx(-4.4590, abs=1e-4)
    assert path.tolist() == [0, 0, 1, 0, 0]


def test_samples_go_on_from_a_state() -> None:
    """A sample from the last state of another: its row of the transition is the start."""
    model = gaussian("diag")
    _, states = model.sample(10, random_state=0)
    model.initial_ = model.transition_[states[-1]]
    drawn = [model.sample(1, random_state=seed)[1][0] for seed in range(100)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 100, MOVES[states[-1]], atol=0.15)


def test_uniform_transitions_are_a_mixture() -> None:
    rng = np.random.default_rng(0)
    means, x = rng.standard_normal((8, 2)), rng.standard_normal((10, 2))
    model = HMM.from_tables(
        initial=np.full(8, 1 / 8), transition=np.full((8, 8), 1 / 8), means=means, covariances=np.ones((8, 2))
    )
    density = np.exp(-((x[:, None] - means) ** 2).sum(2) / 2)
    np.testing.assert_allclose(model.predict_proba(x), density / density.sum(1, keepdims=True), rtol=1e-9)
    np.testing.assert_array_equal(model.decode(x)[1], density.argmax(1))


@pytest.mark.parametrize(
    "tables",
    [
        {"initial": 2 * STARTS},
        {"initial": []},
        {"initial": np.zeros((2, 2))},
        {"transition": 2 * MOVES},
        {"transition": []},
        {"transition": np.zeros((1, 3))},
        {"observations": "poisson", "rates": []},
        {"observations": "poisson", "rates": np.zeros((2, 2, 3))},
        {"observations": "categorical", "emission": []},
        {"observations": "categorical", "emission": np.zeros((3, 4))},
        {"observations": "multinomial", "emission": np.zeros((1, 4))},
    ],
    ids=str,
)
def test_tables_are_checked(tables: dict[str, Any]) -> None:
    given: dict[str, Any] = {"initial": STARTS, "transition": MOVES, **tables}
    if "observations" not in tables:
        given |= {"means": CENTRES, "covariances": np.ones((3, 3))}
    with pytest.raises(ValueError, match=r"shape|distribution|at least 1|given|states"):
        HMM.from_tables(**given)
