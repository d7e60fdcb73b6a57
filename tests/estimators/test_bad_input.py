"""What estimators refuse, before any work, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, HSMM
from rankfold.training.initialisation import kmeans
from tests.estimators.cases import walks

FRAMES, STATES = walks(3)
SHORT = [x[:5] for x in FRAMES]
INFINITE = [FRAMES[0], np.array([[0.0, 1.0], [np.inf, 2.0]])]
CASES: list[tuple[Any, Any, dict[str, Any], str]] = [
    (HMM(2), [np.zeros((3, 2)), np.zeros((3, 1))], {}, "sequence '1': 1 features, but"),
    (HMM(2), INFINITE, {}, "sequence '1', row 1: feature 0 is inf"),
    (HMM(2), [FRAMES[1], np.full((4, 2), np.nan)], {}, "sequence '1': all 4 frames are missing"),
    (HMM(2), FRAMES, {"labels": STATES}, "sequence '0', row .*: the label is 2, but labels are from 0 to 1"),
    (HMM(3), FRAMES, {"labels": [y[:-1] for y in STATES]}, "labels of shape"),
    (HMM(3), FRAMES, {"labels": STATES[:2]}, "labels of 2 sequences for 3"),
    (HSMM(2, max_duration=6), SHORT, {}, "max_duration is 6, but the longest sequence has 5 frames"),
    (HMM(2), [np.ones((9, 1))], {}, "feature 0 has the same value, 1, in every frame"),
    (HMM(2), [np.ones((1, 3))], {}, "a single frame"),
    (HMM(2), np.arange(6.0), {}, "Reshape your data"),
    (HMM(2), np.zeros((3, 10, 2)), {}, "are a list: list"),
    (HMM(2), FRAMES, {"lengths": [3]}, "a list of 3 arrays and lengths too"),
    (HMM(2), FRAMES[2], {"lengths": [3, 4]}, "the lengths add up to 7"),
    (HMM(2, missing="error"), FRAMES, {}, "sequence '1', row 2: feature 0 is NaN and others are not"),
    (HMM(2), FRAMES, {"algorithm": "viterbi"}, 'algorithm is .viterbi., but must be "em", "minibatch" or "sgd"'),
    (HMM(2), FRAMES, {"y": STATES}, "Labels of frames are labels="),
    (HMM(0), FRAMES, {}, "n_states is 0"),
    (HMM(2, observations="poison"), FRAMES, {}, "observations is 'poison'"),  # type: ignore[arg-type]
    (HMM(2, tol="small"), FRAMES, {}, "tol is 'small'"),  # type: ignore[arg-type]
    (HMM(2, smoothing=-1.0), FRAMES, {}, "smoothing is -1.0"),
    (HMM(2, rank=0), FRAMES, {}, "rank is 0"),
    (HMM(2), FRAMES[0], {"labels": [0] * len(FRAMES[0])}, "Labels of a single sequence are an array"),
    (HMM(2, input_driven="start"), FRAMES[0], {"inputs": FRAMES[0][:, 0]}, r"A single input is inputs\[:, None\]"),
    (
        HMM(2, observations=["gaussian", "poisson"]),
        FRAMES[0],
        {},
        "feature 1 is .* poisson in this column, whole numbers",
    ),
    (HMM(2, observations=["poisson", "gaussian"]), np.ones((9, 2)), {}, "feature 1 has the same value, 1"),
    (
        HMM(2, observations=["gaussian", "categorical"], emission_prior=[2.0, 3.0]),
        np.array([[0.5, 1.0], [2.0, 0.0]]),
        {},
        r"emission_prior has shape \(2,\), but where observations are a list it is one number",
    ),
    (
        HMM(2, observations="student_t", tied_variance=True),
        FRAMES,
        {},
        "student_t observations have variances for each",
    ),
    (HMM(2, observations="bernoulli"), FRAMES, {}, "sequence 0, row 0: feature 0 is .*are 0 or 1"),
    (HMM(2, observations="categorical"), "abba", {}, "one string came"),
    (HMM(2, observations="categorical"), [["a"], [1]], {}, "whole numbers for symbols and others strings"),
    (HMM(2, observations="categorical"), [[0.5, 1.0]], {}, "sequence 0, position 0: the symbol is 0.5"),
    (HMM(2, observations="categorical"), [[0.0, 1.0], [1.0, np.inf]], {}, "sequence 1, position 1: the symbol is inf"),
    (HMM(2, observations="categorical"), [[0.0, 1e19]], {}, "sequence 0, position 1: the symbol is 1e"),
    (HMM(2, observations="categorical"), [[0, -2]], {}, "sequence 0, position 1: the symbol is -2"),
    (HMM(2, observations="categorical"), [[0, 1], [-1, -1]], {}, "sequence 1: all 2 symbols are missing"),
    (HMM(2, observations="categorical", n_symbols=2), [[0, 2]], {}, "position 1: the symbol 2 is none of the 2"),
    (HMM(2, rank=1, forbidden=np.eye(2, dtype=bool)), FRAMES, {}, "forbidden transitions and a rank"),
    (HMM(2, forbidden=np.ones((2, 2), bool)), FRAMES, {}, "forbidden leaves state 0 no transition"),
    (HMM(2, forbidden=np.ones((3, 2), bool)), FRAMES, {}, r"forbidden has shape \(3, 2\)"),
    (HSMM(1, max_duration=3), FRAMES, {}, "n_states is 1 and no segment follows"),
    (HMM(2, start={"middles": 0}), FRAMES, {}, "start has 'middles', but a model of this kind has initial, transition"),
    (HMM(2, start={"mean": np.zeros(2)}), FRAMES, {}, r"start\['mean'\] has shape \(2,\), but \(2, 2\)"),
    (HMM(2, start={"transition": np.ones((2, 2))}), FRAMES, {}, "is no distribution"),
    (HMM(2, start={"variance": np.zeros((2, 2))}), FRAMES, {}, "not above 0"),
]


@pytest.mark.parametrize(("model", "x", "settings", "says"), CASES, ids=[case[3][:40] for case in CASES])
def test_refused(model: Any, x: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        model.fit(x, **settings)
    assert not hasattr(model, "model_")


def test_later_batches_may_be_shorter_than_segments() -> None:
    """The first call says how long segments may be; after it a short sequence is as good as in `score`."""
    model = HSMM(2, max_duration=6, random_state=0)
    long, short = np.random.default_rng(0).standard_normal((2, 40, 3)), np.zeros((4, 3))
    with pytest.raises(ValueError, match="max_duration is 6, but the longest sequence has 4"):
        HSMM(2, max_duration=6).partial_fit([short + np.arange(4)[:, None]])
    model.partial_fit(list(long))
    before = model.score([short])
    model.partial_fit([short])
    assert model.score([short]) != before


def test_questions_are_checked() -> None:
    model = HMM(2, max_iter=2, random_state=0)
    with pytest.raises(ValueError, match="not fitted yet"):
        model.score(FRAMES)
    model.fit(FRAMES)
    with pytest.raises(ValueError, match="X has 1 features, but HMM is expecting 2"):
        model.predict(np.zeros((4, 1)))
    with pytest.raises(ValueError, match="X has 1 features, but HMM is expecting 2"):
        model.partial_fit(FRAMES).partial_fit(np.zeros((4, 1)))
    with pytest.raises(ValueError, match=r"a frame is \[0.0, 0.0, 0.0\], but 2 finite features"):
        model.step(np.zeros(3))
    with pytest.raises(ValueError, match=r"a frame is \[1.0, inf\], but 2 finite features"):
        model.step([1.0, np.inf])
    with pytest.raises(ValueError, match="method is 'best'"):
        model.predict(FRAMES, method="best")  # type: ignore[arg-type]
    numbers = HMM(2, observations="categorical", max_iter=2, random_state=0).fit([[0, 1, -1, 1]])
    assert np.isfinite(numbers.step(-1)[0]).all()  # one that is missing, as it comes
    with pytest.raises(ValueError, match="sequence 0: all 2 symbols are missing"):
        numbers.score([[-1, -1]])
    letters = HMM(2, observations="categorical", max_iter=2, random_state=0).fit(["abab"])
    with pytest.raises(ValueError, match="the symbol 'x' is none of the 2"):
        letters.score(["abx"])


def test_impossible_sequences_say_what_to_do() -> None:
    labels = [np.repeat([0, 1], [8, 4])]
    with pytest.raises(ValueError, match=r"sequence 0 \(12 frames\) is impossible .*labels.*\n.*at most 4 frames"):
        HSMM(2, max_duration=4, random_state=0).fit([FRAMES[2][:12]], labels=labels)
    model = HMM(2, observations="categorical", max_iter=1, random_state=0, n_symbols=3)
    model.fit([[0, 1, 0, 1]], labels=[np.array([0, 1, 0, 1])])
    assert model.score_samples([[2, 2]]).tolist() == [-np.inf]
    with pytest.raises(ValueError, match=r"impossible under the model: .*\n.*smoothing above 0"):
        model.predict([[2, 2]])


def test_collapsed_variances_are_an_error_without_a_floor() -> None:
    x = np.concatenate([np.zeros((20, 1)), np.random.default_rng(0).standard_normal((20, 1)) + 9])
    with pytest.raises(ValueError, match=r"the variance of feature 0 in state \d went to 0"):
        HMM(2, min_variance=0.0, max_iter=20, random_state=0).fit(x)
    assert np.isfinite(HMM(2, max_iter=20, random_state=0).fit(x).score(x))


def test_kmeans_finds_far_groups_and_keeps_given_means() -> None:
    import torch

    x = torch.tensor([[0.0], [0.2], [10.0], [10.2], [99.0]]).double()
    found = kmeans(x, 3, np.random.default_rng(0)).flatten().sort().values
    torch.testing.assert_close(found, torch.tensor([0.1, 10.1, 99.0]).double())
    given = torch.tensor([[5.0]]).double()
    assert float(kmeans(x, 2, np.random.default_rng(0), fixed=given)[0]) == 5.0
    assert len(kmeans(torch.zeros(2, 1).double(), 3, np.random.default_rng(0))) == 3
