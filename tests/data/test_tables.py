"""Tables to recordings: columns, groups, labels, splits by recording, and bad tables refused."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold import cli
from rankfold.data.tables import prepare_tables
from rankfold.errors import DataError
from rankfold.training.recordings import read_splits


def table(path: Path, num: int = 6) -> str:
    rows = [
        f"r{r},{r + t / 10},{t},{'walk' if t < 2 else 'sit' if t < 4 else ''}\n" for r in range(num) for t in range(5)
    ]
    path.write_text("who,x,y,what\n" + "".join(rows))
    return str(path)


def test_groups_are_recordings_with_labels(tmp_path: Path) -> None:
    path, out = table(tmp_path / "walks.csv"), tmp_path / "out"
    found = prepare_tables([path], out, group="who", label="what")
    assert (found.columns, found.labels) == (["x", "y"], ["walk", "sit"])
    assert found.recordings == {"train": 4, "valid": 1, "test": 1}
    splits = read_splits(out)
    names = [name for split in splits.values() for name in split.names]
    assert sorted(names) == [f"r{i}" for i in range(6)]
    for split in splits.values():
        assert split.label_names == ("walk", "sit")
        for name, x, y in zip(split.names, split.features, split.labels or (), strict=True):
            np.testing.assert_allclose(x[:, 0], int(name[1:]) + np.arange(5) / 10)
            assert y.tolist() == [0, 0, 1, 1, -1]


def test_columns_files_and_seeds(tmp_path: Path) -> None:
    paths = [table(tmp_path / f"{i}.csv", 1) for i in range(4)]
    prepare_tables(paths, tmp_path / "a", columns=["y"])
    assert {x for split in read_splits(tmp_path / "a").values() for x in split.names} == {"0", "1", "2", "3"}
    drawn = set()
    for seed in range(6):
        prepare_tables(paths, tmp_path / f"seed{seed}", columns=["y"], seed=seed)
        drawn.add(read_splits(tmp_path / f"seed{seed}")["test"].names[0])
    assert len(drawn) > 1
    single = prepare_tables(paths[:1], tmp_path / "one", columns=["y"])
    assert single.recordings == {"train": 1}
    assert "nothing is held out" in single.lines()[-1]


@pytest.mark.parametrize(
    ("content", "settings", "words"),
    [
        ("", {}, "the file is empty"),
        ("a,b\n", {}, "no rows"),
        ("a,b\n1,x\n", {}, "line 2, column b: 'x' is no number"),
        ("a,b\n1\n", {}, "line 2: 1 fields, but the first line has 2"),
        ("a,b\n1,2\n", {"columns": ["c"]}, "no column 'c'; there are a, b"),
        ("a,b\n1,2\n", {"group": "who"}, "no column 'who'"),
        ("a,b\n1,2\n", {"seed": -1}, "seed is -1"),
        ("who,b\nx,2\n,3\n", {"group": "who"}, "line 3, column who: empty"),
        ("who,b\nx,2\ny,3\nx,4\n", {"group": "who"}, "line 4, column who: 'x' comes back"),
    ],
)
def test_bad_tables_leave_nothing(content: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        prepare_tables([str(path)], tmp_path / "out", **settings)
    assert os.listdir(tmp_path) == ["t.csv"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = table(tmp_path / "walks.csv"), tmp_path / "out"
    given = ["data", "prepare", path, "--out", str(out), "--group", "who", "--label", "what"]
    assert cli.main(given) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "6 recordings by column who, seed 1: train 4 (20 frames), valid 1 (5 frames), test 1 (5 frames)",
        "2 labels in column what: walk, sit",
    ]
    assert cli.main(given) == 2
    assert "exists" in capsys.readouterr().err
    assert cli.main(["train", "--data", str(out), "--out", str(tmp_path / "run"), "--set", "train.updates=2"]) == 0
    assert "the 2 labels: segment-hmm, a Gaussian HMM of 2 states" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("a b.\n" * 30)
    assert cli.main(["data", "prepare", str(tmp_path / "a.txt"), "--out", str(tmp_path / "x"), "--label", "y"]) == 2
    assert cli.main(["data", "prepare", str(tmp_path / "a.txt"), path, "--out", str(tmp_path / "x")]) == 2


def test_another_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("y\n1\n")
    with pytest.raises(DataError, match="line 1: columns y, but"):
        prepare_tables([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")], tmp_path / "out")


def test_a_recording_in_two_files_is_refused(tmp_path: Path) -> None:
    paths = [table(tmp_path / f"{i}.csv", 1) for i in range(2)]
    with pytest.raises(DataError, match=r"1\.csv, line 2, column who: 'r0' comes back after rows of another"):
        prepare_tables(paths, tmp_path / "out", group="who", label="what")
