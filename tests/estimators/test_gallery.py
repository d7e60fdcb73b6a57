"""The examples of hmmlearn's gallery, with our estimators: what they show is asserted instead of drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankfold.estimators import HMM, BayesianHMM, select


def agreement(found: Any, truth: Any) -> float:
    """The share of frames that agree, each state standing for the true one it meets most."""
    return float(sum(np.bincount(truth[found == z]).max() for z in np.unique(found)) / len(truth))


def test_casino() -> None:
    """A fair die that is now and then exchanged for a loaded one: which, how often, and how it is loaded."""
    moves = np.array([[0.95, 0.05], [0.1, 0.9]])
    faces = np.array([[1 / 6] * 6, [0.1] * 5 + [0.5]])
    casino = HMM.from_tables(initial=[1.0, 0.0], transition=moves, observations="categorical", emission=faces)
    rolls, states = casino.sample(4000, random_state=99)
    train, valid = rolls[:2000], rolls[2000:]
    rare = {"transition": [[0.9, 0.1], [0.1, 0.9]]}
    fits = [HMM(2, observations="categorical", start=rare, tol=1e-4, random_state=seed).fit(train) for seed in range(2)]
    best = max(fits, key=lambda model: model.score(valid))
    assert best.score(valid) > casino.score(valid) - 10
    loaded = int(best.emission_[:, 5].argmax())
    order = [1 - loaded, loaded]
    np.testing.assert_allclose(best.transition_[order][:, order], moves, atol=0.07)
    np.testing.assert_allclose(best.emission_[order], faces, atol=0.08)
    by_truth = (casino.predict(rolls) == states).mean()  # nobody sees all exchanges
    assert ((best.predict(rolls) == loaded) == states).mean() > by_truth - 0.05


def test_sampling_and_decoding() -> None:
    """Four states, no way between the first and the third: half of the sample tells how many, and where they are."""
    moves = np.array([[0.7, 0.2, 0.0, 0.1], [0.3, 0.5, 0.2, 0.0], [0.0, 0.3, 0.5, 0.2], [0.2, 0.0, 0.2, 0.6]])
    means = np.array([[0.0, 0.0], [0.0, 11.0], [9.0, 10.0], [11.0, -1.0]])
    made = HMM.from_tables(
        initial=[0.6, 0.3, 0.1, 0.0], transition=moves, means=means, covariances=0.5 * np.tile(np.eye(2), (4, 1, 1)),
        covariance_type="full",
    )  # fmt: skip
    x, states = made.sample(500, random_state=0)
    assert not ((states[:-1] == 0) & (states[1:] == 2)).any()
    fits = [HMM(n, covariance_type="full", smoothing=0.1, n_init=3, random_state=0).fit(x[:250]) for n in (3, 4, 5)]
    best = max(fits, key=lambda model: model.score(x[250:]))
    assert best.n_states == 4
    assert agreement(best.predict(x), states) == 1.0
    order = [int(np.square(best.means_ - mean).sum(1).argmin()) for mean in means]
    np.testing.assert_allclose(best.means_[order], means, atol=0.4)
    np.testing.assert_allclose(best.transition_[order][:, order], moves, atol=0.15)
    assert best.transition_[order[0], order[2]] < 0.01  # of the smoothing alone


# Earthquakes of magnitude 7 and above in the world, 1900 to 2006 (the US Geological Survey's counts).
EARTHQUAKES = [
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23, 18, 17, 19, 20, 22,
    19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26, 28, 36, 39, 21, 17, 22, 17, 19, 15, 34,
    10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23, 20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6,
    11, 8, 7, 18, 16, 13, 12, 13, 20, 15, 16, 12, 18, 15, 16, 13, 15, 16, 11, 11,
]  # fmt: skip


def test_earthquakes() -> None:
    """Quiet, usual and restless years. Rates and likelihoods as MacDonald and Zucchini's book gives them."""
    x = np.array(EARTHQUAKES, dtype=float)[:, None]
    assert len(x) == 107
    found = {
        n: HMM(n, observations="poisson", n_init=5, tol=1e-9, max_iter=3000, random_state=0).fit(x) for n in (1, 2, 3)
    }
    assert round(found[1].score(x), 2) == -391.92
    assert round(found[2].score(x), 2) == -341.88
    np.testing.assert_allclose(np.sort(found[2].rates_[:, 0]), [15.42, 26.02], atol=0.01)
    assert round(found[3].score(x), 2) == -328.53
    np.testing.assert_allclose(np.sort(found[3].rates_[:, 0]), [13.13, 19.71, 29.71], atol=0.01)
    assert min(found, key=lambda n: found[n].aic(x)) == 3
    years = found[3].predict(x)
    assert years[1943 - 1900] == found[3].rates_[:, 0].argmax()
    assert years[1986 - 1900] == found[3].rates_[:, 0].argmin()


