"""CrossTask's folder, small and made up: splits, labels, components, what is wrong with it, and a run of a recipe."""

from pathlib import Path

import numpy as np
import pytest

import rankfold
from benchmarks.__main__ import main
from rankfold.data.crosstask import read_crosstask, write_npz
from rankfold.data.frame_files import read_frames
from rankfold.errors import DataError
from rankfold.training.recipes import load_recipe

GROUPS = (4, 6, 2)
TASKS = """16815
Grill Steak
http://example.org/1
2
season steak,flip steak

23521
Make Jello Shots
http://example.org/2
3
pour water,stir,pour jello powder

"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks, eight videos of seven seconds, two of them held out; a video of a related task besides."""
    rng = np.random.default_rng(0)
    for name in ("annotations", "features"):
        (tmp_path / name).mkdir()
    (tmp_path / "tasks_primary.txt").write_text(TASKS)
    rows = [("16815", f"a{i}") for i in range(4)] + [("23521", f"b{i}") for i in range(4)]
    lines = [f"{task},{video},http://example.org/{video}\n" for task, video in rows]
    (tmp_path / "videos.csv").write_text("".join(lines) + "99999,related,http://example.org/r\n")
    (tmp_path / "videos_val.csv").write_text(lines[3] + lines[7])
    for task, video in rows:
        np.save(tmp_path / "features" / f"{video}.npy", rng.normal(size=(7, sum(GROUPS))).astype(np.float32))
        # Seconds 1 and 2 are step 1, 2 (from 2.5) to 4 step 2; the second line takes what the first has left.
        (tmp_path / "annotations" / f"{task}_{video}.csv").write_text("1,1.0,2.4\n2,2.5,4.2\n")
    return tmp_path


def test_labels_and_splits(folder: Path) -> None:
    frames = read_crosstask(folder, groups=GROUPS, components=3)
    assert frames.label_names == (
        "background",
        "Grill Steak: season steak",
        "Grill Steak: flip steak",
        "Make Jello Shots: pour water",
        "Make Jello Shots: stir",
        "Make Jello Shots: pour jello powder",
    )
    assert frames.labels is not None
    own = dict(zip(frames.names, (x.tolist() for x in frames.labels), strict=True))
    assert own["16815_a0"] == [0, 1, 1, 2, 2, 0, 0]
    assert own["23521_b2"] == [0, 3, 3, 4, 4, 0, 0]
    assert frames.splits is not None
    by_name = dict(zip(frames.names, frames.splits, strict=True))
    assert [name for name, split in by_name.items() if split == "test"] == ["16815_a3", "23521_b3"]
    assert sorted(by_name.values()).count("valid") == 1
    assert "99999_related" not in by_name
    assert read_crosstask(folder, groups=GROUPS, components=3, seed=1).splits != frames.splits


def test_components_are_those_of_the_training_frames(folder: Path) -> None:
    frames = read_crosstask(folder, groups=GROUPS, components=3)
    assert frames.num_features == 3 + 3 + 2
    assert frames.splits is not None
    train = np.concatenate([x for x, split in zip(frames.features, frames.splits, strict=True) if split == "train"])
    assert np.abs(train.mean(0)).max() < 1e-6
    for part in (train[:, :3], train[:, 3:6], train[:, 6:]):
        spread = part.T @ part / len(part)
        assert np.abs(spread - np.diag(np.diag(spread))).max() < 1e-6  # float32
        assert (np.diff(np.diag(spread)) <= 0).all()
    whole = read_crosstask(folder, groups=GROUPS, components=6)  # all of them: a rotation, distances stay
    raw = np.load(folder / "features" / "a0.npy")
    found = whole.features[whole.names.index("16815_a0")]
    assert np.allclose(np.linalg.norm(found[0] - found[1]), np.linalg.norm(raw[0] - raw[1]), rtol=1e-5)


def test_the_file_is_read_again_as_it_was(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "crosstask.npz"
    given = ["crosstask", str(folder), "--groups", *map(str, GROUPS), "--components", "2", "--out", str(out)]
    assert main(given) == 0
    assert "test: 2 videos, 14 frames, 7.0 frames per video" in capsys.readouterr().out
    frames, again = read_crosstask(folder, groups=GROUPS, components=2), read_frames(out)
    assert again.label_names == frames.label_names
    assert again.splits == frames.splits
    assert again.labels is not None
    assert frames.labels is not None
    assert all(map(np.array_equal, again.features, frames.features))
    assert all(map(np.array_equal, again.labels, frames.labels))


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("annotations/16815_a0.csv", "3,1,2\n", r"a0.csv, line 1.*steps are 1 to 2"),
        ("annotations/16815_a0.csv", "1,2,2\n", r"a start before its end"),
        ("annotations/16815_a0.csv", "1,2\n", r"step,start,end was expected"),
        ("videos.csv", "16815,a0\n", r"videos.csv, line 1.*task,video,address"),
        ("tasks_primary.txt", "16815\nGrill\nhttp\n3\na,b\n\n", r"block 1.*as many steps"),
        ("tasks_primary.txt", "", r"holds no task"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, file: str, text: str, words: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=f"(?s){words}"):
        read_crosstask(folder, groups=GROUPS)


def test_features_that_are_missing_or_of_another_width(folder: Path) -> None:
    with pytest.raises(DataError, match="a row per second of 3200 columns"):
        read_crosstask(folder)
    (folder / "features" / "a1.npy").unlink()
    with pytest.raises(DataError, match=r"neither a1.npy nor 16815_a1.npy"):
        read_crosstask(folder, groups=GROUPS)
    (folder / "annotations" / "16815_a0.csv").unlink()
    with pytest.raises(DataError, match="published folder"):
        read_crosstask(folder, groups=GROUPS)


@pytest.mark.parametrize("recipe", ["hsmm-64-crosstask", "lhsmm-1024-16-crosstask"])
def test_a_recipe_trains_on_it(folder: Path, recipe: str) -> None:
    write_npz(read_crosstask(folder, groups=GROUPS, components=3), folder / "crosstask.npz")
    settings = [
        "model.num_states=6",
        "model.rank=2",
        "model.dim=4",
        "model.max_duration=4",
        "train.updates=3",
        "train.evaluate_every=1",
    ]
    settings = settings if recipe.startswith("l") else [x for x in settings if "rank" not in x]
    result = rankfold.train(recipe, folder / "crosstask.npz", folder / "run", settings=settings, quiet=True)
    assert result.finished
    assert result.test is not None
    config = load_recipe(recipe)
    assert config.model.num_states == int(recipe.split("-")[1])  # type: ignore[union-attr]
