"""Frames from files: every format gives what was saved, and every broken file is named with its row."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.data.frame_files import read_frames
from rankfold.data.frame_space import feature_scale
from rankfold.errors import DataError

from .recordings import SEGMENTATION, needs_recordings

A, B = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 4.5]]), np.array([[0.0, 9.0]])


def test_npy_npz_and_csv_agree(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", A)
    np.savez(tmp_path / "a.npz", A)
    (tmp_path / "a.csv").write_text("".join(f"{x},{y}\n" for x, y in A))
    for suffix in ("npy", "npz", "csv"):
        frames = read_frames(tmp_path / f"a.{suffix}")
        assert [x.tolist() for x in frames] == [A.tolist()]
        assert frames.source == tmp_path / f"a.{suffix}"


def test_arrays_of_an_npz_are_sequences(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", walk=A, run=B)
    frames = read_frames(tmp_path / "a.npz")
    assert frames.names == ["walk", "run"]
    assert [x.tolist() for x in frames] == [A.tolist(), B.tolist()]


def stacked(path: Path, **changed: Any) -> Path:
    keys: dict[str, Any] = {
        "features": np.concatenate([A, B, A]),
        "lengths": np.array([3, 1, 3]),
        "labels": np.array([0, 0, 1, 1, 0, 1, 1], dtype=np.uint8),
        "split": np.array([0, 1, 2], dtype=np.uint8),
        "seq_id": np.array(["p", "q", "r"]),
        "label_names": np.array(["sit", "walk"]),
        "feature_names": np.array(["x", "y"]),
        "fps": np.float32(10.0),
        "fold": np.array([1, 2, 3]),
    }
    np.savez(path, **{key: value for key, value in (keys | changed).items() if value is not None})
    return path


def test_stacked_frames(tmp_path: Path) -> None:
    frames = read_frames(stacked(tmp_path / "s.npz"))
    assert (frames.names, frames.lengths, frames.fps) == (["p", "q", "r"], [3, 1, 3], 10.0)
    assert (frames.label_names, frames.feature_names) == (("sit", "walk"), ("x", "y"))
    test = read_frames(tmp_path / "s.npz", split="test")
    assert test.names == ["r"]
    assert test.labels is not None
    assert test.labels[0].tolist() == [0, 1, 1]
    alone = read_frames(stacked(tmp_path / "t.npz", lengths=None, split=None, seq_id=None, labels=None, fps=None))
    assert (alone.lengths, alone.labels, alone.splits, alone.fps) == ([7], None, None, None)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lengths": np.array([3, 1])}, "lengths add up to 4, but there are 7"),
        ({"labels": np.array([0, 0, 2, 1, 0, 1, 1])}, "sequence 'p', row 2: the label is 2"),
        ({"labels": np.array([0, 0])}, "labels: the lengths add up to 7, but there are 2"),
        ({"split": np.array([0, 3, 1])}, "split holds 3"),
        ({"seq_id": np.array(["p"])}, "1 names for 3"),
        ({"fps": np.float32(0)}, "fps is 0"),
        ({"feature_names": np.array(["x"])}, "1 names of features for 2"),
        ({"features": np.array(1.0), "lengths": None}, "at least 1"),
    ],
)
def test_bad_stacked_frames(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    path = stacked(tmp_path / "s.npz", **changed)
    with pytest.raises(DataError, match=named) as caught:
        read_frames(path)
    assert str(path) in str(caught.value)


def test_csv_with_names_and_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffx, y\r\n1,2\r\n,\r\nnan,NaN\r\n 4e0 ,5\r\n\r\n".encode())
    frames = read_frames(path)
    assert frames.feature_names == ("x", "y")
    np.testing.assert_array_equal(frames.features[0], [[1, 2], [np.nan] * 2, [np.nan] * 2, [4, 5]])
    assert frames.num_missing == 2
    path.write_text("x,y\n1,2\n3,\n")
    with pytest.raises(DataError, match="line 3: feature 1 is NaN"):
        read_frames(path)
    assert read_frames(path, missing="row").num_partly_missing == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1,2\n3,walk\n", "line 2, column 2: 'walk' is no number(.|\n)*rankfold data prepare, --label"),
        ("x,1\n3,4\n", "line 1, column 1: 'x' is no number"),
        ("x,y\n1_000,4\n", "line 2, column 1: '1_000'"),
        ("1;2\n3;4\n4;5\n", "line 2, column 1: '3;4' is no number(.|\n)*commas"),
        ("1,2\n3\n", "line 2: has 1 fields, but the first line has 2"),
        ("x,y\n1,2,3\n", "line 2: has 3 fields"),
        ("1,2\n\n3,4\n", "line 2: is empty"),
        ("1,2\n3,inf\n", "line 2: feature 1 is inf"),
        ("x,y\n1,2\n3,1e999\n", "line 3: feature 1 is inf"),
        (",x,y\n0,1,2\n", "column 1 has none"),
        ("x,y\n", "names and no frames"),
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("nan,nan\n,\n", "all 2 frames are missing"),
        (b"\xff\xfe1", "UTF-8"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str | bytes, named: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=named) as caught:
        read_frames(path)
    assert str(path) in str(caught.value)


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("kind", ["object array", "object in npz", "pickle"])
def test_pickles_are_never_loaded(tmp_path: Path, kind: str) -> None:
    bomb = np.array([[_Bomb()]], dtype=object)
    path = tmp_path / ("a.npz" if kind == "object in npz" else "a.npy")
    if kind == "pickle":
        path.write_bytes(pickle.dumps(_Bomb()))
    elif kind == "object array":
        np.save(path, bomb, allow_pickle=True)
    else:
        np.savez(path, a=bomb)
    with pytest.raises(DataError, match="pickles are never loaded") as caught:
        read_frames(path)
    assert str(path) in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    for name, content, named in (
        ("a.npy", b"", "the file is empty"),
        ("a.npz", b"", "the file is empty"),
        ("a.npz", b"PK\x03\x04broken", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read"),
        ("a.mat", b"x", "not from '.mat'"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=named):
            read_frames(tmp_path / name)
    np.save(tmp_path / "n.npy", 3.5)
    with pytest.raises(DataError, match=r"n\.npy: is a single number, 3\.5"):
        read_frames(tmp_path / "n.npy")
    np.savez(tmp_path / "none.npz")
    with pytest.raises(DataError, match="holds no arrays"):
        read_frames(tmp_path / "none.npz")
    with pytest.raises(DataError, match="no such file"):
        read_frames(tmp_path / "gone.csv")


def test_folders(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", A)
    (tmp_path / "a.csv").write_text("0,9\n1,\n")
    np.savez(tmp_path / "c.npz", walk=A, run=B)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "sub.csv").mkdir()
    frames = read_frames(tmp_path, missing="row")
    assert frames.names == ["a", "b", "c/walk", "c/run"]
    assert frames.lengths == [2, 3, 3, 1]
    assert (frames.num_missing, frames.num_partly_missing) == (1, 1)
    np.save(tmp_path / "d.npy", np.ones((2, 3)))
    with pytest.raises(DataError, match=r"d\.npy: 3 features, but .*a\.csv has 2"):
        read_frames(tmp_path, missing="row")


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the folder holds nothing"):
        read_frames(tmp_path)
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(DataError, match=r"holds x\.txt"):
        read_frames(tmp_path)
    stacked(tmp_path / "a.npz", feature_names=None)
    stacked(tmp_path / "b.npz", feature_names=None, label_names=np.array(["walk", "sit"]))
    with pytest.raises(DataError, match=r"b\.npz: label_names are \('walk', 'sit'\)"):
        read_frames(tmp_path)
    stacked(tmp_path / "b.npz", feature_names=None, labels=None)
    with pytest.raises(DataError, match=r"one has labels"):
        read_frames(tmp_path)
    stacked(tmp_path / "b.npz", feature_names=None)
    frames = read_frames(tmp_path, split="valid")
    assert frames.names == ["a/q", "b/q"]


@needs_recordings
@pytest.mark.parametrize(
    ("name", "width", "counts", "fps"),
    [
        ("phone-watch-har-10hz", 32, {"train": (126, 14_684), "valid": (30, 3_166), "test": (28, 3_025)}, 10.0),
        ("50salads-mid", 18, {"train": (30, 9_807), "valid": (10, 3_265), "test": (10, 3_524)}, 1.0),
    ],
)
def test_real_recordings(name: str, width: int, counts: dict[str, tuple[int, int]], fps: float) -> None:
    frames = read_frames(SEGMENTATION / f"{name}.npz")
    assert (frames.num_features, frames.fps, frames.constant) == (width, fps, ())
    for split, count in counts.items():
        part = frames.split(split)
        assert (len(part), part.num_frames) == count
    scale = feature_scale(frames.split("train"))  # they were stored on that scale, in float32
    np.testing.assert_allclose(scale.mean, 0, atol=1e-7)
    np.testing.assert_allclose(scale.scale, 1, rtol=1e-7)


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3", "2019,2020,2021", "10,20,50", "100,200,300"])
def test_names_that_are_numbers_are_never_a_frame_without_a_word(tmp_path: Path, first: str) -> None:
    """A first line of whole numbers that may be names is refused; `header` decides."""
    path = tmp_path / "a.csv"
    path.write_text(f"{first}\n0.5,1,-2\n3,4,5.5\n")
    with pytest.raises(DataError, match=rf"a\.csv, line 1: '{first}' may be names(.|\n)*--header yes or no") as caught:
        read_frames(path)
    assert "data.header" in str(caught.value)
    named, plain = (read_frames(path, header=said) for said in ("yes", "no"))
    assert named.feature_names == tuple(first.split(","))
    assert named.lengths == [2]
    assert plain.feature_names is None
    np.testing.assert_array_equal(plain.features[0][0], [float(x) for x in first.split(",")])
    assert read_frames(tmp_path, header="no").lengths == [3]


@pytest.mark.parametrize(
    "text", ["0.0,1.0\n0.5,2\n", "0,0\n0.5,2\n", "3,1\n4,5\n", "-1,2\n0.5,1\n", "4\n1\n2\n", "1e0,2\n3,4\n"]
)
def test_a_first_frame_is_a_frame(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert read_frames(tmp_path / "a.csv").lengths == [text.count("\n")]
    with pytest.raises(ValueError, match="header is 'maybe'"):
        read_frames(tmp_path / "a.csv", header="maybe")  # type: ignore[arg-type]


def test_whole_numbers_in_a_row_may_be_names_of_whole_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,1\n5,3\n2,2\n")
    with pytest.raises(DataError, match="may be names"):
        read_frames(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("key", "value"),
    [("label_names", "a"), ("seq_id", [["a"]]), ("feature_names", 3), ("fps", "fast"), ("fps", [1, 2]), ("fps", b"1")],
)
def test_what_stands_beside_the_features_has_its_form(key: str, value: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=np.zeros((2, 1)), labels=np.zeros(2, int), **{key: np.array(value)})
    with pytest.raises(DataError, match=rf"a.npz: {key} "):
        read_frames(tmp_path / "a.npz")


def test_arrays_in_the_order_of_fortran_and_of_other_machines(tmp_path: Path) -> None:
    expected = np.arange(12.0).reshape(4, 3)
    for i, array in enumerate((np.asfortranarray(expected), expected.astype(">f8"), expected.astype(">i2"))):
        np.save(tmp_path / f"{i}.npy", array)
        np.savez_compressed(tmp_path / f"{i}.npz", features=array)
        for suffix in ("npy", "npz"):
            assert np.array_equal(read_frames(tmp_path / f"{i}.{suffix}").features[0], expected)
