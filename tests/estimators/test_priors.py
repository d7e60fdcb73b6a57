"""Priors and constraints: EM rises to the objective that is stated, gradients know it, and what is fixed stays."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DomainError
from rankfold.estimators import HMM, HSMM, check_parameters
from rankfold.params.observations import OBSERVATIONS
from rankfold.training.em import log_prior
from tests.estimators.observation_cases import CASES, heeded, measured, symbols

RNG = np.random.default_rng(0)
# Where single features are not missing.
INCOMPLETE = {name for name, kind in OBSERVATIONS.items() if kind.complete or kind.needs != "nothing"}
NO_FLOOR = {"beta", "gamma", "von_mises", "exponential", "half_normal", "zero_inflated_gamma", "product-positive"}
MOVES = RNG.dirichlet(np.ones(3), 3)


def random_settings(seed: int) -> tuple[Any, list[Any], dict[str, Any], dict[str, Any]]:
    """An estimator of random observations, priors and constraints, its data, and arguments of its fit."""
    rng = np.random.default_rng(seed)
    name = list(CASES)[int(rng.integers(len(CASES)))]
    observations, make, params = CASES[name]
    x = make(seed=seed)
    for i, one in enumerate(x):
        if one.ndim == 2 and observations not in INCOMPLETE and rng.random() < 0.5:
            x[i] = np.where(rng.random(one.shape) < 0.1, np.nan, one)
    chosen: dict[str, Any] = {**params, "observations": observations, "smoothing": float(rng.choice([0.0, 0.4]))}
    if name in NO_FLOOR:  # have no least variance: few frames of a state may come to have no maximum
        chosen["smoothing"] = 0.4
    if rng.random() < 0.5:
        chosen["transition_prior"] = rng.uniform(1.0, 3.0, (3, 3))
        chosen["initial_prior"] = 1.0 + rng.random()
        chosen["sticky"] = float(rng.choice([0.0, 2.0]))
    elif rng.random() < 0.5:
        chosen["rank"] = 2
    if rng.random() < 0.5:
        chosen |= heeded(observations, variance_prior=2.0, mean_weight=1.5)
    kind: Any = HMM
    if rng.random() < 0.4:
        kind = HSMM
        chosen |= {"max_duration": 6, "durations": str(rng.choice(["poisson", "negative_binomial", "categorical"]))}
        chosen |= {"self_transitions": bool(rng.random() < 0.5), "censored": True}
        if not chosen["self_transitions"]:
            chosen.pop("sticky", None)
    elif "rank" not in chosen and rng.random() < 0.3:
        chosen["forbidden"] = "left_to_right"
    weights = {"sample_weight": [1.0, 2.5, 0.5, 1.0]} if rng.random() < 0.3 else {}
    return kind(3, max_iter=5, tol=None, random_state=seed, **chosen), x, chosen, weights


@pytest.mark.filterwarnings("ignore:segments last at most")
@pytest.mark.parametrize("block", range(4))
def test_em_rises_in_random_configurations(block: int) -> None:
    rise_in_random_configurations(range(10 * block, 10 * block + 10))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:segments last at most")
def test_em_rises_in_five_hundred_configurations() -> None:
    rise_in_random_configurations(range(500))


def rise_in_random_configurations(seeds: Any) -> None:
    for seed in seeds:
        model, x, chosen, weights = random_settings(seed)
        history = np.array(model.fit(x, **weights).history_)
        assert np.isfinite(history).all(), (seed, chosen)
        assert (np.diff(history) >= -1e-9 * np.abs(history[1:])).all(), (seed, np.diff(history).min(), chosen)
        assert history[-1] > history[0], (seed, chosen)


def test_the_objective_is_the_one_that_is_stated() -> None:
    """history_ is the log-likelihood plus what docs/estimators.md says, computed from the tables."""
    x = measured()
    prior = RNG.uniform(1.0, 3.0, (3, 3))
    model = HMM(
        3, covariance_type="full", smoothing=0.2, transition_prior=prior, initial_prior=2.0, sticky=0.7,
        variance_prior=2.0, mean_prior=np.ones(3), mean_weight=1.5, max_iter=60, tol=1e-9, random_state=0,
    ).fit(x)  # fmt: skip
    assert model.converged_
    frames = np.concatenate(x)
    spread = np.diag(frames.var(0))
    stated = ((0.2 + prior - 1 + 0.7 * np.eye(3)) * np.log(model.transition_)).sum()
    stated += ((0.2 + 2.0 - 1) * np.log(model.initial_)).sum()
    for mean, covariance in zip(model.means_, model.covariances_, strict=True):
        inverse = np.linalg.inv(covariance)
        stated -= 2.0 / 2 * (np.linalg.slogdet(covariance)[1] + np.trace(inverse @ spread))
        stated -= 1.5 / 2 * (mean - 1) @ inverse @ (mean - 1)
    assert model.history_[-1] == pytest.approx(model.score(x) + stated, rel=1e-10)
    # No gradient is left at the maximum, of likelihood and prior together.
    total = log_prior(model.model_, model._prior)
    for i in range(len(x)):
        total = total + model.model_.log_likelihood(model.model_.batch([x[i]])).sum()
    grads = torch.autograd.grad(total, list(model.model_.parameters()))
    assert max(float(g.abs().max()) for g in grads) < 1e-2


@pytest.mark.parametrize(("observations", "sharing"), [("gaussian", 3), ("gaussian_mixture", 2)])
def test_a_shared_covariance_has_the_prior_of_all_that_share_it(observations: str, sharing: int) -> None:
    """One of all three states; in a mixture one of the two Gaussians of each state."""
    x = measured()
    model = HMM(
        3, observations=observations, covariance_type="tied", variance_prior=2.0, max_iter=200, tol=1e-9, random_state=0
    ).fit(x)
    spread = np.diag(np.concatenate(x).var(0))
    stated = 0.0
    for covariance in model.covariances_.reshape(-1, 3, 3):
        inverse = np.linalg.inv(covariance)
        stated -= sharing * 2.0 / 2 * (np.linalg.slogdet(covariance)[1] + np.trace(inverse @ spread))
    assert model.converged_
    assert model.history_[-1] == pytest.approx(model.score(x) + stated, rel=1e-10)


def test_a_prior_of_emission_counts_for_ones_and_for_symbols_of_columns() -> None:
    """A concentration of 1 + c adds c to each value, of zeros and ones and of symbols next to other columns."""
    x, labels = CASES["bernoulli"][1](), [np.zeros(len(a), int) for a in CASES["bernoulli"][1]()]
    for prior in (3.0, np.array([[3.0, 1.0, 2.0, 5.0]])):
        model = HMM(1, observations="bernoulli", emission_prior=prior, max_iter=2, tol=None, random_state=0)
        model.fit(x, labels=labels)
        added, frames = np.broadcast_to(prior, (1, 4)) - 1, np.concatenate(x)
        expected = (frames.sum(0) + added) / (len(frames) + 2 * added)
        np.testing.assert_allclose(model.emission_, expected, rtol=1e-12)
        stated = (added * (np.log(expected) + np.log(1 - expected))).sum()
        assert model.history_[-1] == pytest.approx(model.score(x) + stated, rel=1e-12)
    mixed = CASES["product"][1]()
    columns = ("gaussian", "gaussian", "poisson", "categorical")
    model = HMM(1, observations=columns, emission_prior=3.0, max_iter=1, tol=None, random_state=0).fit(mixed)
    counts = np.bincount(np.concatenate(mixed)[:, 3].astype(int), minlength=4) + 2
    np.testing.assert_allclose(model.emission_[0], counts / counts.sum(), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_steps_and_gradients_have_one_objective(name: str) -> None:
    """Where EM with priors ends, gradients of likelihood and priors vanish: of every observation, in all parameters."""
    observations, make, params = CASES[name]
    priors = {"smoothing": 0.4, "sticky": 1.0, **({"input_prior": 0.3} if name == "logistic" else {})}
    priors |= heeded(observations, variance_prior=2.0, mean_weight=1.5)
    settings: dict[str, Any] = {**params, **priors, "min_variance": 0.0}
    if "student_t" in name:  # degrees of freedom have no prior, and would take thousands of steps
        settings |= {"start": {"degrees": np.full((2, 3) if name == "student_t" else 2, 5.0)}, "fixed": ("degrees",)}
    x = make()
    model = HMM(2, observations=observations, max_iter=250, tol=1e-9, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "EM has not converged")
        model.fit(x)
    batches = [np.searchsorted(model.symbols_, one) for one in x] if name == "categorical" else x
    total = log_prior(model.model_, model._prior)
    for one in batches:
        total = total + model.model_.log_likelihood(model.model_.batch([torch.as_tensor(one)])).sum()
    assert float(total.detach()) == pytest.approx(model.history_[-1], rel=1e-6)
    parameters = [p for own, p in model.model_.named_parameters() if not own.endswith("log_dof")]
    grads = torch.autograd.grad(total, parameters, allow_unused=True)
    assert max(float(g.abs().max()) for g in grads if g is not None) < 1e-2


@pytest.mark.filterwarnings("ignore:too little data")
@pytest.mark.parametrize("name", CASES)
def test_priors_that_would_change_nothing_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All others change a step of EM; defaults are taken by every observation."""
    observations, make, params = CASES[name]
    x = make()

    def tables(**prior: Any) -> dict[str, Any]:
        model = HMM(2, observations=observations, max_iter=1, tol=None, random_state=0, **params, **prior)
        return model.fit(x).tables_

    plain = tables(mean_prior=None, mean_weight=0.0, variance_prior=0, emission_prior=None)
    given: dict[str, Any] = {"mean_weight": 5.0, "variance_prior": 5.0, "emission_prior": 3.0}
    taken = heeded(observations, **given)
    for prior, value in taken.items():
        found = tables(**{prior: value})
        assert any((found[table] != plain[table]).any() for table in plain), prior
    ignored = {prior: value for prior, value in given.items() if prior not in taken}
    for prior, value in (ignored | ({"mean_prior": 1.0} if "mean_weight" in ignored else {})).items():
        with pytest.raises(DomainError, match=rf"{prior} is .* no prior of that kind: .* have.\n  Leave {prior} out"):
            tables(**{prior: value})
    monkeypatch.setattr(check_parameters, "PRIORS", {})
    found = tables(**ignored)
    assert all((found[table] == plain[table]).all() for table in plain)


