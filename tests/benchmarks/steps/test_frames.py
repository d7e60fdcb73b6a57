"""Models of frames in the benchmark: the plain code, the sizes, the rows."""

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.checks import small_checks
from benchmarks.steps.command import _precisions, _table
from benchmarks.steps.row import Settings, measure_row
from benchmarks.steps.step import reference_gradients
from benchmarks.steps.tables import frame_cases
from rankfold.errors import UnsupportedError
from rankfold.models import build_model
from rankfold.models.config import FrameConfig

CPU = torch.device("cpu")
FAMILIES = ("hsmm", "lhsmm", "frame_hmm", "frame_lhmm")
CHOICES: list[dict[str, Any]] = [
    {},
    {"self_transitions": True, "normalised_durations": False, "tied_variance": True, "min_variance": 0.0},
    {"durations": "negative_binomial", "observations": "bernoulli"},
    {"durations": "categorical", "observations": "bernoulli", "neural": True, "feature_map": "positive"},
]


def case_of(family: Any, choices: dict[str, Any]) -> Case:
    config = FrameConfig(family=family, num_states=7, rank=3, num_features=4, max_duration=3, dim=8, **choices)
    return Case(config, batch=2, length=6).validate()


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_the_model(family: str, choices: dict[str, Any]) -> None:
    found = small_checks(case_of(family, choices), "float32", CPU)
    assert len(found) == 5
    assert all(check.error is not None and check.passed for check in found), [check.text() for check in found]


def test_frames_of_two_values_sum_to_one() -> None:
    """The reference by itself: all sequences of a length, where the end may not cut a segment."""
    config = FrameConfig(family="frame_lhmm", observations="bernoulli", num_states=3, rank=2, num_features=2)
    model = build_model(config).double()
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6).reshape(-1, 3, 2)
    batch = model.batch(list(every.double()))
    total = reference_gradients(model, batch).log_z.logsumexp(0)
    assert float(total) == pytest.approx(0.0, abs=1e-12)


def test_the_published_rows() -> None:
    rows = frame_cases()
    assert [case.published_ms for case in rows] == [512.9, 532.1, None, None, 1192.4, 1150.7]
    assert [case.published_mib for case in rows] == [276, 1384, None, None, 9362, 9308]
    assert [(case.batch, case.length) for case in rows] == [(1, 200)] * 4 + [(8, 128)] * 2
    assert [case.name for case in rows] == [
        "hsmm, 64 states, durations to 19, 300 gaussian",
        "lhsmm, 128 states, rank 128, durations to 19, 300 gaussian",
        "lhsmm, 1,024 states, rank 16, durations to 19, 300 gaussian",
        "lhsmm, 8,192 states, rank 64, durations to 19, 300 gaussian",
        "frame_hmm, 2,048 states, 88 bernoulli",
        "frame_lhmm, 2,048 states, rank 512, 88 bernoulli",
    ]
    assert all(case.config.may_repeat for case in rows if isinstance(case.config, FrameConfig))
    assert _table("frames", CPU) == rows
    assert _precisions(rows, torch.device("cuda")) == ("tf32",)
    for case in rows:
        tiny = shrink(case.validate()).config
        assert isinstance(tiny, FrameConfig)
        assert tiny.family == case.config.family
        assert tiny.num_states < 20


def test_a_row() -> None:
    case = case_of("lhsmm", {"self_transitions": True})
    record = measure_row(case, "float32", Settings(CPU, Ceilings(1e10, {"float32": 1e10}), repeats=2))
    assert record["passed"] is True
    assert record["ratio"] > 0
    assert (record["num_states"], record["rank"], record["max_duration"], record["num_features"]) == (7, 3, 3, 4)
    assert (record["num_words"], record["observations"], record["order"]) == (None, "gaussian", "state")
    hmm = measure_row(case_of("frame_hmm", {}), "float32", Settings(CPU, Ceilings(1e10, {"float32": 1e10}), repeats=2))
    assert hmm["passed"] is True
    assert (hmm["rank"], hmm["max_duration"]) == (None, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observations": "categorical"}, "no reference"),
        ({"neural": True}, "no reference"),
        ({"feature_dropout": 0.5}, "feature_dropout"),
    ],
)
def test_what_the_reference_does_not_know_is_refused(changes: dict[str, Any], words: str) -> None:
    config = FrameConfig(family="lhsmm", num_features=3)
    with pytest.raises(UnsupportedError, match=words):
        Case(dataclasses.replace(config, **changes)).validate()
