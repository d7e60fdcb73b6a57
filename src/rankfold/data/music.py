"""Piano rolls: which of the 88 keys sound at each step of a piece.

The four polyphonic sets of Boulanger-Lewandowski, Bengio, Vincent 2012 (Nottingham, Piano-midi, MuseData, JSB chorales)
as stored bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frame_files import load_arrays
from rankfold.data.frames import Frames, frames_of
from rankfold.errors import DataError, UnsupportedError

NUM_KEYS = 88
LOWEST_MIDI = 21  # key 0 is A0
Roll = NDArray[np.bool_]  # "t 88"
_BYTES = NUM_KEYS // 8
_PITCHES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


@dataclass(frozen=True)
class PianoRolls:
    """The pieces of each split, each an array of truth values "t 88"."""

    splits: dict[str, list[Roll]]
    source: Path

    def __getitem__(self, split: str) -> list[Roll]:
        if split not in self.splits:
            raise DataError(f"{self.source}: no split {split!r}; there are {', '.join(self.splits)}.")
        return self.splits[split]

    def frames(self, split: str) -> Frames:
        """The pieces of a split as frames of zeros and ones, float32."""
        pieces: list[Any] = [piece.astype(np.float32) for piece in self[split]]
        names = [key_name(k) for k in range(NUM_KEYS)]
        return frames_of(pieces, feature_names=names, splits=[split] * len(pieces), source=self.source)

    @property
    def sha256(self) -> str:
        """Checksum of the splits, however a file packs them: names, lengths (int32), bits, in order of name."""
        digest = hashlib.sha256()
        for split, pieces in sorted(self.splits.items()):
            digest.update(split.encode())
            digest.update(np.array([len(piece) for piece in pieces], dtype="<i4").tobytes())
            digest.update(np.packbits(np.concatenate(pieces), axis=1).tobytes())
        return digest.hexdigest()

    def __str__(self) -> str:
        lines = [f"{'split':8}{'pieces':>8}{'steps':>10}{'notes a step':>14}"]
        for split, pieces in self.splits.items():
            steps, notes = sum(map(len, pieces)), sum(int(piece.sum()) for piece in pieces)
            lines.append(f"{split:8}{len(pieces):8,}{steps:10,}{notes / steps:14.3f}")
        return "\n".join(lines)


def key_name(key: int) -> str:
    """The name of a key: 0 is A0, 39 is C4 (middle C), 87 is C8."""
    octave, pitch = divmod(key + LOWEST_MIDI, 12)
    return f"{_PITCHES[pitch]}{octave - 1}"


def read_piano_rolls(path: str | Path) -> PianoRolls:
    """The piano rolls of a .npz: for each split `<split>_bits` "n 11" and `<split>_lengths`.

    Bits are uint8, 88 keys packed as numpy.packbits does along the last axis; lengths cut the steps into pieces.
    """
    path = Path(path)
    if path.suffix.lower() in (".mid", ".midi"):
        raise UnsupportedError(
            f"{path}: MIDI files are not read.\n  Convert it to a piano roll, an array of 0 and 1 with a row a step "
            "and 88 columns, lowest key first;\n  save it with numpy.save and read it with read_frames."
        )
    if not path.is_file():
        raise DataError(f"{path}: there is no such file.")
    if path.suffix.lower() != ".npz":
        raise DataError(f"{path}: piano rolls are read from .npz files with the keys <split>_bits and <split>_lengths.")
    return unpack_rolls(path)


def unpack_rolls(path: Path) -> PianoRolls:
    """The piano rolls of a .npz whose name may end otherwise."""
    arrays = load_arrays(path)
    names = [key.removesuffix("_bits") for key in arrays if key.endswith("_bits")]
    if not names:
        raise DataError(
            f"{path}: holds the keys {', '.join(arrays) or '(none)'}, but piano rolls have <split>_bits and "
            "<split>_lengths.\n  Frames of features are read by rankfold.data.frame_files.read_frames."
        )
    return PianoRolls({name: _pieces(path, name, arrays) for name in names}, path)


def _pieces(path: Path, split: str, arrays: dict[str, Any]) -> list[Roll]:
    bits, lengths = arrays[f"{split}_bits"], arrays.get(f"{split}_lengths")
    if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != _BYTES or not len(bits):
        raise DataError(
            f"{path}: {split}_bits is {bits.dtype} of shape {bits.shape}, but uint8 of shape (steps, {_BYTES}) was "
            f"expected:\n  {NUM_KEYS} keys, packed by numpy.packbits(roll, axis=1)."
        )
    if lengths is None:
        raise DataError(f"{path}: {split}_bits has no {split}_lengths beside it, the steps of each piece.")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
        raise DataError(f"{path}: {split}_lengths must be whole numbers of at least 1; {lengths.tolist()!r:.60} came.")
    if int(lengths.sum()) != len(bits):
        raise DataError(f"{path}: {split}_lengths add up to {int(lengths.sum()):,}, but there are {len(bits):,} steps.")
    return np.split(np.unpackbits(bits, axis=1).astype(bool), np.cumsum(lengths)[:-1])