@pytest.mark.parametrize("algorithm", ["em", "sgd"])
def test_a_fixed_table_stays(algorithm: Any) -> None:
    x = measured()
    start = {"transition": MOVES, "means": np.concatenate(x)[[0, 20, 40]]}
    for fixed in (("transition",), ("mean",), ("transition", "mean", "initial")):
        given = {**start, "initial": np.full(3, 1 / 3)}
        model = HMM(3, start=given, fixed=fixed, max_iter=3, tol=None, random_state=0).fit(x, algorithm=algorithm)
        assert np.allclose(model.transition_, MOVES, rtol=1e-9) == ("transition" in fixed)
        assert np.allclose(model.means_, start["means"], rtol=1e-9) == ("mean" in fixed)
        assert np.allclose(model.initial_, 1 / 3, rtol=1e-9) == ("initial" in fixed)
        assert model.history_[-1] > model.history_[0]


@pytest.mark.parametrize("algorithm", ["em", "sgd"])
def test_tables_are_fixed_by_the_names_of_attributes(algorithm: Any) -> None:
    """As `from_tables` and `start` take them."""
    x = measured()
    means, covariances = np.concatenate(x)[[0, 20, 40]], np.stack([np.eye(3)] * 3)
    start = {"means": means, "covariances": covariances}
    model = HMM(3, covariance_type="full", start=start, fixed=("means", "covariances"), max_iter=3, random_state=0)
    model.set_params(tol=None).fit(x, algorithm=algorithm)
    np.testing.assert_allclose(model.means_, means, rtol=1e-9)
    np.testing.assert_allclose(model.covariances_, covariances, rtol=1e-9, atol=1e-12)
    assert model.history_[-1] > model.history_[0]


