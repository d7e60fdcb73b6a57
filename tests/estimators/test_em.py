"""EM: no step lowers the likelihood, in any combination; each is hmmlearn's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from rankfold.errors import DomainError
from rankfold.estimators import HMM, HSMM
from rankfold.training import em
from rankfold.training.em import group_lengths
from tests.estimators.cases import observed, walks

OBSERVATIONS = ("gaussian", "bernoulli", "categorical")
CHAINS = [
    {"observations": kind, "rank": rank, "tied_variance": tied, "smoothing": smoothing}
    for kind, rank, tied, smoothing in itertools.product(OBSERVATIONS, (None, 2), (False, True), (0.0, 0.3))
    if kind == "gaussian" or not tied
]
SEGMENTS = [
    {"observations": kind, "rank": rank, "durations": durations, "self_transitions": repeats, "censored": repeats}
    for kind, rank, durations, repeats in itertools.product(
        OBSERVATIONS, (None, 2), ("poisson", "negative_binomial", "categorical"), (False, True)
    )
]


def expect_rising(history: list[float]) -> None:
    """No step loses more than rounding, and the first gains."""
    values = np.array(history)
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all(), np.diff(values).min()
    assert values[-1] > values[0]


@pytest.mark.parametrize("settings", CHAINS, ids=str)
def test_chains_rise(settings: dict[str, Any]) -> None:
    frames, states = walks()
    labels = [np.where(np.arange(len(y)) % 5 == 0, y, -1) for y in states]
    x = observed(settings["observations"], frames)
    for known in (None, labels):
        model = HMM(3, max_iter=10, tol=None, random_state=0, **settings).fit(x, labels=known)
        expect_rising(model.history_)


@pytest.mark.parametrize("settings", SEGMENTS, ids=str)
def test_segments_rise(settings: dict[str, Any]) -> None:
    frames, _ = walks(3)
    x = observed(settings["observations"], frames)
    expect_rising(HSMM(3, max_duration=9, max_iter=9, tol=None, random_state=1, **settings).fit(x).history_)


def test_priors_and_floors_rise() -> None:
    frames, _ = walks(3)
    for settings in ({"variance_prior": 5.0}, {"min_variance": 0.5}, {"variance_prior": 2.0, "tied_variance": True}):
        model = HMM(4, max_iter=20, tol=None, random_state=0, **settings).fit(frames)
        expect_rising(model.history_)
    spread = np.nanvar(np.concatenate(frames), 0)
    floored = HMM(4, max_iter=20, min_variance=0.5, random_state=0).fit(frames).model_
    variance = floored.parts().observation.variance.detach().numpy()  # type: ignore[attr-defined]
    assert (variance >= 0.5 * spread * (1 - 1e-12)).all()
    assert np.isclose(variance, 0.5 * spread).any()


@pytest.mark.parametrize("implementation", ["log", "scaling"])
@pytest.mark.parametrize("num_states", [1, 5])
def test_each_step_is_hmmlearns(num_states: int, implementation: str) -> None:
    """The same start, no priors: the same likelihood before every step, and the same means and moves after the last."""
    peer = pytest.importorskip("hmmlearn.hmm")
    frames, _ = walks(7, seed=3)
    frames = [np.nan_to_num(x) for x in frames]
    x, rng = np.concatenate(frames), np.random.default_rng(0)
    start = {
        "initial": rng.dirichlet(np.ones(num_states)),
        "transition": rng.dirichlet(np.ones(num_states), num_states),
        "mean": x[rng.choice(len(x), num_states, replace=False)],
        "variance": rng.uniform(0.5, 2.0, (num_states, 2)),
    }
    ours = HMM(num_states, start=start, max_iter=8, tol=None, min_variance=0.0).fit(frames)
    theirs = peer.GaussianHMM(
        num_states, "diag", n_iter=8, tol=-np.inf, init_params="", covars_prior=0.0, implementation=implementation
    )
    theirs.startprob_, theirs.transmat_ = start["initial"], start["transition"]
    theirs.means_, theirs.covars_ = start["mean"], start["variance"]
    theirs.fit(x, [len(rows) for rows in frames])
    np.testing.assert_allclose(ours.history_, theirs.monitor_.history, rtol=1e-10)
    parts = ours.model_.parts()
    np.testing.assert_allclose(parts.transition.to_dense().detach(), theirs.transmat_, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(parts.observation.mean.detach(), theirs.means_, rtol=1e-7, atol=1e-9)  # type: ignore[attr-defined]
    assert ours.score(frames) == pytest.approx(theirs.score(x, [len(rows) for rows in frames]), rel=1e-10)


def test_partial_fit_comes_to_the_same_place() -> None:
    frames, _ = walks(8, seed=2)
    whole = HMM(3, max_iter=60, random_state=0).fit(frames)
    parts = HMM(3, random_state=0)
    for _ in range(40):
        parts.partial_fit(frames[:4]).partial_fit(frames[4:])
    assert parts.score(frames) == pytest.approx(whole.score(frames), rel=5e-3)
    assert len(parts.history_) == 80


@pytest.mark.parametrize("settings", [{}, {"rank": 2}, {"observations": "bernoulli"}, {"observations": "categorical"}])
def test_sgd_climbs(settings: dict[str, Any]) -> None:
    frames, states = walks(5)
    x = observed(settings.get("observations", "gaussian"), frames)
    labels = [np.where(np.arange(len(y)) < 3, y, -1) for y in states]
    model = HMM(3, max_iter=8, batch_size=2, random_state=0, tol=None, **settings).fit(
        x, labels=labels, algorithm="sgd"
    )
    assert max(model.history_) > model.history_[0] + 1
    assert model.score(x, labels=labels) > model.history_[0]


def test_many_starts_keep_the_best() -> None:
    frames, _ = walks(3)
    one = [HMM(4, init="random", max_iter=5, random_state=np.random.default_rng(0)).fit(frames).history_[-1]]
    rng = np.random.default_rng(0)
    one += [HMM(4, init="random", max_iter=5, random_state=rng).fit(frames).history_[-1] for _ in range(4)][1:]
    best = HMM(4, init="random", max_iter=5, n_init=4, random_state=np.random.default_rng(0)).fit(frames)
    assert best.history_[-1] == pytest.approx(max(one), rel=1e-12)
    assert max(one) > min(one)


def test_stops_where_a_step_gains_too_little() -> None:
    frames, _ = walks()
    model = HMM(3, tol=1e-4, max_iter=500, random_state=0).fit(frames)
    gains = np.diff(model.history_) / sum(map(len, frames))
    assert model.converged_
    assert model.n_iter_ == len(model.history_) < 500
    assert gains[-1] < 1e-4 <= gains[:-1].min()


@pytest.mark.parametrize("settings", [{}, {"rank": 7}, {"observations": "bernoulli"}], ids=str)
def test_float32_comes_to_the_same_likelihood(settings: dict[str, Any]) -> None:
    frames, _ = walks()
    x = observed(settings.get("observations", "gaussian"), frames)
    double, single = (
        HMM(3, max_iter=10, random_state=0, dtype=kind, **settings).fit(x) for kind in ("float64", "float32")
    )
    assert single.model_.dtype == torch.float32
    assert single.score(x) == pytest.approx(double.score(x), rel=1e-4)


def test_groups_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences one by one, or padded together: the same steps."""
    frames, _ = walks()
    frames.append(frames[0][:4])
    together = HMM(3, max_iter=5, random_state=0).fit(frames)
    monkeypatch.setattr(em, "MOST", 1)
    apart = HMM(3, max_iter=5, random_state=0).fit(frames)
    np.testing.assert_allclose(apart.history_, together.history_, rtol=1e-12)
    assert [len(x) for x in group_lengths([9, 2, 8, 5, 3], 2, most=36)] == [2, 2, 1]
    assert group_lengths([9, 2, 8, 5, 3], 2) == [[0, 2, 3], [4, 1]]


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
@pytest.mark.parametrize("model", [HMM(3), HMM(4, rank=2), HSMM(3, max_duration=9)], ids=["hmm", "low rank", "hsmm"])
def test_mini_batches(model: Any, kind: str) -> None:
    """One batch of all, without momentum: the first pass is a step of EM. In parts, nearly as good as EM at its end."""
    frames = observed(kind, walks(12)[0])
    common = {"observations": kind, "random_state": 0, "tol": None, "smoothing": 0.1}
    make = type(model)
    whole = make(**{**model.get_params(), **common, "max_iter": 2}).fit(frames)
    one = make(**{**model.get_params(), **common, "max_iter": 2, "momentum": 0.0}).fit(frames, algorithm="minibatch")
    np.testing.assert_allclose(one.history_, whole.history_, rtol=1e-10)
    best = make(**{**model.get_params(), **common, "max_iter": 60}).fit(frames)
    settings = {"max_iter": 40, "batch_size": 3, "momentum": 0.7}
    parts = make(**{**model.get_params(), **common, **settings}).fit(frames, algorithm="minibatch")
    start, frames_seen = whole.history_[0], sum(map(len, frames))
    assert parts.score(frames) - start > 0.8 * (best.score(frames) - start)
    assert parts.score(frames) > best.score(frames) - 0.1 * frames_seen
    assert parts.n_iter_ == 40
    before = parts.history_[-1]
    assert len(parts.partial_fit(frames[:4]).history_) == 41
    assert parts.history_[:-1][-1] == before
    with pytest.raises(DomainError, match="momentum is 1"):
        make(momentum=1).fit(frames)


