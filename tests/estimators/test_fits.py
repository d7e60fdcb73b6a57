"""Fits that follow fits, gradient steps under priors and bounds, and how many numbers are free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DomainError, UnsupportedError
from rankfold.estimators import HMM, HSMM, BayesianHMM
from tests.estimators.cases import observed, walks

FRAMES, STATES = walks(4)


def parts(model: Any) -> dict[str, Any]:
    """The tables of a fitted model, as arrays."""
    found = model.model_.parts()
    tables = {"initial": found.log_initial.exp(), "transition": found.transition.to_dense()}
    if found.log_duration is not None:
        tables["durations"] = found.log_duration.exp()
    own = found.observation
    tables |= {name: getattr(own, name) for name in ("mean", "variance", "logit") if hasattr(own, name)}
    return {name: x.detach().numpy().astype(float) for name, x in tables.items()}


def log_prior(model: Any, x: list[Any]) -> float:
    """The prior as the page states it, in numpy."""
    found, smoothing = parts(model), model.smoothing
    total = smoothing * (np.log(found["initial"]).sum() + np.log(found["transition"][found["transition"] > 0]).sum())
    if "durations" in found and model.durations == "categorical":
        total += smoothing * np.log(found["durations"]).sum()
    if "logit" in found:
        total -= smoothing * (np.log1p(np.exp(-found["logit"])) + np.log1p(np.exp(found["logit"]))).sum()
    if "variance" in found and model.variance_prior:
        spread = np.nanvar(np.concatenate(x), 0)
        variance = np.broadcast_to(found["variance"], found["mean"].shape)
        total -= model.variance_prior / 2 * (np.log(variance) + spread / variance).sum()
    return float(total)


PENALISED: list[tuple[Any, str]] = [
    (HMM(3, smoothing=0.7, variance_prior=4.0), "gaussian"),
    (HMM(3, smoothing=0.7, variance_prior=4.0, tied_variance=True), "gaussian"),
    (HMM(3, smoothing=2.0, forbidden=np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], bool)), "gaussian"),
    (HMM(2, smoothing=1.5, observations="bernoulli"), "bernoulli"),
    (HSMM(3, max_duration=8, smoothing=0.5, durations="categorical"), "gaussian"),
]


@pytest.mark.parametrize(("model", "kind"), PENALISED, ids=repr)
def test_both_algorithms_maximise_one_objective(model: Any, kind: str) -> None:
    """The objective is the likelihood plus the stated prior; gradient steps come to where EM comes to."""
    x = observed(kind, FRAMES)
    kind_of = type(model)
    settings = model.get_params() | {"random_state": 0}
    em = kind_of(**settings | {"max_iter": 300, "tol": 1e-7}).fit(x)
    assert em.history_[-1] == pytest.approx(em.score(x) + log_prior(em, x), rel=1e-9)
    sgd = kind_of(**settings | {"max_iter": 40, "tol": None, "batch_size": 4}).fit(x, algorithm="sgd")
    assert max(sgd.history_) == pytest.approx(sgd.score(x) + log_prior(sgd, x), rel=1e-9)
    assert max(sgd.history_) == pytest.approx(em.history_[-1], abs=3.0)
    plain = kind_of(**settings | {"max_iter": 40, "tol": None, "smoothing": 0.0, "variance_prior": 0.0}).fit(
        x, algorithm="sgd"
    )
    assert plain.score(x) > sgd.score(x) + 1
    if model.smoothing and "transition" in (found := parts(sgd)):
        forbidden = np.zeros_like(found["transition"], bool) if model.forbidden is None else model.forbidden
        assert (found["transition"][forbidden] == 0).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradient_steps_keep_the_least_variance(dtype: Any) -> None:
    spread = np.nanvar(np.concatenate(FRAMES), 0)
    model = HMM(4, min_variance=0.4, max_iter=15, learning_rate=0.2, tol=None, random_state=0, dtype=dtype)
    variance = parts(model.fit(FRAMES, algorithm="sgd"))["variance"]
    assert (variance >= 0.4 * spread * (1 - 1e-5)).all()
    assert np.isclose(variance, 0.4 * spread, rtol=1e-5).any()


def test_gradient_steps_from_zeros_under_smoothing_are_refused() -> None:
    start = {"transition": np.eye(3)[[1, 2, 0]]}
    with pytest.raises(ValueError, match=r"start has no finite objective(.|\n)*never leave a 0"):
        HMM(3, start=start, smoothing=0.1, random_state=0).fit(FRAMES, algorithm="sgd")


@pytest.mark.parametrize("algorithm", ["em", "sgd"])
def test_partial_fit_goes_on_from_the_fit(algorithm: Any) -> None:
    model = HMM(3, max_iter=25, random_state=0).fit(FRAMES, algorithm=algorithm)
    before, steps = model.score(FRAMES), len(model.history_)
    model.partial_fit(FRAMES)
    assert model.score(FRAMES) >= before - 1e-6
    assert len(model.history_) == steps + 1
    assert model.history_[-1] == pytest.approx(before, rel=1e-10)
    model.partial_fit(FRAMES[0][:6])
    assert model.score(FRAMES) > before - 0.05 * abs(before)


def test_partial_fit_refuses_another_model() -> None:
    model = HMM(3, max_iter=3, random_state=0).fit(FRAMES)
    for changed in ({"n_states": 4}, {"rank": 2}, {"forbidden": np.eye(3, dtype=bool)}, {"observations": "bernoulli"}):
        before = {name: getattr(model, name) for name in changed}
        with pytest.raises(ValueError, match=r"but partial_fit goes on with a model of(.|\n)*Call fit"):
            model.set_params(**changed).partial_fit(FRAMES)
        model.set_params(**before)
    model.partial_fit(FRAMES)


def test_a_refit_leaves_nothing_behind() -> None:
    model = HMM(2, observations="categorical", max_iter=3, random_state=0).fit(["abab", "bbab"])
    model.set_params(observations="gaussian").fit(FRAMES)
    assert not hasattr(model, "symbols_")
    assert model.n_features_in_ == 2
    frames, _ = model.sample(5, random_state=0)
    assert frames.shape == (5, 2)
    fresh = HMM(2, max_iter=3, random_state=0).fit(FRAMES)
    assert model.score(FRAMES) == fresh.score(FRAMES)
    assert model.step(FRAMES[2][0])[0] == pytest.approx(fresh.step(FRAMES[2][0])[0])
    with pytest.raises(ValueError, match="max_iter"):
        model.set_params(max_iter=0).fit(FRAMES)
    assert model.score(FRAMES) == fresh.score(FRAMES)  # a refused fit changes nothing


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize(
    ("size", "rank"), [(2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (6, 3), (3, 5)]
)
def test_free_moves_are_the_dimension(size: int, rank: int, diagonal: bool) -> None:
    """The rank of the Jacobian of the matrix in all numbers of its factors, by differences in numpy."""
    rng = np.random.default_rng(size * 10 + rank)

    def matrix(logits: Any) -> Any:
        left, right = np.exp(logits).reshape(2, size, rank)
        product = (left / left.sum(1, keepdims=True)) @ (right / right.sum(0)).T
        if not diagonal:
            np.fill_diagonal(product, 0.0)
            product = product / product.sum(1, keepdims=True)
        return product.ravel()

    at, step = rng.standard_normal(2 * size * rank), 1e-5
    jacobian = [(matrix(at + step * e) - matrix(at - step * e)) / (2 * step) for e in np.eye(len(at))]
    free = int(np.linalg.matrix_rank(np.array(jacobian), tol=1e-7))
    x = np.random.default_rng(0).standard_normal((40, 1))
    settings: dict[str, Any] = {"rank": rank, "max_iter": 1, "random_state": 0}
    if diagonal:
        others = size - 1 + 2 * size
        model: Any = HMM(size, **settings).fit(x)
    else:
        others = size - 1 + 2 * size + size
        model = HSMM(size, max_duration=4, **settings).fit(x)
    assert model.n_parameters() == others + free


def runs(low: int, high: int, num: int = 4) -> tuple[list[Any], int]:
    """Sequences of six far runs each, of `low` to `high` frames, and how many there are."""
    rng = np.random.default_rng(1)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    states = [np.repeat(np.cumsum(rng.integers(1, 3, 6)) % 3, rng.integers(low, high, 6)) for _ in range(num)]
    return [centres[y] + 0.7 * rng.standard_normal((len(y), 2)) for y in states], 6 * num


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial", "categorical"])
@pytest.mark.parametrize(("low", "high", "chosen"), [(3, 15, 20), (15, 30, 40), (45, 60, 80)])
def test_the_longest_duration_is_found(low: int, high: int, chosen: int, kind: Any) -> None:
    x, number = runs(low, high)
    model = HSMM(3, durations=kind, max_iter=15, random_state=0).fit(x)
    assert model.model_.config.max_duration == chosen
    assert sum(map(len, model.segment(x))) == number
    assert HSMM(3, max_iter=2, random_state=0).fit([rows[:7] for rows in x]).model_.config.max_duration == 7


def test_a_longest_duration_that_cuts_is_said() -> None:
    """By the fit to such sequences, and by the segmentation of new ones; not where nothing is cut."""
    long, _ = runs(45, 60)
    short, _ = runs(3, 15)
    with pytest.warns(UserWarning, match=r"at most 20 frames(.|\n)*Raise max_duration"):
        HSMM(3, max_duration=20, max_iter=15, random_state=0).fit(long)
    model = HSMM(3, max_duration=20, max_iter=15, random_state=0).fit(short)
    model.segment(short)
    with pytest.warns(UserWarning, match=r"at most 20 frames(.|\n)*Raise max_duration and fit again"):
        model.segment([short[0], long[0]])


class Files:
    """Sequences that lie in files, a part read at a time; counts how often each was read."""

    def __init__(self, folder: Path, frames: list[Any], size: int) -> None:
        self.paths, self.read = [], 0
        for at in range(0, len(frames), size):
            self.paths.append(folder / f"{at}.npz")
            np.savez(self.paths[-1], *frames[at : at + size])

    def __iter__(self) -> Iterator[list[Any]]:
        for path in self.paths:
            self.read += 1
            with np.load(path) as opened:
                yield [opened[name] for name in opened.files]


@pytest.mark.parametrize(
    "model",
    [HMM(3, covariance_type="full"), HMM(3, rank=2), HMM(3, observations="student_t"), HSMM(3, max_duration=9)],
    ids=["full", "low rank", "t", "hsmm"],
)
def test_parts_from_files_are_one_fit(model: Any, tmp_path: Path) -> None:
    """Each step is that of all sequences in memory, given one start; no part is read more often than steps need."""
    frames = walks(6)[0]
    files = Files(tmp_path, frames, 2)
    assert len(files.paths) == 3
    begin = type(model)(**{**model.get_params(), "random_state": 0, "max_iter": 1, "tol": None}).fit(frames)
    common = {"start": begin.tables_, "min_variance": 0.0, "max_iter": 6, "tol": None, "random_state": 0}
    whole, some = (type(model)(**{**model.get_params(), **common}) for _ in range(2))
    whole.fit(frames)
    some.fit_parts(files)
    np.testing.assert_allclose(some.history_, whole.history_, rtol=1e-10)
    for name, table in whole.tables_.items():
        np.testing.assert_allclose(some.tables_[name], table, rtol=1e-6, atol=1e-9)
    assert files.read <= 1 + 3 * (6 + 1)  # the first, then all: once to count frames, and at each step
    for one in (whole, some):  # goes on from the last step, in the same way after both
        assert len(one.partial_fit(frames[:2]).history_) == 7
    np.testing.assert_allclose(some.history_, whole.history_, rtol=1e-10)
    np.testing.assert_allclose(some.score(frames), whole.score(frames), rtol=1e-6)


def test_parts_that_cannot_be_read_again_are_refused() -> None:
    with pytest.raises(DomainError, match=r"parts is a generator(.|\n)*begins anew"):
        HMM(2).fit_parts(x for x in [FRAMES])
    with pytest.raises(DomainError, match="parts is empty"):
        HMM(2).fit_parts([])
    with pytest.raises(UnsupportedError, match="BayesianHMM has no fit_parts"):
        BayesianHMM(2).fit_parts([FRAMES])
    with pytest.warns(UserWarning, match="EM has not converged"):
        HMM(3, max_iter=2, random_state=0).fit_parts([FRAMES[:3], FRAMES[3:]])
    with pytest.raises(ValueError, match="feature"):
        HMM(2, random_state=0).fit_parts([FRAMES, [np.ones((4, 1))]])