@pytest.mark.parametrize("fixed", ["loadings", "noises"])
def test_a_part_of_a_low_rank_covariance_is_fixed(fixed: str) -> None:
    """The other part is maximised around it: where EM ends, its gradient vanishes."""
    x = measured()
    low: dict[str, Any] = {"covariance_type": "low_rank", "min_variance": 0.0, "variance_prior": 2.0, "random_state": 0}
    known = HMM(2, max_iter=3, tol=None, **low).fit(x)
    start = {"loadings": 0.7 * known.loadings_, "noises": 1.3 * known.noises_}
    model = HMM(2, start=start, fixed=(fixed,), max_iter=2000, tol=1e-9, **low).fit(x)
    np.testing.assert_allclose(getattr(model, f"{fixed}_"), start[fixed], rtol=1e-9)
    assert (np.diff(model.history_) >= -1e-9 * np.abs(model.history_[1:])).all()
    total = log_prior(model.model_, model._prior)
    for one in x:
        total = total + model.model_.log_likelihood(model.model_.batch([one])).sum()
    free: Any = model.model_.observation.log_diagonal if fixed == "loadings" else model.model_.observation.loading
    (gradient,) = torch.autograd.grad(total, [free])
    assert float(gradient.abs().max()) < 1e-2


@pytest.mark.parametrize("algorithm", ["em", "sgd"])
def test_fixed_entries_stay(algorithm: Any) -> None:
    """The others share what is left, in proportion to their counts: the maximum, and no step loses."""
    x = measured()
    entries = np.array([[True, False, False], [False, False, True], [False, False, False]])
    model = HMM(3, start={"transition": MOVES}, fixed={"transition": entries}, max_iter=4, tol=None, random_state=0)
    model.fit(x, algorithm=algorithm)
    np.testing.assert_allclose(model.transition_[entries], MOVES[entries], rtol=1e-9)
    np.testing.assert_allclose(model.transition_.sum(1), 1.0)
    assert not np.allclose(model.transition_[~entries], MOVES[~entries], rtol=1e-3)
    if algorithm == "em":
        assert (np.diff(model.history_) > 0).all()


