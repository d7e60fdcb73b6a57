"""Beliefs about HMMs: the lower bound against hmmlearn's and the exact evidence, Gibbs sampling against enumeration."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DomainError, ShapeError, UnsupportedError
from rankfold.estimators import BayesianHMM
from rankfold.training.conjugate import Dirichlet, NormalWishart
from tests.estimators.cases import walks

SYMBOLS = [np.array([0, 1, 1, 0]), np.array([1, 1, 0])]


def log_dirichlet_multinomial(counts: Any, prior: float) -> float:
    """log of the integral of prod p^counts over p ~ Dirichlet(prior, ..., prior)."""
    k, n = len(counts), sum(counts)
    found = math.lgamma(k * prior) - math.lgamma(k * prior + n)
    return found + sum(math.lgamma(prior + c) - math.lgamma(prior) for c in counts)


def path_weights(prior: float, num_states: int = 2, num_symbols: int = 2) -> dict[Any, float]:
    """The log-weight of all paths of all sequences together, every table integrated out."""
    found = {}
    for paths in itertools.product(*(itertools.product(range(num_states), repeat=len(x)) for x in SYMBOLS)):
        first, pairs, said = Counter(), Counter(), Counter()  # type: ignore[var-annotated]
        for path, x in zip(paths, SYMBOLS, strict=True):
            first[path[0]] += 1
            pairs.update(itertools.pairwise(path))
            said.update(zip(path, x.tolist(), strict=True))
        total = log_dirichlet_multinomial([first[z] for z in range(num_states)], prior)
        for z in range(num_states):
            total += log_dirichlet_multinomial([pairs[z, y] for y in range(num_states)], prior)
            total += log_dirichlet_multinomial([said[z, v] for v in range(num_symbols)], prior)
        found[paths] = total
    return found


def log_sum(values: Any) -> float:
    top = max(values)
    return float(top + math.log(sum(math.exp(x - top) for x in values)))


def test_the_bound_is_below_the_evidence_and_not_far() -> None:
    model = BayesianHMM(2, observations="categorical", emission_prior=1.5, initial_prior=1.5, transition_prior=1.5)
    model.set_params(random_state=0, max_iter=500).fit(SYMBOLS)
    evidence = log_sum(path_weights(1.5).values())
    assert evidence - 1.5 < model.history_[-1] < evidence
    assert model.converged_


def test_gibbs_sampling_visits_paths_as_often_as_they_are_probable() -> None:
    """Given the data alone, all tables integrated out: by enumeration. Names of states mean nothing, so both count."""
    model = BayesianHMM(2, observations="categorical", n_draws=800, burn_in=50, random_state=1)
    model.fit(SYMBOLS, algorithm="gibbs")
    weights = path_weights(1.0)
    total = log_sum(weights.values())

    def nameless(paths: Any) -> Any:
        return tuple(tuple(int(z != paths[0][0]) for z in path) for path in paths)

    exact: Counter[Any] = Counter()
    for paths, weight in weights.items():
        exact[nameless(paths)] += math.exp(weight - total)  # type: ignore[assignment]
    seen = Counter(nameless([tuple(own[s]) for own in model.paths_]) for s in range(800))
    assert set(seen) <= set(exact)
    for paths, share in exact.items():
        # Successive draws depend on each other: about a third of them count, by the autocorrelation of the counts.
        assert abs(seen[paths] / 800 - share) < 5 * math.sqrt(share * (1 - share) / (800 / 3)) + 1e-9
    assert len(model.history_) == 850
    assert model.draws_["emission"].shape == (800, 2, 2)
    np.testing.assert_allclose(model.draws_["transition"].sum(-1), 1.0)


def test_beliefs_given_all_states_are_conjugate_and_so_are_draws() -> None:
    """Means and covariances by the textbook; draws have the mean of a Dirichlet, a t and an inverse Wishart."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 2)) @ np.array([[1.0, 0.5], [0.0, 1.0]]) + 3.0, rng.integers(0, 2, 40)
    model = BayesianHMM(2, dof_prior=5.0, scale_prior=2.0, mean_prior=0.5, tol=None, max_iter=2, random_state=0)
    found = model.fit(x, labels=y).beliefs_
    pairs = np.array([[np.sum((y[:-1] == a) & (y[1:] == b)) for b in range(2)] for a in range(2)]) + 1.0
    np.testing.assert_allclose(found["transition"], pairs, rtol=1e-10)
    belief = NormalWishart(
        *(torch.from_numpy(found[name]).unsqueeze(1) for name in ("mean", "mean_weight", "dof", "scale"))
    )
    draws = [belief.draw(rng) for _ in range(2000)]
    for z in range(2):
        own, n = x[y == z], int((y == z).sum())
        mean = (own.sum(0) + 0.5) / (n + 1)
        scale = 2.0 * np.eye(2) + own.T @ own + np.outer([0.5] * 2, [0.5] * 2) - (n + 1) * np.outer(mean, mean)
        np.testing.assert_allclose(found["mean"][z], mean, rtol=1e-10)
        np.testing.assert_allclose(found["scale"][z], scale, rtol=1e-10)
        assert found["dof"][z] == 5 + n
        # Five deviations of a mean of 2000 draws.
        np.testing.assert_allclose(np.mean([m[z, 0].numpy() for m, _ in draws], 0), mean, atol=0.03)
        np.testing.assert_allclose(np.mean([c[z, 0].numpy() for _, c in draws], 0), scale / (5 + n - 3), atol=0.06)
    rows = np.mean([Dirichlet(torch.from_numpy(pairs)).draw(rng).numpy() for _ in range(2000)], 0)
    np.testing.assert_allclose(rows, pairs / pairs.sum(1, keepdims=True), atol=0.015)


