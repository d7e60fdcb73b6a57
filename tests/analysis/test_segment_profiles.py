"""Segments by state: durations, features and labels by hand."""

import numpy as np
import pytest

from rankfold.analysis.segment_profiles import segment_profiles
from rankfold.data.frames import frames_of
from rankfold.errors import ShapeError

STATES = [np.array([2, 2, 2, 0]), np.array([2, 0, 0, 2])]
FEATURES = [
    np.array([[1.0, 10.0], [3.0, 10.0], [np.nan, np.nan], [0.0, 5.0]]),
    np.array([[5.0, 10.0], [2.0, 7.0], [4.0, 6.0], [3.0, 10.0]]),
]


def test_states_by_hand() -> None:
    frames = frames_of(FEATURES, labels=[np.array([1, 1, 1, 0]), np.array([1, 0, 1, -1])])
    found = segment_profiles(STATES, frames, fps=2.0, label_names=["walk", "run"])
    assert (found.num_recordings, found.num_frames, found.num_segments, found.fps) == (2, 8, 4 + 1, 2.0)
    two, zero = found.states
    assert (two["state"], two["frames"], two["use"], two["segments"], two["label"]) == (2, 5, 5 / 8, 3, "run")
    assert (zero["state"], zero["frames"], zero["segments"], zero["label"]) == (0, 3, 2, "walk")
    assert two["duration"] == pytest.approx(
        {"mean": 5 / 3, "deviation": np.sqrt(8 / 9), "median": 1.0, "shortest": 1.0, "longest": 3.0}
    )
    assert two["features"][0] == pytest.approx({"mean": 3.0, "deviation": np.sqrt(2.0)})  # of 1, 3, 5, 3
    assert two["features"][1] == {"mean": 10.0, "deviation": 0.0}
    assert zero["features"][0] == pytest.approx({"mean": 2.0, "deviation": np.sqrt(8 / 3)})
    assert found.label_names == ["walk", "run"]
    assert found.confusion == [[0, 4], [2, 1]]  # the frame without a label is left out


def test_without_labels_and_all_missing() -> None:
    frames = frames_of([np.array([[1.0], [np.nan], [np.nan]])])
    found = segment_profiles([np.array([0, 1, 1])], frames)
    assert found.label_names is None
    assert found.confusion is None
    assert found.feature_names == ["feature 0"]
    assert found.states[0]["features"] == [{"mean": None, "deviation": None}]
    assert "label" not in found.states[0]


def test_symbols_are_counted() -> None:
    frames = frames_of([np.array([[3.0], [1.0], [3.0], [np.nan]])])
    (one,) = segment_profiles([np.zeros(4, dtype=np.int64)], frames, symbols=True).states
    assert one["symbols"] == [[3, 2 / 3], [1, 1 / 3]]
    with pytest.raises(ShapeError, match="one for each frame"):
        segment_profiles([np.zeros(3, dtype=np.int64)], frames)