def test_graphs() -> None:
    x = measured()
    ahead = HMM(3, forbidden="left_to_right", max_iter=3, random_state=0).fit(x).transition_
    np.testing.assert_array_equal(ahead == 0, np.tril(np.ones((3, 3), bool), -1))
    line = HMM(4, forbidden="linear", max_iter=3, random_state=0).fit(x).transition_
    assert line[0, 2] == line[0, 3] == line[1, 0] == 0 < line[0, 1]
    band = HMM(4, forbidden="band:1", max_iter=3, random_state=0).fit(x).transition_
    np.testing.assert_array_equal(band == 0, np.abs(np.subtract.outer(range(4), range(4))) > 1)
    for wrong in ("band", "band:-1", "band:x"):
        with pytest.raises(DomainError, match="band:2"):
            HMM(4, forbidden=wrong).fit(x)


def test_sgd_honours_the_priors_of_em() -> None:
    """A strong prior takes both to the same place."""
    x = symbols()
    prior = 1 + 1e4 * RNG.dirichlet(np.ones(4), 3)
    moves = 1 + 1e4 * MOVES
    settings: dict[str, Any] = {"observations": "categorical", "emission_prior": prior, "transition_prior": moves}
    start = {"probability": (prior - 1) / (prior - 1).sum(1, keepdims=True), "transition": MOVES}
    for algorithm in ("em", "sgd"):
        model = HMM(3, max_iter=5, learning_rate=1e-3, start=start, random_state=0, **settings)
        model.fit(x, algorithm=algorithm)
        np.testing.assert_allclose(model.emission_, (prior - 1) / (prior - 1).sum(1, keepdims=True), atol=0.02)
        np.testing.assert_allclose(model.transition_, MOVES, atol=0.02)


