"""The face that scikit-learn sees: its own checks, copies, pipelines, searches. It is not needed for anything else."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from rankfold.estimators import HMM, HSMM
from tests.estimators.cases import walks

NOT_FOR_SEQUENCES = {
    "check_methods_sample_order_invariance": "rows are frames of one sequence: their order is what is modelled",
    "check_methods_subset_invariance": "rows are frames of one sequence: neighbours matter",
    "check_sample_weights_not_overwritten": "a sequence has one weight: rows of other weights are refused",
    "check_sample_weight_equivalence_on_dense_data": "a sequence has one weight: rows of other weights are refused",
}


@pytest.mark.parametrize(
    "estimator",
    [
        HMM(2, max_iter=3, random_state=0),
        HMM(3, rank=2, max_iter=3, random_state=0),
        HSMM(2, max_duration=2, max_iter=3, random_state=0),
        HSMM(2, max_iter=3, random_state=0),
    ],
    ids=repr,
)
def test_passes_the_checks_that_apply(estimator: Any) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: of checks that are skipped or expected to fail
        found = checks.check_estimator(estimator, expected_failed_checks=NOT_FOR_SEQUENCES, on_fail=None, on_skip=None)
    assert [(x["check_name"], repr(x["exception"])) for x in found if x["status"] == "failed"] == []
    assert sum(x["status"] == "passed" for x in found) > 30


def test_pipeline_clone_and_search() -> None:
    pipeline = pytest.importorskip("sklearn.pipeline")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.preprocessing import StandardScaler

    x = np.nan_to_num(np.concatenate(walks()[0]))
    model = pipeline.make_pipeline(StandardScaler(), HMM(3, max_iter=5, random_state=0))
    path = model.fit(x).predict(x)
    assert path.shape == (len(x),)
    scaled = HMM(3, max_iter=5, random_state=0).fit(StandardScaler().fit_transform(x))
    assert model.score(x) == pytest.approx(scaled.score(StandardScaler().fit_transform(x)), rel=1e-12)
    copy = clone(model)
    assert not hasattr(copy[-1], "model_")
    assert copy[-1].get_params() == model[-1].get_params()
    search = GridSearchCV(HMM(max_iter=5, random_state=0), {"n_states": [1, 3]}, cv=KFold(3)).fit(x)
    assert search.best_params_ == {"n_states": 3}


def test_needs_no_scikit_learn() -> None:
    """Fit and ask in a process in which scikit-learn cannot be imported."""
    code = (
        "import sys; sys.modules['sklearn'] = sys.modules['scipy'] = sys.modules['hmmlearn'] = None\n"
        "import numpy as np\n"
        "from rankfold.estimators import HMM\n"
        "x = np.random.default_rng(0).standard_normal((30, 2))\n"
        "model = HMM(2, max_iter=2)\n"
        "try:\n    model.predict(x)\nexcept ValueError as error:\n    assert 'not fitted' in str(error)\n"
        "print(repr(model), model.fit(x).predict(x).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "HMM(max_iter=2) (30,)"


def test_parameters_are_named() -> None:
    model = HSMM(3, max_duration=4)
    assert model.set_params(max_duration=7).max_duration == 7
    with pytest.raises(ValueError, match="Invalid parameter 'num_states'"):
        model.set_params(num_states=3)


@pytest.fixture
def routing() -> Any:
    sklearn = pytest.importorskip("sklearn")
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_searches_route_metadata(routing: None) -> None:
    from sklearn.base import clone
    from sklearn.model_selection import KFold, cross_validate

    x = np.nan_to_num(np.concatenate(walks()[0]))
    labels = np.where(np.arange(len(x)) % 3 == 0, 0, -1)
    asked = HMM(2, max_iter=3, random_state=0).set_fit_request(labels=True).set_score_request(labels=False)
    assert clone(asked).get_metadata_routing().fit.requests["labels"] is True
    found = cross_validate(asked, x, params={"labels": labels}, cv=KFold(2), return_estimator=True)
    for model, (rows, _) in zip(found["estimator"], KFold(2).split(x), strict=True):
        own = HMM(2, max_iter=3, random_state=0).fit(x[rows], labels=labels[rows])
        assert np.array_equal(model.means_, own.means_)
        assert not np.allclose(model.means_, HMM(2, max_iter=3, random_state=0).fit(x[rows]).means_)


def test_requests_that_nothing_could_answer(routing: None) -> None:
    with pytest.raises(TypeError, match=r"'weights', but HMM\.fit has lengths, labels, inputs, sample_weight"):
        HMM(2).set_fit_request(weights=True)


def test_requests_need_routing() -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(RuntimeError, match=r"set_config\(enable_metadata_routing=True\)"):
        HMM(2).set_fit_request(labels=True)


class Indexed(np.ndarray):
    """An array with an index, as a table of pandas has."""

    index: Any


def test_segments_have_the_labels_of_an_index() -> None:
    x = np.concatenate([np.zeros((30, 1)), np.full((20, 1), 9.0), np.zeros((10, 1))])
    x += np.random.default_rng(0).normal(size=x.shape)
    times = np.datetime64("2026-01-01T00:00:00") + np.arange(60)
    table = x.view(Indexed)
    table.index = times
    model = HMM(2, random_state=0).fit(x)
    found, plain = model.segment(table), model.segment(x)
    assert found.dtype.names == (*plain.dtype.names, "first", "last")
    assert found[list(plain.dtype.names)].tolist() == plain.tolist()
    assert found["first"].tolist() == times[[0, 30, 50]].tolist()
    assert found["last"].tolist() == times[[29, 49, 59]].tolist()
    (both, second) = model.segment([table, x])
    assert both["last"][-1] == times[-1]
    assert "first" not in second.dtype.names
