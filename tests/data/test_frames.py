"""Frames from memory: what comes in comes out, and what breaks a rule is named."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.data.frame_space import feature_scale
from rankfold.data.frames import ConstantFeature, frames_of
from rankfold.errors import DataError, DomainError

NAN = float("nan")
A, B = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 4.0]]), np.array([[0.0, 9.0]])


def test_a_list_and_one_array_with_lengths_are_the_same() -> None:
    listed = frames_of([A, B], labels=[[0, 1, 1], [2]])
    cut = frames_of(np.concatenate([A, B]), lengths=[3, 1], labels=np.array([0, 1, 1, 2], dtype=np.uint8))
    for frames in (listed, cut):
        assert [x.tolist() for x in frames] == [A.tolist(), B.tolist()]
        assert frames.labels is not None
        assert [y.tolist() for y in frames.labels] == [[0, 1, 1], [2]]
        assert (len(frames), frames.num_frames, frames.num_features, frames.num_labels) == (2, 4, 2, 3)
        assert frames.names == ["0", "1"]
        assert frames.lengths == [3, 1]


def test_nothing_given_is_written_to() -> None:
    given = np.array([[1.0, NAN], [1.0, 2.0]])
    frames_of([given], missing="row")
    assert given[0, 0] == 1.0


@pytest.mark.parametrize(
    ("given", "kept"),
    [("float32", "float32"), ("float64", "float64"), ("float16", "float32"), ("int64", "float64"), ("bool", "float64")],
)
def test_dtypes(given: str, kept: str) -> None:
    assert frames_of([A.astype(given)]).features[0].dtype == kept


def test_mixed_dtypes_become_the_wider() -> None:
    frames = frames_of([A.astype(np.float32), B])
    assert [x.dtype for x in frames] == [np.float64, np.float64]


def test_missing_frames_are_rows_of_nan() -> None:
    frames = frames_of([np.array([[1.0, 2.0], [NAN, NAN], [3.0, 1.0]])])
    assert (frames.num_missing, frames.num_partly_missing) == (1, 0)
    assert np.isnan(frames.features[0][1]).all()


def test_rows_missing_in_part_are_an_error_or_given_up() -> None:
    given = np.array([[1.0, 2.0], [NAN, NAN], [3.0, NAN]])
    with pytest.raises(
        DataError, match=r"sequence 'b', row 2: feature 1 is NaN(.|\n)*missing=\"row\", --missing row \(1 of 3"
    ):
        frames_of([A, given], names=["a", "b"])
    frames = frames_of([A, given], missing="row")
    assert (frames.num_missing, frames.num_partly_missing) == (2, 1)
    assert np.isnan(frames.features[1][2]).all()
    assert "missing frames: 2 (1 of them in part)" in str(frames)
    assert (frames.subset([1]).num_missing, frames.subset([0]).num_missing) == (2, 0)


@pytest.mark.parametrize(
    ("features", "named"),
    [
        ([A, np.ones((2, 3))], "sequence '1': 3 features, but sequence '0' has 2"),
        ([A, np.array([[1.0, 2.0], [np.inf, 0.0]])], "sequence '1', row 1: feature 0 is inf"),
        (
            [A, np.array([[1.0, 2.0], [0.0, -1e160]])],
            "sequence '1', row 1: feature 1 is -1e\\+160, of which float64 holds no sum of squares",
        ),
        ([np.array([[1.0], [-3.4e38]], np.float32)], "row 1: feature 0 is -3.4e\\+38, of which float32 holds no sum"),
        ([A, np.array([[1.0, -np.inf]])], "sequence '1', row 0: feature 1 is -inf"),
        ([np.full((4, 2), NAN)], "sequence '0': all 4 frames are missing"),
        ([], "no sequences"),
        ([np.ones((0, 2))], "is empty, of shape \\(0, 2\\)"),
        ([np.ones((2, 0))], "is empty, of shape \\(2, 0\\)"),
        ([np.array(3.0)], "a single number, 3.0"),
        (7, "a single number, 7"),
        (np.ones(3), r"an array of shape \(3,\)(.|\n)*x\[:, None\]"),
        ([np.array([["a", "b"]])], "and not numbers"),
        ([np.array([[1, None]], dtype=object)], "holds object"),
        ([np.ones((2, 2)) * 1j], "holds complex128"),
    ],
)
def test_bad_features(features: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        frames_of(features)


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ([[0, 1], [0]], r"sequence '0': labels of shape \(2,\) for 3 frames"),
        ([[0, 1, 0]], "labels of 1 sequences for 2"),
        ([[0, 1, 2], [0]], "sequence '0', row 2: the label is 2, but labels are from 0 to 1"),
        ([[0, 1, -2], [0]], "sequence '0', row 2: the label is -2"),
        ([[0.0, 1.0, 1.0], [0.0]], "labels are float64, but must be whole numbers"),
    ],
)
def test_bad_labels(labels: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        frames_of([A, B], labels=labels, label_names=["x", "y"])


def test_labels_may_be_unknown() -> None:
    frames = frames_of([A, B], labels=[[-1, 1, -1], [-1]])
    assert frames.num_labels == 2
    assert "2 labels; 3 frames without one" in str(frames)


@pytest.mark.parametrize(
    ("lengths", "named"),
    [([3, 2], "add up to 5, but there are 4"), ([4, 0], "at least 1"), ([1.5, 2.5], "whole numbers")],
)
def test_bad_lengths(lengths: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        frames_of(np.concatenate([A, B]), lengths=lengths)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(DataError, match="1 names for 2 sequences"):
        frames_of([A, B], names=["a"])
    with pytest.raises(DataError, match="3 names of features for 2"):
        frames_of([A, B], feature_names=["x", "y", "z"])
    with pytest.raises(DataError, match="lengths too"):
        frames_of([A, B], lengths=[3, 1])
    with pytest.raises(DomainError, match="'mean'"):
        frames_of([A], missing="mean")  # type: ignore[arg-type]


def test_splits() -> None:
    frames = frames_of([A, B, A], splits=["train", "test", "train"], names=["a", "b", "c"])
    assert frames.split("train").names == ["a", "c"]
    assert frames.split("test").features[0].tolist() == B.tolist()
    with pytest.raises(DataError, match=r"no split 'valid'.*train, test"):
        frames.split("valid")
    with pytest.raises(DataError, match="no splits"):
        frames_of([A]).split("train")


def test_constant_features_are_a_warning() -> None:
    frames = frames_of(
        [np.array([[1.0, 7.0], [2.0, 7.0]]), np.array([[NAN, NAN], [5.0, 7.0]])], feature_names=["x", "y"]
    )
    assert frames.constant == (ConstantFeature(1, "y", 7.0),)
    assert "warning: the same value in every frame: features 1 (y, 7)" in str(frames)
    assert frames.subset([1]).constant == (ConstantFeature(0, "x", 5.0), ConstantFeature(1, "y", 7.0))


@given(st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6))
def test_standardised_training_frames_have_mean_0_and_deviation_1(seed: int, centre: float) -> None:
    rng = np.random.default_rng(seed)
    arrays = [centre + 3 * rng.standard_normal((length, 3)) for length in (4, 1, 17)]
    arrays[2][5] = NAN
    train = frames_of(arrays)
    scale = feature_scale(train)
    done = np.concatenate(scale.apply(train).features)
    # Rounding of the values themselves: 1e6 in float64 has digits to 1e-10.
    np.testing.assert_allclose(np.nanmean(done, 0), 0, atol=1e-9)
    np.testing.assert_allclose(np.nanstd(done, 0), 1, rtol=1e-9)
    np.testing.assert_allclose(scale.undo(done), np.concatenate(arrays), rtol=1e-12, atol=1e-9)
    assert scale.num_frames == 21


def test_the_scale_is_that_of_the_training_set() -> None:
    scale = feature_scale(frames_of([np.array([[0.0, 0.1], [2.0, 0.1], [4.0, 0.1]], dtype=np.float32)]))
    other = scale.apply(frames_of([np.array([[2.0, 0.1], [NAN, NAN], [12.0, 3.1]], dtype=np.float32)]))
    deviation = np.sqrt(8 / 3)
    assert scale.scale.tolist() == [pytest.approx(deviation), 1.0]
    assert other.features[0].dtype == np.float32
    np.testing.assert_allclose(other.features[0], [[0, 0], [NAN, NAN], [10 / deviation, 3]], rtol=1e-6, atol=0)
    assert "never change: features 1 (unnamed)" in str(scale)
    assert other.constant == ()
    (constant,) = scale.apply(frames_of([np.array([[4.0, 0.1], [4.0, 0.2]])])).constant
    assert constant == (0, "unnamed", pytest.approx(2 / deviation))


def test_scales_are_refused() -> None:
    with pytest.raises(DataError, match="single frame"):
        feature_scale(frames_of([B]))
    with pytest.raises(DataError, match="3 features, but the scale has 2"):
        feature_scale(frames_of([A])).apply(frames_of([np.ones((2, 3))]))
