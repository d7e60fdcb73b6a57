"""The face that hmmlearn's users know: decode, fit_predict, verbose, warnings, lengths in place of y."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, HSMM
from tests.estimators.cases import walks

FRAMES, STATES = walks(3)
LENGTHS = [len(x) for x in FRAMES]
TOGETHER = np.concatenate(FRAMES)


def test_decode_has_the_form_of_its_input() -> None:
    """One array for stacked sequences, a list for a list; the log-probability is that of all together."""
    model = HMM(3, max_iter=5, random_state=0).fit(FRAMES)
    total, path = model.decode(TOGETHER, LENGTHS)
    totals, paths = model.decode(FRAMES)
    assert total == pytest.approx(totals, rel=1e-12)
    assert isinstance(paths, list)
    np.testing.assert_array_equal(path, np.concatenate(paths))
    np.testing.assert_array_equal(path, model.predict(TOGETHER, LENGTHS))
    assert total == pytest.approx(sum(model.decode(x)[0] for x in FRAMES), rel=1e-12)
    assert total < model.score(TOGETHER, LENGTHS)
    right, best = model.decode(FRAMES, method="posterior")
    expected = [x.max(1) for x in model.predict_proba(FRAMES)]
    assert right == pytest.approx(np.concatenate(expected).sum())
    np.testing.assert_array_equal(best[1], model.predict(FRAMES, method="posterior")[1])
    with pytest.raises(ValueError, match="method is 'map'"):
        model.decode(FRAMES, method="map")  # type: ignore[arg-type]


def test_decode_of_segments_and_of_labels() -> None:
    model = HSMM(3, max_duration=8, max_iter=5, random_state=0).fit(FRAMES)
    log_prob, path = model.decode(FRAMES[0])
    assert log_prob < model.score(FRAMES[0])
    np.testing.assert_array_equal(path, model.predict(FRAMES[0]))
    known = np.full(LENGTHS[0], -1)
    known[4] = (path[4] + 1) % 3
    other, constrained = model.decode(FRAMES[0], labels=known)
    assert other < log_prob
    assert constrained[4] == known[4]


def test_an_impossible_sequence_has_no_best_path() -> None:
    model = HMM.from_tables(initial=[1.0, 0.0], transition=np.eye(2), observations="poisson", rates=[[0.0], [3.0]])
    assert model.score(np.zeros((3, 1))) == 0.0
    assert model.score(np.array([[0.0], [2.0]])) == -np.inf
    with pytest.raises(ValueError, match=r"sequence 0 .2 frames. is impossible"):
        model.decode(np.array([[0.0], [2.0]]))


def test_fit_predict_is_both() -> None:
    made: dict[str, Any] = {"max_iter": 5, "random_state": 0}
    states = HMM(3, **made).fit_predict(TOGETHER, LENGTHS)
    np.testing.assert_array_equal(states, HMM(3, **made).fit(TOGETHER, LENGTHS).predict(TOGETHER, LENGTHS))
    listed = HMM(3, **made).fit_predict(FRAMES, labels=STATES)
    assert all((a == b).all() for a, b in zip(listed, STATES, strict=True))


def test_verbose_has_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    model = HMM(3, max_iter=4, tol=None, random_state=0, verbose=True).fit(FRAMES)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 4
    for i, (line, value) in enumerate(zip(lines, model.history_, strict=True)):
        number, shown, *gain = line.split()
        assert int(number) == i
        assert float(shown) == pytest.approx(value, abs=1e-5)
        assert not gain or re.fullmatch(r"\+\d+\.\d{6}", gain[0])
    HMM(3, max_iter=2, random_state=0).fit(FRAMES)
    assert capsys.readouterr().err == ""


def test_a_fit_that_was_cut_off_says_so() -> None:
    with pytest.warns(UserWarning, match="EM has not converged: the last of max_iter = 2 steps"):
        HMM(3, max_iter=2, random_state=0).fit(FRAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HMM(3, max_iter=2, tol=None, random_state=0).fit(FRAMES)
        HMM(3, max_iter=500, tol=1e-3, random_state=0).fit(FRAMES)


def test_too_little_data_says_so() -> None:
    x = np.random.default_rng(0).standard_normal((8, 3))
    with pytest.warns(UserWarning, match="too little data: 51 free parameters, but 24 numbers"):
        HMM(4, max_iter=1, tol=None, min_variance=0.1, covariance_type="full", random_state=0).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HMM(2, max_iter=1, tol=None, random_state=0).fit(TOGETHER)


def test_lengths_that_cannot_be_mistaken() -> None:
    """As the second argument of fit, score and decode; a target with an entry for each row is none."""
    model = HMM(3, max_iter=3, random_state=0).fit(TOGETHER, LENGTHS)
    assert model.history_ == HMM(3, max_iter=3, random_state=0).fit(FRAMES).history_
    assert model.score(TOGETHER, LENGTHS) == pytest.approx(model.score(FRAMES), rel=1e-12)
    target = np.zeros(len(TOGETHER), int)
    assert HMM(3, max_iter=3, random_state=0).fit(TOGETHER, target).history_ != model.history_
    with pytest.raises(ValueError, match="add up to"):
        model.decode(TOGETHER, [3, 4])


def test_names_of_hmmlearn_say_what_they_are_here() -> None:
    model = HMM(2)
    for there, here in {"startprob_": "initial_", "transmat_": "transition_", "covars_": "covariances_"}.items():
        with pytest.raises(AttributeError, match=f"{there} is {here} here"):
            setattr(model, there, np.ones(2))
        with pytest.raises(AttributeError, match=f"{there} is {here} here"):
            getattr(model, there)
        assert not hasattr(model, there)


@pytest.mark.parametrize(
    ("observations", "names", "options"),
    [
        ("student_t", ("means", "scales", "degrees"), {}),
        ("gamma", ("shapes", "rates"), {}),
        ("beta", ("alpha", "beta"), {}),
        ("exponential", ("rates",), {}),
        ("half_normal", ("deviations",), {}),
        ("log_normal", ("means", "covariances"), {}),
        ("zero_inflated_gamma", ("zeros", "shapes", "rates"), {}),
        ("von_mises", ("means", "concentrations"), {}),
        ("gaussian", ("means", "loadings", "noises"), {"covariance_type": "low_rank", "covariance_rank": 1}),
    ],
)
def test_every_table_is_an_attribute(observations: str, names: tuple[str, ...], options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).uniform(0.1, 0.9, (30, 2))
    model = HMM(2, observations=observations, max_iter=2, tol=None, random_state=0, **options).fit(x)
    tables = list(model.tables_.values())
    for name in names:
        found = getattr(model, f"{name}_")
        assert any(np.array_equal(found, table) for table in tables)
        setattr(model, f"{name}_", found * 1.25 if name not in ("means", "loadings", "zeros") else found + 0.125)
        assert not np.array_equal(getattr(model, f"{name}_"), found)
