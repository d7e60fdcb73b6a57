"""Readers of frames: .npy, .npz, .csv, folders of them, piano rolls."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.hunt import mutate, mutate_arrays
from tests.hunt.case_files import Files
from tests.hunt.kind import Case
from tests.hunt.readers import Outcome, Reader

READ_FRAMES = "from rankfold.data.frame_files import read_frames"


def npy(array: Any) -> bytes:
    """The bytes of an .npy file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: Any) -> bytes:
    """The bytes of an .npz file."""
    return mutate_arrays.zipped({f"{name}.npy": npy(array) for name, array in arrays.items()})


@cache
def arrays() -> list[Any]:
    """Frames of several types, one with a missing row."""
    rng = np.random.default_rng(0)
    with_gap = rng.normal(size=(5, 3))
    with_gap[2] = np.nan
    return [rng.normal(size=(4, 2)).astype(np.float32), with_gap, rng.integers(0, 9, (6, 1)), rng.normal(size=(2, 3))]


class Npy(Reader):
    """One sequence."""

    name = "read npy"
    imports = READ_FRAMES
    expression = "read_frames(folder / 'a.npy', missing=case['missing'])"

    def seeds(self) -> list[Files]:
        return [{"a.npy": npy(x)} for x in arrays()]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"missing": rng.choice(("error", "row"))}

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return mutate_arrays.npy_bytes(rng, data)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        with io.BytesIO(files["a.npy"]) as stream:
            expected = np.load(stream, allow_pickle=False)
        return unlike(outcome.value.features, [expected], case["missing"])


def unlike(found: list[Any], expected: list[Any], missing: str = "error") -> str | None:
    """Whether sequences are others than expected; a row that is missing in part is missing with "row"."""
    if len(found) != len(expected):
        return f"another number of sequences: {len(found)}, not {len(expected)}"
    for x, y in zip(found, expected, strict=True):
        if x.shape != y.shape or x.ndim != 2 or 0 in x.shape:
            return f"another shape: {x.shape}, not {y.shape}"
        whole = np.isnan(x).all(1)
        if np.isnan(x[~whole]).any() or whole.all() or np.isinf(x).any():
            return "values that are not allowed"
        partly = np.isnan(np.asarray(y, dtype=np.float64)).any(1)
        if (whole != partly).any() or (missing == "error" and not np.isnan(y[whole]).all()):
            return "other rows are missing"
        if (x[~whole] != y[~whole]).any():
            return "other values"
    return None


class Npz(Reader):
    """Sequences by key, or stacked with lengths, labels, names and splits."""

    name = "read npz"
    imports = READ_FRAMES
    expression = "read_frames(folder / 'a.npz', split=case['split'])"
    bombs = ("npz",)

    def seeds(self) -> list[Files]:
        one, two, three, four = arrays()
        stacked = {"features": np.concatenate([two, four]), "lengths": np.array([5, 2])}
        more = {"labels": np.array([0, 1, 1, -1, 0, 2, 2]), "label_names": np.array(["a", "b", "c"]), "fps": 25.0}
        names = {"seq_id": np.array(["x", "y"]), "feature_names": np.array(["p", "q", "r"]), "split": np.array([0, 2])}
        made = [npz(first=two, second=four), npz(**stacked), npz(**stacked, **more), npz(**stacked, **more, **names)]
        return [{"a.npz": data} for data in (*made, npz(only=one), npz(features=three))]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"split": None}

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return mutate_arrays.npz_bytes(rng, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        held = np.load(io.BytesIO(files["a.npz"]), allow_pickle=False)
        frames = outcome.value
        if "features" not in held:
            return unlike(frames.features, [held[key] for key in held.files])
        together = [np.concatenate(frames.features)]
        if frames.labels is not None and not (np.concatenate(frames.labels) == held["labels"]).all():
            return "other labels"
        if "lengths" in held and frames.lengths != held["lengths"].tolist():
            return "other lengths"
        return unlike(together, [held["features"]])


class FrameFolder(Npz):
    """A folder of files of frames."""

    name = "read folder of frames"
    expression = "read_frames(folder)"

    def seeds(self) -> list[Files]:
        _, two, _, four = arrays()
        return [{"a.npz": npz(x=two), "b.npy": npy(four), "c.csv": csv(two), "notes.txt": b"?"}]

    def victims(self, files: Files) -> list[str]:
        return list(files)

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        if name.endswith(".npz"):
            return mutate_arrays.npz_bytes(rng, data, others)
        return mutate_arrays.npy_bytes(rng, data) if name.endswith(".npy") else mutate.bytes_of(rng, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return "a file that is not read spoiled the folder" if case["victim"] == "notes.txt" else None
        return None if len({x.shape[1] for x in outcome.value.features}) == 1 else "features of two widths"


def csv(array: Any) -> bytes:
    """Numbers, commas between."""
    return "".join(",".join(f"{x:.3f}" for x in row) + "\n" for row in array).encode()


class Csv(Reader):
    """A line a frame, a line of names first or not."""

    name = "read csv"
    imports = READ_FRAMES
    expression = "read_frames(folder / 'a.csv', missing='row')"

    def seeds(self) -> list[Files]:
        _, two, _, four = arrays()
        return [
            {"a.csv": csv(four)},
            {"a.csv": b"x,y,z\n" + csv(two)},
            {"a.csv": b"\xef\xbb\xbfa,b,c\r\n1,,2\r\n3,4,5\r\n"},
        ]

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        text = files.get("a.csv", b"\xff").decode("utf-8-sig", "replace")
        if outcome.error is not None or '"' in text:
            return None
        lines = re.split("\r\n|\r|\n", text)
        while not lines[-1].strip(" "):
            lines.pop()
        row = [float(field.strip() or "nan") for field in lines[-1].split(",")]
        if np.isnan(row).any():
            row = [np.nan] * len(row)
        last = outcome.value.features[0][-1]
        return (
            None if np.array_equal(last, row, equal_nan=True) else f"other values in the last line: {last}, not {row}"
        )


class PianoRolls(Reader):
    """Packed piano rolls."""

    name = "read piano rolls"
    imports = "from rankfold.data.music import read_piano_rolls"
    expression = "read_piano_rolls(folder / 'a.npz')"
    bombs = ("npz",)

    def seeds(self) -> list[Files]:
        rng = np.random.default_rng(1)
        bits = {
            f"{name}_bits": rng.integers(0, 256, (n, 11), dtype=np.uint8) for name, n in (("train", 7), ("test", 3))
        }
        lengths = {"train_lengths": np.array([4, 3]), "test_lengths": np.array([3])}
        return [
            {"a.npz": npz(**bits, **lengths)},
            {"a.npz": npz(test_bits=bits["test_bits"], test_lengths=np.array([1, 2]))},
        ]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return mutate_arrays.npz_bytes(rng, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        held = np.load(io.BytesIO(files["a.npz"]), allow_pickle=False)
        for name, pieces in outcome.value.splits.items():
            again = np.packbits(np.concatenate(pieces), axis=1)
            if not np.array_equal(again, held[f"{name}_bits"]):
                return f"other notes in {name}"
            if [len(piece) for piece in pieces] != held[f"{name}_lengths"].tolist():
                return f"other lengths in {name}"
        return None


ARRAY_KINDS = (Npy, Npz, FrameFolder, Csv, PianoRolls)