def test_shared_covariances_given_all_states_are_conjugate() -> None:
    """One matrix for all states: squares of all states together; one variance for all features: of all features."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((40, 2)) + 3.0, rng.integers(0, 2, 40)
    means = np.stack([x[y == z].sum(0) / ((y == z).sum() + 1) for z in range(2)])
    around = [(x[y == z] ** 2).sum(0) - ((y == z).sum() + 1) * means[z] ** 2 for z in range(2)]
    across = [x[y == z].T @ x[y == z] - ((y == z).sum() + 1) * np.outer(means[z], means[z]) for z in range(2)]
    common: dict[str, Any] = {"mean_prior": 0.0, "tol": None, "max_iter": 2, "random_state": 0}
    tied = BayesianHMM(2, covariance_type="tied", dof_prior=5.0, scale_prior=2.0, **common).fit(x, labels=y).beliefs_
    np.testing.assert_allclose(tied["scale"], 2.0 * np.eye(2) + across[0] + across[1], rtol=1e-10)
    assert tied["dof"] == 45
    one = BayesianHMM(2, covariance_type="spherical", dof_prior=[5.0, 6.0], scale_prior=[2.0, 3.0], **common)
    found = one.fit(x, labels=y).beliefs_
    np.testing.assert_allclose(found["scale"], [2.0 + around[0].sum(), 3.0 + around[1].sum()], rtol=1e-10)
    np.testing.assert_allclose(found["dof"], [5.0 + 2 * (y == 0).sum(), 6.0 + 2 * (y == 1).sum()])
    np.testing.assert_allclose(one.covariances_, found["scale"] / found["dof"], rtol=1e-10)
    for belief in (tied, found):
        np.testing.assert_allclose(belief["mean"], means, rtol=1e-10)


@pytest.mark.parametrize(
    ("kind", "shape"), [("diag", (3, 2)), ("spherical", (3,)), ("tied", (2, 2)), ("full", (3, 2, 2))]
)
def test_gibbs_sampling_of_frames(kind: Any, shape: tuple[int, ...]) -> None:
    frames, labels = walks()
    if kind in ("tied", "full"):
        frames[1][2] = np.nan
    model = BayesianHMM(3, covariance_type=kind, n_draws=6, burn_in=4, random_state=0)
    known = [np.where(np.arange(len(y)) < 3, y, -1) for y in labels]
    model.fit(frames, labels=known, algorithm="gibbs")
    assert model.draws_["means"].shape == (6, 3, 2)
    assert model.draws_["covariances"].shape == (6, *shape)
    assert model.covariances_.shape == shape
    assert [own.shape for own in model.paths_] == [(6, len(y)) for y in labels]
    for own, y in zip(model.paths_, labels, strict=True):
        assert (own[:, :3] == y[:3]).all()
    assert model.score(frames, labels=known) == pytest.approx(max(model.history_[4:]), rel=1e-10)
    assert len(model.history_) == 10


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "categorical"])
def test_the_bound_never_decreases(kind: str) -> None:
    frames, _ = walks()
    for seed in range(2):
        if kind == "categorical":
            data: Any = [np.random.default_rng(seed).integers(0, 4, 30) for _ in range(3)]
            model = BayesianHMM(3, observations="categorical", transition_prior=0.3, random_state=seed)
        else:
            data = [x if kind in ("diag", "spherical") else x[~np.isnan(x).any(1)] for x in frames]
            model = BayesianHMM(4, covariance_type=kind, random_state=seed)  # type: ignore[arg-type]
        model.set_params(tol=None, max_iter=40).fit(data)
        assert (np.diff(model.history_) > -1e-8).all()
        assert model.history_[-1] > model.history_[0]


def theirs(kind: str, frames: Any, lengths: list[int], seed: int) -> tuple[Any, dict[str, Any], list[float]]:
    """A model of hmmlearn, the beliefs it starts from, and its lower bound before each of ten steps."""
    vhmm = pytest.importorskip("hmmlearn.vhmm")
    if kind == "categorical":
        model = vhmm.VariationalCategoricalHMM(
            3, n_iter=10, tol=-1e9, random_state=seed, startprob_prior=0.5, transmat_prior=0.7, emissionprob_prior=0.9
        )
    else:
        model = vhmm.VariationalGaussianHMM(3, kind.partition(" ")[0], n_iter=10, tol=-1e9, random_state=seed)
    model._init(frames, lengths)
    names = {"initial": "startprob", "transition": "transmat"}
    names |= (
        {"emission": "emissionprob"}
        if kind == "categorical"
        else {"mean": "means", "mean_weight": "beta", "dof": "dof", "scale": "scale"}
    )
    start = {ours: np.array(getattr(model, f"{name}_posterior_"), dtype=float) for ours, name in names.items()}
    prior = {ours: np.array(getattr(model, f"{name}_prior_"), dtype=float) for ours, name in names.items()}
    model.init_params = ""
    model.fit(frames, lengths)
    return model, {"start": start, "prior": prior}, list(model.monitor_.history)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["categorical", "full", "tied", "diag of one feature", "spherical of one feature"])
def test_lower_bounds_beliefs_and_answers_equal_hmmlearns(kind: str, seed: int) -> None:
    """Given the same priors and start. It leaves the 2 pi of Gaussian densities out."""
    rng = np.random.default_rng(seed)
    lengths = [25, 40]
    common: dict[str, Any] = {"max_iter": 10, "tol": None, "random_state": 0}
    if kind == "categorical":
        x = rng.integers(0, 5, 65)
        model, given, bounds = theirs(kind, x[:, None], lengths, seed)
        ours = BayesianHMM(3, observations="categorical", initial_prior=0.5, transition_prior=0.7, emission_prior=0.9)
        constant = 0.0
    else:
        size = 1 if kind.endswith("one feature") else 2
        x = rng.standard_normal((65, size)) + 3 * rng.integers(0, 3, 65)[:, None]
        model, given, bounds = theirs(kind, x, lengths, seed)
        prior = given["prior"]
        ours = BayesianHMM(
            3, covariance_type=kind.partition(" ")[0], initial_prior=1 / 3, transition_prior=1 / 3,  # type: ignore[arg-type]
            mean_prior=prior["mean"], mean_weight=1.0, dof_prior=float(prior["dof"].min()), scale_prior=1e-3,
        )  # fmt: skip
        if size == 1:  # theirs has one weight and one dof for each state; ours for each feature of it
            given["start"]["mean_weight"] = given["start"]["mean_weight"][:, None]
        if kind.startswith("diag"):
            given["start"]["dof"] = given["start"]["dof"][:, None]
        constant = 65 * size / 2 * math.log(2 * math.pi)
    ours.set_params(start=given["start"], **common).fit(x, lengths=lengths)
    # A start far from the prior has a bound of -1e10, of which float64 keeps sixteen digits.
    np.testing.assert_allclose(np.array(ours.history_) + constant, bounds, rtol=1e-14, atol=1e-6)
    names = {"initial": "startprob", "transition": "transmat", "mean": "means", "emission": "emissionprob"}
    for name, value in ours.beliefs_.items():
        if name in names:
            np.testing.assert_allclose(value, getattr(model, f"{names[name]}_posterior_"), rtol=1e-6, atol=1e-9)
    stacked = x[:, None] if kind == "categorical" else x
    assert ours.score(x, lengths=lengths) == pytest.approx(model.score(stacked, lengths), rel=1e-9)
    np.testing.assert_allclose(ours.predict_proba(x, lengths), model.predict_proba(stacked, lengths), atol=1e-8)
    (mine, path), (log_prob, best) = ours.decode(x, lengths), model.decode(stacked, lengths)
    assert mine == pytest.approx(log_prob, rel=1e-9)
    np.testing.assert_array_equal(path, best)


def test_it_answers_as_an_hmm() -> None:
    """Three states found among five; frames that are missing; questions by the expected tables."""
    frames, states = walks()
    model = BayesianHMM(5, covariance_type="diag", transition_prior=0.2, random_state=0).fit(frames)
    path = np.concatenate(model.predict(frames))
    truth = np.concatenate(states)
    found = sum(np.bincount(truth[path == z]).max() for z in np.unique(path))
    assert found / len(truth) > 0.9
    np.testing.assert_allclose(model.transition_.sum(1), 1.0)
    assert model.score(frames) > model.history_[-1]
    weights = model.beliefs_["transition"]
    np.testing.assert_allclose(model.transition_, weights / weights.sum(1, keepdims=True), rtol=1e-10)
    np.testing.assert_allclose(model.means_, model.beliefs_["mean"], rtol=1e-10)
    np.testing.assert_array_equal(np.concatenate(clone_of(model).fit_predict(frames)), path)


def clone_of(model: BayesianHMM) -> BayesianHMM:
    return BayesianHMM(**model.get_params())


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"observations": "poisson"}, UnsupportedError, "gaussian, categorical"),
        ({"covariance_type": "low_rank"}, UnsupportedError, "must be one of 'full', 'tied', 'diag', 'spherical'"),
        ({"covariance_type": "spherical", "scale_prior": -1.0}, DomainError, "scale_prior has an entry of -1"),
        ({"scale_prior": np.ones(3)}, ShapeError, r"scale_prior has shape \(3,\), but \(2,\)"),
        ({"dof_prior": np.ones(3)}, ShapeError, r"dof_prior has shape \(3,\), but \(2,\)"),
        ({"mean_weight": 0.0}, DomainError, "mean_weight has an entry of 0, but all must be above 0"),
        ({"transition_prior": 0.0}, DomainError, "transition_prior has an entry of 0, but all must be above 0"),
        ({"initial_prior": [1.0, 1.0, 1.0]}, ShapeError, r"initial_prior has shape \(3,\), but \(2,\)"),
        ({"dof_prior": 1.0}, DomainError, "dof_prior is 1, but of 2 features together must be above 1"),
        ({"scale_prior": [[1.0, 2.0], [2.0, 1.0]]}, DomainError, "no positive definite matrix"),
        ({"start": {"initial": [1.0, 1.0]}}, DomainError, "initial, transition, mean, mean_weight, dof, scale"),
        ({"burn_in": -1}, DomainError, "burn_in is -1"),
    ],
)
def test_what_is_refused(parameters: dict[str, Any], error: type[Exception], words: str) -> None:
    x = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(error, match=words):
        BayesianHMM(2, **parameters).fit(x)


def test_other_refusals() -> None:
    x = np.random.default_rng(0).standard_normal((20, 2))
    with pytest.raises(UnsupportedError, match='must be "vb" or "gibbs"'):
        BayesianHMM(2).fit(x, algorithm="em")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="no sample_weight"):
        BayesianHMM(2).fit(x, sample_weight=[1.0])
    with pytest.raises(UnsupportedError, match="beliefs instead of tables"):
        BayesianHMM.from_tables(initial=[1.0])
    with pytest.raises(UnsupportedError, match="no partial_fit"):
        BayesianHMM(2).partial_fit(x)
    x[3, 1] = np.nan
    with pytest.raises(UnsupportedError, match="sequence 0, frame 3 has some features missing"):
        BayesianHMM(2).fit(x)
    with pytest.warns(UserWarning, match="variational Bayes has not converged"):
        BayesianHMM(2, covariance_type="diag", max_iter=2, tol=1e-12, random_state=0).fit(x)
