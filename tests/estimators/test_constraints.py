"""A start and its constraints, losses, starts that collapse, and what a fit says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, HSMM
from rankfold.training import em
from rankfold.training.em import Counts
from tests.estimators.cases import observed, walks

FRAMES, STATES = walks()
FORBIDDEN = np.array([[False, False, True], [False, False, False], [True, False, False]])


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (HMM(3, forbidden=FORBIDDEN, start={"transition": np.full((3, 3), 1 / 3)}), r"\[0, 2\] is 0.333333.*forbidden"),
        (HSMM(3, max_duration=8, start={"transition": np.full((3, 3), 1 / 3)}), r"\[0, 0\] is 0.333.*its own state"),
        (HMM(3, min_variance=0.5, start={"variance": np.full((3, 2), 1e-3)}), r"\[0, 0\] is 0.001, but min_variance"),
        (HMM(3, tied_variance=True, min_variance=0.5, start={"variance": [9.0, 0.1]}), r"\[1\] is 0.1, but min_var"),
        (HMM(3, start={"mean": [["a", "b"]]}), "start.'mean'. is no array of numbers"),
        (
            HSMM(3, max_duration=8, durations="negative_binomial", start={"log_rate": np.zeros(3)}),
            "not below 0, but of negative binomial durations",
        ),
        (
            HSMM(3, rank=3, max_duration=8, start={"left": np.eye(3), "right": np.eye(3)}),
            "lead state 0 to itself alone",
        ),
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_start_keeps_the_constraints(model: Any, says: str) -> None:
    """What EM would have to step away from, downwards, is refused."""
    with pytest.raises(ValueError, match=says):
        model.set_params(random_state=0).fit(FRAMES)


def test_symbols_of_a_start_are_distributions() -> None:
    with pytest.raises(ValueError, match=r"start.'probability'. is no distribution"):
        HMM(2, observations="categorical", start={"probability": np.full((2, 3), 0.9)}).fit([[0, 1, 2, 1]])


def test_a_start_within_the_constraints_rises() -> None:
    table = np.where(FORBIDDEN, 0.0, 1.0)
    start = {"transition": table / table.sum(1, keepdims=True), "variance": np.full((3, 2), 2.0)}
    model = HMM(3, forbidden=FORBIDDEN, min_variance=0.3, start=start, random_state=0).fit(FRAMES)
    assert (np.diff(model.history_) >= -1e-9).all()
    assert model.converged_


def test_a_loss_is_never_convergence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that loses ends the fit before it, with a warning that has the value; nothing has converged."""
    original, calls = em.expect, []

    def losing(model: Any, groups: Any) -> Counts:
        counts = original(model, groups)
        calls.append(counts.log_likelihood)
        return counts._replace(log_likelihood=counts.log_likelihood - 700.0) if len(calls) == 4 else counts

    monkeypatch.setattr(em, "expect", losing)
    model = HMM(3, random_state=0)
    with pytest.warns(UserWarning, match=r"a step of EM lost 6\d\d.* nats .*after 3 steps, and has not converged"):
        model.fit(FRAMES)
    assert not model.converged_
    assert model.history_ == calls[:3]
    assert model.score(FRAMES) == pytest.approx(model.history_[-1], rel=1e-10)


def test_starts_that_collapse_are_passed_over() -> None:
    """Of several starts some collapse onto equal frames; the others go on. If all do, that is the error."""
    rng = np.random.default_rng(3)
    x = np.concatenate([np.zeros((12, 1)), rng.standard_normal((40, 1)) + 1])
    settings: dict[str, Any] = {"min_variance": 0.0, "init": "random", "max_iter": 30}
    single = []
    rng = np.random.default_rng(0)
    for _ in range(12):
        try:
            single.append(HMM(2, random_state=rng, **settings).fit(x).history_[-1])
        except ValueError as error:
            assert "went to 0" in str(error)  # noqa: PT017
            single.append(None)
    assert None in single
    survived = [value for value in single if value is not None]
    assert survived
    model = HMM(2, n_init=12, random_state=np.random.default_rng(0), **settings).fit(x)
    assert model.history_[-1] == pytest.approx(max(survived), rel=1e-12)
    with pytest.raises(ValueError, match="went to 0"):
        HMM(2, n_init=3, min_variance=0.0, random_state=0).fit(np.repeat([[0.0], [9.0]], 20, 0))


@pytest.mark.parametrize("kind", ["gaussian", "bernoulli", "categorical"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_float32_scores_what_em_says(kind: Any, offset: float) -> None:
    """Where EM has converged its last value is the model's score, to the last digit, far from 0 too."""
    x = observed(kind, FRAMES)
    x = [rows + offset for rows in x] if kind == "gaussian" else x
    for model in (
        HMM(3, observations=kind, max_iter=100, random_state=0, dtype="float32"),
        HSMM(3, observations=kind, max_duration=9, max_iter=100, random_state=0, dtype="float32"),
    ):
        model.fit(x)
        assert model.converged_
        assert str(model.model_.dtype) == "torch.float32"
        assert model.score(x) == pytest.approx(model.history_[-1], rel=1e-14)  # of sequences in another order
        assert (np.diff(model.history_) >= -1e-3).all()