def test_mini_batches_weigh_the_prior_as_whole_steps_do() -> None:
    """Four copies of one labelled sequence: each batch of one, scaled to all, has the counts of all."""
    frames, labels = walks(2)
    copies, known = frames[:1] * 4, labels[:1] * 4
    whole = HMM(3, max_iter=1, tol=None, smoothing=2.0, random_state=0).fit(copies, labels=known)
    parts = HMM(3, max_iter=2, tol=None, smoothing=2.0, batch_size=1, random_state=0)
    parts.fit(copies, labels=known, algorithm="minibatch")
    for own, other in zip(
        parts.model_.dynamics.tables().values(), whole.model_.dynamics.tables().values(), strict=True
    ):
        np.testing.assert_allclose(own.value, other.value, rtol=1e-10)


def e_step(frames: list[np.ndarray], model: HMM) -> tuple[em.Counts, em.Counts, em.Room | None]:
    """The counts in memory that steps share, those of the usual way, and that memory."""
    groups = em.group([torch.from_numpy(x) for x in frames], None, model.n_states)
    groups = em.with_statistics(groups, model.model_, model._prior)
    shared = em.expect(model.model_, groups)
    usual = em.expect(model.model_, [one._replace(room=None) for one in groups])
    return shared, usual, groups[0].room


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("num_states", [1, 2, 5, 17])
def test_steps_that_share_memory_count_the_same(num_states: int, missing: bool) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(num_states)
    frames = [rng.standard_normal((length, 3)) for length in (1, 40, 33, 7, 40)]
    if missing:
        frames[1][5:9, 1], frames[2][3] = np.nan, np.nan
    model = HMM(num_states, max_iter=2, tol=None, random_state=0).fit(frames)
    for _ in range(2):  # the second writes over the memory of the first
        shared, usual, room = e_step(frames, model)
        assert room is not None
        assert room.serves
        assert len(room._held) > 0
        for one, other in zip(shared.flat(), usual.flat(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(shared.log_likelihood, usual.log_likelihood, rtol=1e-13)


def test_steps_that_need_the_exact_bound_go_the_usual_way() -> None:
    pytest.importorskip("numba")
    frames, _ = walks()
    start = {"initial": [1.0, 0.0, 0.0], "transition": np.roll(np.eye(3), 1, 1)}  # two states are always out of reach
    model = HMM(3, max_iter=2, tol=None, random_state=0, start=start).fit(frames)
    shared, usual, room = e_step(frames, model)
    assert room is not None
    assert not room.serves
    for one, other in zip(shared.flat(), usual.flat(), strict=True):
        assert torch.equal(one, other)


def test_small_fits_and_questions_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waking a second thread may take longer than the work; the caller's number comes back."""
    seen: list[int] = []
    inner = em.FrameModel.parts
    monkeypatch.setattr(
        em.FrameModel, "parts", lambda self, *x: seen.append(torch.get_num_threads()) or inner(self, *x)
    )
    frames, _ = walks()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = HMM(3, max_iter=2, tol=None, random_state=0).fit(frames)
        model.score(frames)
        model.predict(frames)
        assert torch.get_num_threads() == 2
        assert len(seen) >= 4
        assert set(seen) == {1}
        monkeypatch.setattr(em, "SMALL_PASS", 0)
        monkeypatch.setattr(em, "SMALL_STEP", 0)
        seen.clear()
        model.score(frames)
        assert set(seen) == {2}
    finally:
        torch.set_num_threads(before)
