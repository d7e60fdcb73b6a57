"""Piano rolls: bits come back as keys, and other files are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.data.music import key_name, read_piano_rolls
from rankfold.errors import DataError, UnsupportedError

from .recordings import MUSIC, needs_music


def saved(path: Path, **changed: Any) -> tuple[Path, np.ndarray[Any, Any]]:
    roll = np.random.default_rng(0).random((10, 88)) < 0.1
    bits = np.packbits(roll, axis=1)
    keys = {"train_bits": bits[:6], "train_lengths": np.array([4, 2]), "test_bits": bits[6:], "test_lengths": [4]}
    np.savez(path, **{key: value for key, value in (keys | changed).items() if value is not None})
    return path, roll


def test_bits_are_keys(tmp_path: Path) -> None:
    path, roll = saved(tmp_path / "m.npz")
    rolls = read_piano_rolls(path)
    assert list(rolls.splits) == ["train", "test"]
    assert [piece.tolist() for piece in rolls["train"]] == [roll[:4].tolist(), roll[4:6].tolist()]
    assert rolls["test"][0].dtype == bool
    frames = rolls.frames("train")
    assert [x.tolist() for x in frames] == [roll[:4].tolist(), roll[4:6].tolist()]
    assert frames.features[0].dtype == np.float32
    assert frames.feature_names is not None
    assert frames.feature_names[39] == "C4"
    with pytest.raises(DataError, match="no split 'valid'; there are train, test"):
        rolls["valid"]


def test_names_of_keys() -> None:
    assert [key_name(k) for k in (0, 1, 2, 3, 39, 48, 87)] == ["A0", "A#0", "B0", "C1", "C4", "A4", "C8"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train_lengths": None}, "train_bits has no train_lengths"),
        ({"train_lengths": np.array([4, 3])}, "train_lengths add up to 7, but there are 6"),
        ({"train_lengths": np.array([6, 0])}, "at least 1"),
        ({"test_bits": np.zeros((4, 88), dtype=np.uint8)}, r"test_bits is uint8 of shape \(4, 88\)"),
        ({"test_bits": np.zeros((4, 11))}, "test_bits is float64"),
        ({"test_bits": np.zeros((0, 11), dtype=np.uint8)}, r"shape \(0, 11\)"),
        ({"train_bits": None, "test_bits": None}, "holds the keys train_lengths, test_lengths, but"),
    ],
)
def test_bad_files(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    path, _ = saved(tmp_path / "m.npz", **changed)
    with pytest.raises(DataError, match=named) as caught:
        read_piano_rolls(path)
    assert str(path) in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.npy").write_bytes(b"x")
    with pytest.raises(DataError, match=r"\.npz files"):
        read_piano_rolls(tmp_path / "m.npy")
    with pytest.raises(DataError, match="no such file"):
        read_piano_rolls(tmp_path / "gone.npz")
    for name in ("a.mid", "a.MIDI"):
        with pytest.raises(UnsupportedError, match=r"MIDI files are not read(.|\n)*piano roll"):
            read_piano_rolls(tmp_path / name)


@needs_music
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("jsb-chorales", [(229, 13_807, 3.898), (76, 4_602, 3.87), (77, 4_725, 3.887)]),
        ("piano-midi", [(87, 75_911, 3.044), (12, 8_540, 3.235), (25, 19_036, 2.945)]),
    ],
)
def test_real_music(name: str, rows: list[tuple[int, int, float]]) -> None:
    rolls = read_piano_rolls(MUSIC / f"{name}.npz")
    for pieces, (num_pieces, num_steps, notes) in zip(rolls.splits.values(), rows, strict=True):
        steps = np.concatenate(pieces)
        assert (len(pieces), len(steps)) == (num_pieces, num_steps)
        assert steps.sum() / len(steps) == pytest.approx(notes, abs=5e-4)  # the published figures have three digits


@needs_music
def test_constant_bernoullis_cost_what_is_published() -> None:
    """11.0945 nats a step on the training set: 88 coins with its own frequencies, which the figure smooths a little."""
    train = np.concatenate(read_piano_rolls(MUSIC / "jsb-chorales.npz")["train"])
    p = train.mean(0)
    p = p[p > 0]
    assert -(p * np.log(p) + (1 - p) * np.log1p(-p)).sum() == pytest.approx(11.0945, abs=0.005)