def test_cats_and_dogs() -> None:
    """Sentences of five words, about cats or dogs: counts of words are the frames. From tables, and from nothing."""
    words = ["tail", "fetch", "mouse", "food"]
    talk = """tail mouse mouse food mouse / food mouse mouse food mouse / tail mouse mouse tail mouse / food mouse food
    food tail / tail fetch mouse food tail / tail fetch fetch food fetch / fetch fetch fetch food tail / food mouse food
    food tail / tail mouse mouse tail mouse / fetch fetch fetch fetch fetch"""
    x = np.array([[sentence.split().count(word) for word in words] for sentence in talk.split("/")])
    assert (x.sum(1) == 5).all()
    known = HMM.from_tables(
        initial=[0.6, 0.4], transition=[[0.8, 0.2], [0.2, 0.8]], observations="multinomial",
        emission=[[0.25, 0.1, 0.4, 0.25], [0.2, 0.5, 0.1, 0.2]], max_iter=50, tol=None,
    )  # fmt: skip
    known.fit([x] * 5)
    dogs = [5, 6, 9]
    assert known.predict(x).nonzero()[0].tolist() == dogs
    assert known.emission_[1].argmax() == words.index("fetch")
    fits = [
        HMM(2, observations="multinomial", max_iter=50, tol=None, random_state=seed).fit([x] * 5) for seed in (0, 1)
    ]
    new = max(fits, key=lambda model: model.history_[-1])
    assert agreement(new.predict(x), known.predict(x)) == 1.0
    assert new.score([x] * 5) > known.history_[0]


def peaks(means: list[float], moves: Any, variance: float, num: int, seed: int) -> Any:
    """One feature, four states."""
    made = HMM.from_tables(
        initial=[0.25] * 4, transition=moves, means=np.array(means)[:, None], covariances=np.full((4, 1), variance)
    )
    return made.sample(num, random_state=seed)[0]


def test_model_selection() -> None:
    """The likelihood rises with every state; BIC is least at the true number."""
    moves = [[0.3, 0.4, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25]]
    x = peaks([-2.5, 0.0, 2.5, 5.0], moves, 0.5, 1000, 0)
    found = select(HMM(max_iter=200, tol=1e-4, random_state=0), x, {"n_states": [2, 3, 4, 5]}, n_init=2)
    assert found.best.n_states == 4
    assert int(np.argmin([one.aic for one in found.candidates])) >= 2  # AIC sometimes takes one more
    likelihoods = [one.log_likelihood for one in found.candidates]
    assert (np.diff(likelihoods) > 0).all()


def test_variational_inference() -> None:
    """EM likes as many states as there may be; the bound of variational Bayes is largest at the true number."""
    moves = np.array([[2, 2, 3, 3], [3, 2, 2, 3], [2, 3, 3, 2], [3, 3, 2, 2]]) / 10
    x = peaks([-1.5, 0.0, 1.5, 3.0], moves, 0.0625, 300, 2022)
    sizes = (3, 4, 5)
    settings: dict[str, Any] = {"covariance_type": "full", "max_iter": 200, "random_state": 0}
    bounds = [BayesianHMM(n, tol=1e-5, **settings).fit(x).history_[-1] for n in sizes]
    likelihoods = [HMM(n, tol=1e-5, n_init=2, **settings).fit(x).history_[-1] for n in sizes]
    assert sizes[int(np.argmax(bounds))] == 4
    assert (np.diff(likelihoods) > 0).all()
