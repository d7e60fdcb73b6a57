"""Parquet and Arrow tables: the frames, labels and errors of the same table in .csv."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold import cli
from rankfold.data.frame_files import read_frames
from rankfold.data.tables import prepare_tables
from rankfold.errors import DataError, UnsupportedError
from rankfold.training.recordings import read_splits

SUFFIXES = (".parquet", ".arrow", ".feather", ".stream.arrow")


def write(path: Path, columns: dict[str, Any]) -> Path:
    """A table as other programs write it: Parquet, Arrow's file or its stream, Feather."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra (arrow), and not installed here")
    from pyarrow import feather, parquet

    table = pyarrow.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    else:
        kind = pyarrow.ipc.new_stream if ".stream" in path.suffixes else pyarrow.ipc.new_file
        with kind(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


def test_frames_equal_those_of_a_csv(tmp_path: Path) -> None:
    x, y = [0.1, 2.5, None, 1e-7], [1, None, None, 4]
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(
        f"{'' if a is None else a},{'' if b is None else b}\n" for a, b in zip(x, y, strict=True)
    ))  # fmt: skip
    expected = read_frames(tmp_path / "a.csv", missing="feature")
    for suffix in SUFFIXES:
        found = read_frames(write(tmp_path / f"b{suffix}", {"x": x, "y": y}), missing="feature")
        np.testing.assert_array_equal(found.features[0], expected.features[0])
        assert found.feature_names == ("x", "y")
    with pytest.raises(DataError, match="feature 1 is NaN and others are not"):
        read_frames(tmp_path / "b.parquet")


def test_columns_become_recordings_with_labels(tmp_path: Path) -> None:
    num = 6
    who = [f"r{r}" for r in range(num) for _ in range(5)]
    table = {"who": who, "x": [int(w[1:]) + t / 7 for w, t in zip(who, [*range(5)] * num, strict=True)],
             "what": ["walk", "walk", "sit", None, "sit"] * num}  # fmt: skip
    for i, suffix in enumerate(SUFFIXES):
        out = tmp_path / f"out{i}"
        assert cli.main(["data", "prepare", str(write(tmp_path / f"t{suffix}", table)), "--out", str(out),
                         "--group", "who", "--label", "what"]) == 0  # fmt: skip
        found = read_splits(out)
        assert sum(len(split) for split in found.values()) == num
        for split in found.values():
            assert split.label_names == ("walk", "sit")
            for name, rows, labels in zip(split.names, split.features, split.labels or (), strict=True):
                np.testing.assert_array_equal(rows[:, 0], [int(name[1:]) + t / 7 for t in range(5)])
                assert labels.tolist() == [0, 0, 1, -1, 1]


def test_bad_tables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = write(tmp_path / "words.parquet", {"x": [1.0, 2.0], "who": ["anna", "bert"]})
    with pytest.raises(DataError, match=r"column 'who' holds string(.|\n)*--label"):
        read_frames(words)
    with pytest.raises(DataError, match=r"words\.parquet, row 1, column who: 'anna' is no number"):
        prepare_tables([str(words)], tmp_path / "out")
    with pytest.raises(DataError, match="empty"):
        read_frames(write(tmp_path / "none.arrow", {"x": np.zeros(0)}))
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"no table at all")
        with pytest.raises(DataError, match="cannot be read as a table"):
            read_frames(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'rankfold\[arrow\]'"):
        read_frames(words)
