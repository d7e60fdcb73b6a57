"""States that share observations, and segments of a least duration: against enumeration, and against one another."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DomainError
from rankfold.estimators import HMM, HSMM
from rankfold.models import FrameModel
from rankfold.params.durations import NegativeBinomialDuration, PoissonDuration
from rankfold.params.prior import Prior
from tests.estimators.observation_cases import CASES

RNG = np.random.default_rng(0)
INITIAL, MOVES = RNG.dirichlet(np.ones(3)), RNG.dirichlet(np.ones(3), 3)
SHARED = RNG.dirichlet(np.ones(2), 2)
TIED = [0, 1, 0]


def tied(**params: Any) -> HMM:
    return HMM.from_tables(
        initial=INITIAL, transition=MOVES, observations="categorical", emission=SHARED, tied_states=TIED, **params
    )


def test_answers_and_counts_are_those_of_all_paths() -> None:
    x = np.array([0, 1, 1, 0, 1])
    weights = {}
    for path in itertools.product(range(3), repeat=5):
        p = INITIAL[path[0]] * np.prod([MOVES[a, b] for a, b in itertools.pairwise(path)])
        weights[path] = p * np.prod([SHARED[TIED[z], v] for z, v in zip(path, x, strict=True)])
    total = sum(weights.values())
    model = tied(max_iter=1, tol=None)
    assert model.score([x]) == pytest.approx(np.log(total), rel=1e-12)
    posterior = sum(w * np.eye(3)[list(path)] for path, w in weights.items()) / total
    np.testing.assert_allclose(model.predict_proba([x])[0], posterior, rtol=0, atol=1e-12)
    assert tuple(model.predict([x])[0]) == max(weights, key=lambda path: weights[path])
    by_group = np.stack([posterior[:, [0, 2]].sum(1), posterior[:, 1]], 1)
    counts = np.array([[by_group[x == v, g].sum() for v in (0, 1)] for g in (0, 1)])
    np.testing.assert_allclose(model.fit([x]).emission_, counts / counts.sum(1, keepdims=True), rtol=1e-12)
    frames, states = tied(random_state=0).sample(4000)
    for z in range(3):
        share = np.mean(frames[states == z])
        assert abs(share - SHARED[TIED[z], 1]) < 5 * 0.5 / (states == z).sum() ** 0.5


@pytest.mark.filterwarnings("ignore:too little data", "ignore:segments last at most")
def test_every_observation_is_tied_and_em_rises(tmp_path: Any) -> None:
    names = ("gaussian-diag", "gaussian-full", "mixture-tied", "poisson", "categorical", "autoregressive", "product",
             "autoregressive_student_t")  # fmt: skip
    for seed, name in enumerate(names):
        observations, make, params = CASES[name]
        x = make(seed=seed)
        labels = [np.where(np.arange(len(s)) % 6 == 0, i % 4, -1) for i, s in enumerate(x)]
        for fit in ({}, {"labels": labels}):
            model = HMM(4, observations=observations, tied_states=[0, 0, 1, 2], smoothing=0.2, max_iter=4, tol=None,
                        random_state=seed, **params).fit(x, **fit)  # fmt: skip
            history = np.array(model.history_)
            assert np.diff(history).min() >= -1e-9 * np.abs(history).max(), name
            assert history[-1] > history[0]
        assert all(len(table) in (3, 4) for table in model.tables_.values()), name
        free = HMM(4, observations=observations, max_iter=1, tol=None, random_state=seed, smoothing=0.2, **params)
        assert model.n_parameters() < free.fit(x).n_parameters()
        assert len(model.sample(5)[1]) == 5
        model.model_.save_pretrained(tmp_path / name)
        before = model.score(x)
        model.model_ = FrameModel.from_pretrained(tmp_path / name)
        assert model.score(x) == before
    x = CASES["gaussian-diag"][1](seed=0)
    segments = HSMM(4, tied_states=[0, 0, 1, 2], max_duration=5, max_iter=4, tol=None, random_state=0).fit(x)
    assert np.diff(segments.history_).min() >= -1e-9
    climbed = HMM(4, tied_states=[0, 0, 1, 2], max_iter=4, random_state=0, learning_rate=0.02)
    history = np.array(climbed.fit(x, algorithm="sgd").history_)
    assert history.max() > history[0]
    for wrong in ([0, 0, 1], [0, 0, 2, 2], [0, 0.5, 1, 1], 3):
        with pytest.raises(DomainError, match="tied_states"):
            HMM(4, tied_states=wrong).fit(x)  # type: ignore[arg-type]


def test_all_states_may_share_one_group() -> None:
    """Segments differ by their durations alone; none follows one of its own state."""
    x = CASES["gaussian-diag"][1](seed=0)
    one = HSMM(2, tied_states=[0, 0], max_duration=5, max_iter=3, tol=None, random_state=0).fit(x)
    assert one.means_.shape == (1, 3)
    gaussian = HMM(1, max_iter=1, tol=None, random_state=0).fit(x)
    np.testing.assert_allclose(one.means_, gaussian.means_, rtol=1e-10)


def test_copies_of_tied_states_are_segments_of_a_least_duration() -> None:
    """Three copies in a row, the last of which stays: a geometric duration from 3 on, cut by the end."""
    stay, means = np.array([0.8, 0.6]), np.array([[0.0], [2.0]])
    moves = np.zeros((6, 6))
    for z in (0, 1):
        for i in (0, 1):
            moves[3 * z + i, 3 * z + i + 1] = 1.0
        moves[3 * z + 2, 3 * z + 2], moves[3 * z + 2, 3 * (1 - z)] = stay[z], 1 - stay[z]
    start = np.array([0.3, 0, 0, 0.7, 0, 0])
    copies = HMM.from_tables(
        initial=start, transition=moves, tied_states=[0, 0, 0, 1, 1, 1], means=means, covariances=np.ones((2, 1))
    )
    lasts = np.zeros((2, 40))
    lasts[:, 2:] = (1 - stay[:, None]) * stay[:, None] ** np.arange(38)
    lasts[:, -1] = stay**37  # all that last longer
    segments = HSMM.from_tables(
        initial=[0.3, 0.7], transition=[[0, 1], [1, 0]], means=means, covariances=np.ones((2, 1)), durations=lasts,
        min_duration=3, censored=True,
    )  # fmt: skip
    x = [RNG.standard_normal((n, 1)) + 1 for n in (1, 2, 5, 30)]
    np.testing.assert_allclose(copies.score_samples(x), segments.score_samples(x), rtol=1e-12)
    for a, b in zip(copies.predict_proba(x), segments.predict_proba(x), strict=True):
        np.testing.assert_allclose(a.reshape(len(a), 2, 3).sum(2), b, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:segments last at most")
def test_segments_last_long_enough() -> None:
    rng = np.random.default_rng(3)
    states = [np.repeat(np.arange(6) % 3, rng.integers(4, 8, 6)) for _ in range(4)]
    x = [3.0 * y[:, None] + rng.standard_normal((len(y), 1)) for y in states]
    for durations in ("poisson", "negative_binomial", "categorical"):
        for smoothing in (0.0, 0.3):
            model = HSMM(3, min_duration=4, max_duration=9, durations=durations, smoothing=smoothing, max_iter=6,
                         tol=None, random_state=0).fit(x)  # type: ignore[arg-type]  # fmt: skip
            history = np.array(model.history_)
            assert np.diff(history).min() >= -1e-9 * np.abs(history).max()
            assert not model.durations_[:, :3].any()
            np.testing.assert_allclose(model.durations_.sum(1), 1.0)
            for rows in model.segment(x):
                assert (rows["end"] - rows["start"] >= 4).all()
        climbed = HSMM(3, min_duration=4, max_duration=9, durations=durations, max_iter=4, random_state=0)  # type: ignore[arg-type]
        history = np.array(climbed.fit(x, algorithm="sgd").history_)
        assert history.max() > history[0]
    lasts = np.full((2, 3), 1 / 3)
    with pytest.raises(DomainError, match="below min_duration, 2"):
        HSMM.from_tables(initial=[0.5, 0.5], transition=[[0, 1], [1, 0]], means=[[0.0], [1.0]],
                         covariances=np.ones((2, 1)), durations=lasts, min_duration=2)  # fmt: skip
    with pytest.raises(DomainError, match="min_duration is 9"):
        HSMM(2, min_duration=9, max_duration=5).fit(x)
    with pytest.raises(DomainError, match="min_duration is 0"):
        HSMM(2, min_duration=0).fit(x)


def test_short_segments_against_all_segmentations() -> None:
    lasts = np.array([[0.0, 0.7, 0.3], [0.0, 0.4, 0.6]])
    emission = np.array([[0.9, 0.1], [0.2, 0.8]])
    model = HSMM.from_tables(
        initial=[0.6, 0.4], transition=[[0, 1], [1, 0]], observations="categorical", emission=emission,
        durations=lasts, min_duration=2,
    )  # fmt: skip
    x = [0, 0, 1, 1, 0, 1, 1]
    total = 0.0
    for first, cuts in itertools.product((0, 1), [(2, 2, 3), (2, 3, 2), (3, 2, 2)]):
        p, at = [0.6, 0.4][first], 0
        for i, d in enumerate(cuts):
            z = (first + i) % 2
            p *= lasts[z, d - 1] * np.prod(emission[z, x[at : at + d]])
            at += d
        total += p
    assert model.score([x]) == pytest.approx(np.log(total), rel=1e-12)


def test_the_best_rates_of_long_durations() -> None:
    counts = torch.tensor([[0.0, 0.0, 2.0, 5.0, 1.0, 0.5], [0.0, 0.0, 3.0, 0.0, 0.0, 0.0]]).double()
    zero = torch.zeros(2).double()
    negative = NegativeBinomialDuration(zero.clone(), zero.clone(), 6, shortest=3)
    for module in (PoissonDuration(zero.clone(), 6, shortest=3), negative):
        before = (counts[0, 2:] * module()[0, 2:]).sum()
        for _ in range(30):
            module.maximise(counts, Prior())
        best = (counts[0, 2:] * module()[0, 2:]).sum()
        assert float(best.detach()) > float(before.detach())
        mean = (module()[0].exp() @ torch.arange(1.0, 7.0).double()).detach()
        assert float(mean) == pytest.approx(float(counts[0] @ torch.arange(1.0, 7.0).double()) / 8.5, rel=1e-6)
        assert bool(torch.isfinite(module()[:, 2:]).all())
        assert not bool(module()[:, :2].exp().any())