def test_weights_of_sequences() -> None:
    """A weight of 2 is a sequence twice; 0 leaves it out."""
    x = measured()
    start = {"means": np.concatenate(x)[[0, 20, 40]], "variances": np.ones((3, 3)), "transition": MOVES}
    settings: dict[str, Any] = {"start": {**start, "initial": np.full(3, 1 / 3)}, "max_iter": 4, "tol": None}
    weighted = HMM(3, min_variance=0.0, **settings).fit(x, sample_weight=[2.0, 1.0, 0.0, 1.0])
    written = HMM(3, min_variance=0.0, **settings).fit([x[0], x[0], x[1], x[3]])
    np.testing.assert_allclose(weighted.history_, written.history_, rtol=1e-12)
    np.testing.assert_allclose(weighted.means_, written.means_, rtol=1e-9)
    together = HMM(3, min_variance=0.0, **settings)
    lengths = [len(one) for one in x]
    together.fit(np.concatenate(x), lengths=lengths, sample_weight=np.repeat([2.0, 1.0, 0.0, 1.0], lengths))
    np.testing.assert_allclose(together.history_, written.history_, rtol=1e-12)


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (HMM(3, fixed=("transition",)), {}, "'transition' is fixed, but not given"),
    (HMM(3, fixed="transition"), {}, r"a tuple of names was expected"),
    (HMM(3, fixed=("middle",)), {}, "fixed has 'middle', but a model of this kind has"),
    (HMM(3, fixed={"mean": np.ones((3, 3), bool)}), {}, "only those of 'transition'"),
    (HMM(3, fixed={"transition": np.ones((2, 2), bool)}), {}, r"fixed\['transition'\] has shape \(2, 2\)"),
    (
        HMM(3, fixed={"transition": np.eye(3, k=-1) > 0}, forbidden="left_to_right", start={"transition": MOVES}),
        {},
        "transition 1 to 0 is fixed at .*, but forbidden",
    ),
    (
        HMM(3, covariance_type="full", min_variance=0.1, start={"covariances": [1e-3 * np.eye(3)] * 3}),
        {},
        r"matrix . of start\['covariances'\] is below the lower bound",
    ),
    (HMM(3, transition_prior=0.5), {}, "at least 1 here"),
    (HMM(3, transition_prior=np.ones((2, 3))), {}, "transition_prior has shape"),
    (HMM(3, sticky=-1.0), {}, "sticky is -1.0"),
    (HMM(3, sticky=1.0, rank=2), {}, "a low-rank matrix has no entries of its own"),
    (HMM(3, mean_prior=np.zeros(2)), {}, r"mean_prior has shape \(2,\)"),
    (HSMM(3, max_duration=4, sticky=1.0), {}, "sticky is 1, but self_transitions is False"),
    (HMM(3, forbidden="circle"), {}, "forbidden is 'circle'"),
    (HMM(3), {"sample_weight": [1.0]}, "one number for each of 4 sequences"),
    (HMM(3), {"sample_weight": [1.0, -1.0, 0.0, 1.0]}, "below 0"),
]


@pytest.mark.parametrize(("model", "settings", "says"), REFUSED, ids=[case[2][:30] for case in REFUSED])
def test_refused(model: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        model.fit(measured(), **settings)
