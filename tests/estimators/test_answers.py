"""What a fitted estimator answers: against enumeration, itself in other forms, and the model it wraps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.estimators import HMM, HSMM
from tests.estimators.cases import MEANS, observed, walks
from tests.oracles import frames as frame_oracle
from tests.oracles import semi_markov as segment_oracle

BOTH = [HMM(3, max_iter=5, random_state=0), HSMM(3, max_duration=9, max_iter=5, random_state=0)]


@pytest.fixture(params=range(2), ids=["hmm", "hsmm"])
def fitted(request: pytest.FixtureRequest) -> Any:
    kind = type(BOTH[request.param])
    return kind(**BOTH[request.param].get_params()).fit(walks()[0])


def test_one_array_or_a_list(fitted: Any) -> None:
    """Both forms give the same answers, in their own form."""
    frames, _ = walks()
    lengths = [len(x) for x in frames]
    x = np.concatenate(frames)
    assert fitted.score(frames) == pytest.approx(fitted.score(x, lengths=lengths), rel=1e-12)
    for method in (fitted.predict, fitted.predict_proba, fitted.filter):
        apart, together = method(frames), method(x, lengths=lengths)
        assert isinstance(apart, list)
        assert [len(a) for a in apart] == lengths
        np.testing.assert_allclose(np.concatenate(apart), together, atol=1e-12)
    rows, whole = fitted.segment(frames), fitted.segment(x, lengths=lengths)
    offsets = np.cumsum([0, *lengths[:-1]])
    assert [r for one, at in zip(rows, offsets, strict=True) for r in (one["start"] + at)] == whole["start"].tolist()
    assert whole["end"][-1] == len(x)


def test_segments_are_those_of_the_path(fitted: Any) -> None:
    frames, states = walks()
    path, table = fitted.predict(frames), fitted.segment(frames)
    for y, rows in zip(path, table, strict=True):
        assert rows["start"][0] == 0
        assert (rows["start"][1:] == rows["end"][:-1]).all()
        drawn = np.concatenate([np.full(row["end"] - row["start"], row["state"]) for row in rows])
        np.testing.assert_array_equal(drawn, y)
        assert ((rows["posterior"] > 0) & (rows["posterior"] <= 1)).all()
    order = [int(np.bincount(np.concatenate(path)[np.concatenate(states) == z]).argmax()) for z in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert np.mean(np.array(order)[np.concatenate(states)] == np.concatenate(path)) > 0.9


def test_stream_gives_what_filter_gives(fitted: Any) -> None:
    frames, _ = walks()
    expected = fitted.filter(frames)[0]
    state = None
    for x, row in zip(frames[0], expected, strict=True):
        found, state = fitted.step(x, state)
        np.testing.assert_allclose(found, row, atol=1e-10)
    np.testing.assert_allclose(expected.sum(1), 1.0, atol=1e-10)
    if isinstance(fitted, HMM):
        assert state is not None
        assert state.log_likelihood == pytest.approx(fitted.score(frames[0]), rel=1e-12)


def test_segment_models_equal_enumeration() -> None:
    """Likelihood, posteriors and filtered states of a short sequence, with missing features."""
    rng = np.random.default_rng(1)
    frames = [rng.standard_normal((6, 2)) + 1, rng.standard_normal((5, 2))]
    frames[0][1] = np.nan
    frames[0][4, 0] = np.nan
    model = HSMM(3, max_duration=3, durations="negative_binomial", max_iter=3, random_state=0).fit(frames)
    parts = model.model_.parts()
    assert parts.log_duration is not None
    tables = [x.detach().tolist() for x in (parts.log_initial, parts.transition.to_dense(), parts.log_duration)]
    mean, variance = (x.detach().tolist() for x in parts.observation)  # type: ignore[attr-defined]
    log_obs = [[frame_oracle.gaussian(x, mean[z], variance[z]) for z in range(3)] for x in frames[0].tolist()]
    found = segment_oracle.weights(*tables, log_obs)
    assert model.score(frames[0]) == pytest.approx(segment_oracle.log_z(found), rel=1e-10)
    np.testing.assert_allclose(model.predict_proba(frames[0]), segment_oracle.states(found, 6, 3), atol=1e-10)
    (best, _), rows = segment_oracle.best(found), model.segment(frames[0])
    assert [(s, e, z) for s, e, z, _ in best] == [(r["start"], r["end"], r["state"]) for r in rows]
    for t, row in enumerate(model.filter(frames[0])):
        past = segment_oracle.weights(*tables, log_obs[: t + 1], censored=True)
        np.testing.assert_allclose(row, segment_oracle.states(past, t + 1, 3)[t], atol=1e-10)


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
def test_labels_are_constraints(kind: str) -> None:
    """A known state has all the probability, in fit, prediction and likelihood; nothing known changes nothing."""
    frames, states = walks()
    x = observed(kind, frames)
    labels = [np.where(np.arange(len(y)) % 3 == 0, y, -1) for y in states]
    model = HMM(3, observations=kind, max_iter=10, smoothing=0.1, random_state=0).fit(x, labels=labels)  # type: ignore[arg-type]
    for p, y, path in zip(model.predict_proba(x, labels=labels), labels, model.predict(x, labels=labels), strict=True):
        known = y >= 0
        np.testing.assert_allclose(p[known, y[known]], 1.0)
        np.testing.assert_array_equal(path[known], y[known])
    assert model.score(x, labels=labels) < model.score(x)
    unknown = [np.full(len(y), -1) for y in states]
    assert model.score(x, labels=unknown) == model.score(x)
    if kind == "gaussian":
        mean = model.model_.parts().observation.mean.detach().numpy()  # type: ignore[attr-defined]
        np.testing.assert_allclose(mean, MEANS, atol=0.5)


def test_samples_come_from_the_model(fitted: Any) -> None:
    frames, states = fitted.sample(30, n_sequences=40, random_state=3)
    again, _ = fitted.sample(30, n_sequences=40, random_state=3)
    np.testing.assert_array_equal(np.concatenate(frames), np.concatenate(again))
    mean = fitted.model_.parts().observation.mean.detach().numpy()
    every, where = np.concatenate(frames), np.concatenate(states)
    for z in range(3):
        np.testing.assert_allclose(every[where == z].mean(0), mean[z], atol=0.25)
    single, path = fitted.sample(4)
    assert single.shape == (4, 2)
    assert path.shape == (4,)


def test_words_and_letters() -> None:
    model = HMM(2, observations="categorical", random_state=0, max_iter=30).fit(["ababab", "babab", "cab"])
    assert model.symbols_.tolist() == ["a", "b", "c"]
    drawn, _ = model.sample(5, n_sequences=2, random_state=0)
    assert set(np.concatenate(drawn)) <= {"a", "b", "c"}
    assert model.score(["abab"]) > model.score(["aabb"])
    numbers = HMM(2, observations="categorical", n_symbols=4, smoothing=0.1, random_state=0, max_iter=5)
    numbers.fit([[0, 1, -1, 1], np.array([[1], [0]])])
    assert np.isfinite(numbers.score([[3, 2]]))


def test_criteria_count_what_is_free() -> None:
    frames, _ = walks()
    num_frames = sum(map(len, frames))
    for model, free in (
        (HMM(3), 2 + 6 + 12),
        (HMM(3, tied_variance=True), 2 + 6 + 8),
        (HMM(3, rank=2), 2 + 5 + 12),
        (HMM(3, rank=7), 2 + 6 + 12),
        (HMM(3, forbidden=np.eye(3, dtype=bool)), 2 + 3 + 12),
        (HSMM(3, max_duration=1, durations="negative_binomial", self_transitions=True), 2 + 6 + 12),
        (HSMM(3, rank=2, max_duration=9), 2 + 3 + 12 + 3),
        (HSMM(3, max_duration=9), 2 + 3 + 12 + 3),
        (HSMM(3, max_duration=9, durations="categorical", self_transitions=True), 2 + 6 + 12 + 24),
        (HSMM(3, max_duration=9, durations="negative_binomial"), 2 + 3 + 12 + 6),
    ):
        model.set_params(max_iter=1, random_state=0, min_variance=1e-3).fit(frames)
        assert model.n_parameters() == free
        assert model.aic(frames) == pytest.approx(2 * free - 2 * model.score(frames))
        assert model.bic(frames) == pytest.approx(free * math.log(num_frames) - 2 * model.score(frames))


def test_the_model_inside_is_the_model(fitted: Any, tmp_path: Any) -> None:
    """`.model_` answers the same, and what it saves, too."""
    frames, _ = walks()
    batch = fitted.model_.batch([np.nan_to_num(frames[2])])
    assert isinstance(fitted.model_, torch.nn.Module)
    assert float(fitted.model_.log_likelihood(batch).detach()) == pytest.approx(fitted.score(np.nan_to_num(frames[2])))
    fitted.model_.save_pretrained(tmp_path)
    saved = type(fitted.model_).from_pretrained(tmp_path)
    assert float(saved.log_likelihood(saved.batch([np.nan_to_num(frames[2])])).detach()) == pytest.approx(
        fitted.score(np.nan_to_num(frames[2])), rel=1e-6
    )
    assert rankfold.estimators.HMM is HMM


def test_forbidden_moves_never_happen() -> None:
    frames, states = walks()
    forbidden = np.zeros((3, 3), bool)
    forbidden[0, 2] = forbidden[2, 1] = True
    model = HMM(3, forbidden=forbidden, smoothing=0.5, max_iter=8, random_state=0).fit(frames)
    dense = model.model_.parts().transition.to_dense().detach().numpy()
    assert (dense[forbidden] == 0).all()
    assert (dense[~forbidden] > 0).all()
    for path in model.predict(frames):
        assert not forbidden[path[:-1], path[1:]].any()
    assert len(states) == len(frames)


def test_the_k_best_paths(fitted: Any) -> None:
    """The best is that of `predict`; a list, or lengths, give one answer for each sequence."""
    frames, _ = walks()
    log_probs, paths = fitted.k_best(frames, 4)
    x, lengths = np.concatenate(frames), [len(x) for x in frames]
    stacked = fitted.k_best(x, 4, lengths)
    one, of_one = fitted.k_best(frames[0], 4)
    assert one.shape == (4,)
    np.testing.assert_array_equal(of_one, paths[0])
    for i, best in enumerate(fitted.predict(frames)):
        np.testing.assert_array_equal(paths[i][0], best)
        np.testing.assert_array_equal(stacked[1][i], paths[i])
        assert paths[i].shape == (4, lengths[i])
        assert len({tuple(path) for path in paths[i].tolist()}) == 4
        assert (np.diff(log_probs[i]) <= 0).all()
        for log_prob, path in zip(log_probs[i], paths[i], strict=True):
            # All else is impossible: what is left of the likelihood is this path's own (of segments, with its one
            # segmentation: no state follows itself).
            assert fitted.score(frames[i], labels=path) == pytest.approx(log_prob, abs=1e-9)
    with pytest.raises(rankfold.DomainError, match="k is 0"):
        fitted.k_best(frames, 0)


def test_fewer_than_k_paths() -> None:
    model = HMM(2, forbidden=[[False, False], [True, False]], start={"initial": [1.0, 0.0]}, max_iter=1, random_state=0)
    x = np.array([[0.0], [0.1], [3.0]])
    log_probs, paths = model.fit(x).k_best(x, 10)
    assert sorted(map(tuple, paths.tolist())) == [(0, 0, 0), (0, 0, 1), (0, 1, 1)]
    assert np.logaddexp.reduce(log_probs) == pytest.approx(model.score(x), rel=1e-12)
