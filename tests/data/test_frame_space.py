"""What a model keeps of its training set: scale, smoothing, names; and that other sets are read alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.data.frame_space import FrameSpace, smooth_frames
from rankfold.data.frames import frames_of
from rankfold.errors import DataError, DomainError


def arrays(*lengths: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 3)) * [1.0, 10.0, 0.1] + [0.0, 1e6, 5.0] for n in lengths]


def by_hand(x: Any, num: int) -> Any:
    """The mean over the frames around each that are there; missing ones stay missing."""
    out = np.full_like(x, np.nan)
    for t in range(len(x)):
        if not np.isnan(x[t, 0]):
            out[t] = np.nanmean(x[max(0, t - num // 2) : t + num // 2 + 1], axis=0)
    return out


@pytest.mark.parametrize("num", [1, 3, 5, 17])
def test_smoothing_is_a_mean_over_neighbours(num: int) -> None:
    given = arrays(1, 2, 9, 40)
    given[3][[5, 6, 39]] = np.nan
    for found, x in zip(smooth_frames(frames_of(given), num), given, strict=True):
        np.testing.assert_allclose(found, by_hand(x, num), rtol=1e-12)


def test_a_window_has_a_middle() -> None:
    for num in (0, 2, -1):
        with pytest.raises(DomainError, match=f"smooth is {num}, but must be an odd number"):
            smooth_frames(frames_of(arrays(4)), num)


def test_the_training_set_is_the_scale_of_all() -> None:
    train, other = frames_of(arrays(30, 20)), frames_of(arrays(10, seed=1))
    space = FrameSpace.of(train)
    together = np.concatenate(space.apply(train).features)
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-8)
    np.testing.assert_allclose(together.std(0), 1, rtol=1e-8)
    every = np.concatenate(train.features)
    expected = (other.features[0] - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(space.apply(other).features[0], expected, atol=1e-6)
    np.testing.assert_allclose(space.undo(space.apply(other).features[0]), other.features[0], rtol=1e-9)
    assert space.log_volume(train) == pytest.approx(np.log(every.std(0)).sum())


def test_single_missing_features_have_no_say_in_scale_and_means() -> None:
    """Means, deviations and windows are those of the values that are there; the gaps stay."""
    given = arrays(30, 20)
    for x in given:
        x[np.random.default_rng(3).random(x.shape) < 0.3] = np.nan
    given[0][4] = np.nan
    train = frames_of(given, missing="feature")
    assert (train.num_missing, train.num_partly_missing) == (sum(int(np.isnan(x).all(1).sum()) for x in given), 0)
    assert train.num_gaps == sum(int((np.isnan(x).any(1) & ~np.isnan(x).all(1)).sum()) for x in given) > 10
    assert f"some features missing: {train.num_gaps}" in str(train)
    every = np.concatenate(given)
    space = FrameSpace.of(train)
    np.testing.assert_allclose(space.mean, np.nanmean(every, 0), rtol=1e-12)
    np.testing.assert_allclose(space.scale, np.nanstd(every, 0), rtol=1e-12)
    there = (~np.isnan(every)).sum(0) / (~np.isnan(every).all(1)).sum()
    assert space.log_volume(train) == pytest.approx((np.log(np.nanstd(every, 0)) * there).sum())
    for x, found in zip(given, smooth_frames(train, 3), strict=True):
        windows = np.stack([np.concatenate([np.full((1, 3), np.nan), x[:-1]]), x,
                            np.concatenate([x[1:], np.full((1, 3), np.nan)])])  # fmt: skip
        number = (~np.isnan(windows)).sum(0)
        expected = np.where(np.isnan(x), np.nan, np.nansum(windows, 0) / np.maximum(number, 1))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    gone = [x.copy() for x in given]
    for x in gone:
        x[:, 1] = np.nan
    with pytest.raises(DataError, match="feature 1 is missing in every frame"):
        FrameSpace.of(frames_of(gone, missing="feature"))


def test_a_single_frame_has_no_scale_of_its_own() -> None:
    given = arrays(12, 3)
    given[1][1:] = np.nan
    space = FrameSpace.of(frames_of(given[:1]), standardise="recording")
    with pytest.raises(DataError, match=r"recording 'b' has a single frame(.|\n)*data.standardise=\"train\""):
        space.apply(frames_of(given, names=["a", "b"]))


def test_each_recording_by_itself() -> None:
    space = FrameSpace.of(frames_of(arrays(30)), standardise="recording", smooth=3)
    for x in space.apply(frames_of(arrays(12, 25, seed=2))):
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-8)
        np.testing.assert_allclose(x.std(0), 1, rtol=1e-8)
    assert space.log_volume(frames_of(arrays(9))) is None


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    labels = [np.array([0, 1, -1, 1])]
    train = frames_of(arrays(4), labels=labels, label_names=["a", "b"], feature_names=["x", "y", "z"], fps=25)
    for space in (
        FrameSpace.of(train, labelled=True),
        FrameSpace.of(train, standardise="recording", smooth=3),
        FrameSpace.of(train, labelled=True, parts=3),
        FrameSpace(2),
    ):
        space.save(tmp_path / "frames.json")
        assert FrameSpace.load(tmp_path / "frames.json") == space
    assert [FrameSpace.of(train, labelled=True).label_of(z) for z in range(3)] == [0, 1, None]
    assert FrameSpace.of(train).label_of(0) is None
    assert FrameSpace.of(frames_of(arrays(4), labels=labels)).label_names == ("0", "1")


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", '{"features": 3}', '{"num_features": 3, "mean": [1, 2, 3]}', "{}", "[" * 100_000, "\xff"),
        '{"num_features": 3, "parts": 0}',
        *('{"num_features": "3"}', '{"num_features": 3, "smooth": 2}', '{"num_features": 3, "fps": -1}'),
        *('{"num_features": 1, "mean": ["a"], "scale": [1]}', '{"num_features": 1, "mean": [0], "scale": [0]}'),
    ],
)
def test_a_file_that_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "frames.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"frames.json: "):
        FrameSpace.load(tmp_path / "frames.json")


def test_other_features_are_refused() -> None:
    space = FrameSpace.of(frames_of(arrays(4), feature_names=["x", "y", "z"]))
    with pytest.raises(DataError, match=r"2 features, but the model was trained on 3"):
        space.apply(frames_of([np.ones((4, 2))]))
    with pytest.raises(DataError, match=r"feature 1 is called 'z', but 'y' where the model was trained"):
        space.apply(frames_of(arrays(4), feature_names=["x", "z", "y"]))
    assert len(space.apply(frames_of(arrays(4)))) == 1  # without names nothing can be said


def test_other_sets_are_smoothed_too() -> None:
    given = arrays(9, seed=3)
    space = FrameSpace.of(frames_of(arrays(30)), standardise="none", smooth=5)
    np.testing.assert_allclose(space.apply(frames_of(given)).features[0], by_hand(given[0], 5), rtol=1e-12)
    train = frames_of(arrays(30))
    together = FrameSpace.of(train, smooth=5).apply(train).features[0]
    np.testing.assert_allclose(together.std(0), 1, rtol=1e-8)  # the scale is that of smoothed frames
