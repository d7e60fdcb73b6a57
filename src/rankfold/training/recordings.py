"""Recordings, read for a run: frames on one scale, batches of every epoch, long ones in windows.

Batches are of whole recordings, or ("streams") groups of `num_streams` recordings of like lengths, each cut into as
many windows of at most `window` frames as the longest needs: all rows of a group start and end together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.data.batch import (
    Batch,
    epoch_generator,
    frame_batch,
    length_batches,
    symbol_batch,
)
from rankfold.data.frame_files import SPLITS, SUFFIXES, Header, load_arrays, read_frames
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import UNKNOWN, Frames, Missing
from rankfold.data.music import read_piano_rolls
from rankfold.errors import DataError, quantity
from rankfold.models.config import FrameConfig
from rankfold.training.config import DataConfig
from rankfold.training.corpus import cut_rows
from rankfold.training.in_memory import frame_splits, is_in_memory, name_data


@dataclass(frozen=True)
class Recordings:
    """The splits of a set of recordings, on the scale of the training set."""

    space: FrameSpace
    train: Frames
    valid: Frames
    test: Frames | None
    own_valid: bool = True  # false: there is no valid split, and the training set stands in for it

    @property
    def splits(self) -> dict[str, Frames]:
        """The splits that are there, by name."""
        splits = {"train": self.train, "valid": self.valid if self.own_valid else None, "test": self.test}
        return {name: split for name, split in splits.items() if split is not None}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all frames and of the labels that count: a resumed run must find the same."""
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            digest.update(f"{name}:{split.lengths}:{split.num_features}:{split.features[0].dtype}".encode())
            for x in (*split.features, *(split.labels or ())):
                digest.update(np.ascontiguousarray(x).tobytes())
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Counts of the data read."""
        return {
            "fingerprint": self.fingerprint,
            "features": self.space.num_features,
            "standardise": self.space.standardise,
            "smooth": self.space.smooth,
            **{
                name: {
                    "recordings": len(split),
                    "frames": split.num_frames,
                    "missing_frames": split.num_missing,
                    "labelled_recordings": num_labelled(split),
                }
                for name, split in self.splits.items()
            },
        }

    def warnings(self) -> list[str]:
        """Warnings for a reader of the results."""
        lines = [
            f"{name}: {line}"
            for name, split in self.splits.items()
            for line in str(split).splitlines()[1:]
            if not line.endswith("labels")
        ]
        if num_labelled(self.train):
            lines.append(f"train: {quantity(num_labelled(self.train), 'recording')} with labels, which bind the states")
        if not self.own_valid:
            lines.append("there is no valid split: the best model is chosen by the likelihood of the training set")
        return lines

    def epoch(self, config: DataConfig, seed: int, epoch: int, *, symbols: bool = False) -> FrameBatches:
        """The batches of an epoch, the same at every call. `symbols`: frames are ids in one column."""
        return frame_batches(self.train, config, generator=epoch_generator(seed, epoch), symbols=symbols)


def read_recordings(
    data: Any, config: DataConfig, model: FrameConfig, *, space: FrameSpace | None = None
) -> Recordings:
    """The splits of a file or folder, or given in Python (`in_memory`), checked against what the model observes, and
    brought onto one scale: that of the training set, or of a `space` that is given.

    A folder with `train`, `valid` and `test` in it (folders, or files as of `read_frames`) has those splits; a set with
    the key `split` has its own; piano rolls theirs. A set without any is all training.
    """
    path = name_data(data)
    if is_in_memory(data):
        found = frame_splits(data, missing=config.missing)
    else:
        found = read_splits(Path(data), missing=config.missing, header=config.header)
    if "train" not in found:
        raise DataError(f"{path}: no split 'train'; there are {', '.join(found)}.\n  Training needs one.")
    for split in found.values():
        expect_observed(split, model)
    train = _labelled(found["train"], config, model, path)
    measured = model.observation.measured
    if space is None:
        space = FrameSpace.of(
            found["train"],
            standardise=config.standardise if measured else "none",
            smooth=config.smooth if measured else 1,
            labelled=config.labelled > 0,
            parts=config.parts,
        )
    elif space.parts != config.parts:
        raise DataError(
            f"{path}: data.parts is {config.parts}, but the model that the run starts from has {space.parts}.\n"
            f"  Set data.parts={space.parts}."
        )
    scaled = {name: space.apply(split) for name, split in found.items()}
    train = space.apply(train if config.unlabelled or not config.labelled else train.subset(range(config.labelled)))
    valid = scaled.get("valid", train)
    if config.parts > 1 and train.labels is not None:
        train = replace(train, labels=[_in_parts(y, config.parts) for y in train.labels])
    return Recordings(space, train, valid, scaled.get("test"), "valid" in scaled)


def read_splits(path: Path, *, missing: Missing = "error", header: Header = "auto") -> dict[str, Frames]:
    """The recordings of a file or folder by split; all of them are "train" where nothing says otherwise."""
    parts = {name: part for name in SPLITS if (part := _part(path, name)) is not None} if path.is_dir() else {}
    if "train" in parts:
        found = {name: read_frames(part, missing=missing, header=header) for name, part in parts.items()}
        for name, split in found.items():
            if split.num_features != found["train"].num_features:
                raise DataError(
                    f"{parts[name]}: {split.num_features} features, but {parts['train']} has "
                    f"{found['train'].num_features}.\n  All splits have the same features, in the same order."
                )
        return found
    if is_piano_rolls(path):
        rolls = read_piano_rolls(path)
        return {name: rolls.frames(name) for name in rolls.splits}
    frames = read_frames(path, missing=missing, header=header)
    if frames.splits is None:
        return {"train": frames}
    return {name: frames.split(name) for name in SPLITS if name in frames.splits}


def is_piano_rolls(path: Path) -> bool:
    """Whether a file holds packed piano rolls."""
    return path.is_file() and path.suffix == ".npz" and any(key.endswith("_bits") for key in load_arrays(path))


def expect_observed(frames: Frames, model: FrameConfig) -> None:
    """Raise unless the frames are what the model observes: any numbers, zeros and ones, or whole numbers."""
    kind = model.observation
    where = "frames" if frames.source is None else str(frames.source)
    if kind.symbols and frames.num_features != 1:
        raise DataError(
            f'{where}: {frames.num_features} features, but model.observations is "{model.observations}": one column of '
            "whole numbers was expected."
        )
    for x, name in zip(frames.features, frames.names, strict=True):
        wrong = model.invalid(torch.tensor(x))
        if wrong is not None:
            t, f = wrong.at
            remedy = wrong.remedy if np.isnan(x[t, f]) else 'Set model.observations="gaussian" for measured features.'
            raise DataError(
                f"{where}, recording {name!r}, row {t}: feature {f} is {x[t, f]:g}, but {model.observations} "
                f"observations are {wrong.expected}.\n  {remedy}"
            )


def num_labelled(frames: Frames) -> int:
    """How many recordings have a label at some frame."""
    return 0 if frames.labels is None else sum(bool((y != UNKNOWN).any()) for y in frames.labels)


def _labelled(train: Frames, config: DataConfig, model: FrameConfig, path: str) -> Frames:
    """The training set with the labels of its first recordings, `config.labelled`; those of the others are hidden."""
    num, parts = config.labelled, config.parts
    if not num:
        return replace(train, labels=None)
    if train.labels is None:
        raise DataError(f"{path}: data.labelled is {num}, but the recordings have no labels.\n  Set data.labelled=0.")
    if num > len(train):
        raise DataError(
            f"{path}: data.labelled is {num}, but there are {len(train)} training recordings.\n"
            f"  Set data.labelled to at most {len(train)}."
        )
    if model.num_states < train.num_labels:
        raise DataError(
            f"{path}: {train.num_labels} labels, but model.num_states is {model.num_states}: a state has one label.\n"
            f"  Set model.num_states to at least {train.num_labels}."
        )
    if parts > 1 and model.num_states != train.num_labels * parts:
        raise DataError(
            f"{path}: {train.num_labels} labels in {parts} parts each, but model.num_states is {model.num_states}: a "
            f"state for each part was expected.\n  Set model.num_states={train.num_labels * parts}."
        )
    for name, y in zip(train.names[:num], train.labels, strict=False):
        if parts > 1 and bool((y == UNKNOWN).any()):
            raise DataError(
                f"{path}: recording '{name}', row {int((y == UNKNOWN).argmax())}: no label, so the segments around it "
                f"have no known ends, but data.parts is {parts}.\n  Set data.parts=1, or label whole recordings."
            )
    labels = [y if i < num else np.full_like(y, UNKNOWN) for i, y in enumerate(train.labels)]
    return replace(train, labels=labels)


def _in_parts(labels: NDArray[np.int64], num: int) -> NDArray[np.int64]:  # "t" -> "t"
    """The states of labels: `num` equal parts of each segment, one after the other; unknown labels stay unknown."""
    starts = np.flatnonzero(np.diff(labels, prepend=labels[:1] - 1))
    lengths = np.diff(starts, append=len(labels))
    place = np.arange(len(labels)) - np.repeat(starts, lengths)
    return np.where(labels == UNKNOWN, UNKNOWN, labels * num + place * num // np.repeat(lengths, lengths))


def _part(folder: Path, split: str) -> Path | None:
    candidates = [folder / split, *(folder / f"{split}{suffix}" for suffix in SUFFIXES)]
    return next((part for part in candidates if part.exists()), None)


class FrameBatches:
    """The batches of one epoch, each made when it is asked for: to resume, start at the index that comes next.

    `plan[i]` holds the recordings of batch i, which of their windows it is, and of how many.
    """

    def __init__(self, frames: Frames, plan: list[tuple[list[int], int, int]], *, rounding: int, symbols: bool) -> None:
        self.plan = plan
        self._frames, self._rounding, self._symbols = frames, rounding, symbols

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, i: int) -> Batch:
        rows, window, num = self.plan[i]
        part = _stretch(self._frames, rows, window, num)
        if self._symbols:
            known = [np.where(np.isnan(x[:, 0]), -1, x[:, 0]).astype(np.int64) for x in part.features]
            batch = symbol_batch(known, part.labels, rounding=self._rounding)
        else:
            batch = frame_batch(part, dtype=torch.float32, rounding=self._rounding)
        return batch._replace(first=window == 0, last=window == num - 1)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))


def frame_batches(
    frames: Frames, config: DataConfig, *, generator: torch.Generator | None = None, symbols: bool = False
) -> FrameBatches:
    """The batches of a set, shuffled if there is a generator. `symbols`: frames are ids in one column."""
    rows = [range(length) for length in frames.lengths]
    streams = config.batching == "streams"
    if streams:  # groups of like lengths: their number of rows is what counts
        cut = length_batches(rows, sum(frames.lengths), generator=generator, max_sentences=config.num_streams)
    else:
        cut = cut_rows(rows, config, generator)
    plan = []
    for group in cut.groups:
        for alike, num in _alike(frames.lengths, group, config.window) if streams else [(group, 1)]:
            plan += [(alike, window, num) for window in range(num)]
    return FrameBatches(frames, plan, rounding=1 if streams else config.rounding, symbols=symbols)


def whole_recordings(frames: Frames, tokens: int, *, symbols: bool) -> Iterator[Batch]:
    """Short recordings together, those of more than `tokens` frames alone and in windows."""
    short = [i for i, length in enumerate(frames.lengths) if length <= tokens]
    long = [i for i, length in enumerate(frames.lengths) if length > tokens]
    if short:
        yield from frame_batches(frames.subset(short), DataConfig(tokens=tokens), symbols=symbols)
    if long:
        config = DataConfig(batching="streams", num_streams=1, window=tokens)
        yield from frame_batches(frames.subset(long), config, symbols=symbols)


def _alike(lengths: list[int], group: list[int], window: int) -> Iterator[tuple[list[int], int]]:
    """A group in parts whose recordings can be cut into equally many windows, and how many; none without a frame."""
    left = sorted(group, key=lengths.__getitem__, reverse=True)
    while left:
        num = -(-lengths[left[0]] // window)
        yield [i for i in left if lengths[i] >= num], num
        left = [i for i in left if lengths[i] < num]


def _stretch(frames: Frames, rows: list[int], window: int, num: int) -> Frames:
    """One of `num` stretches of each of some recordings, of nearly equal lengths each, at least one frame."""
    pieces = [_window(frames.lengths[i], window, num) for i in rows]
    labels = frames.labels
    return replace(
        frames,
        features=[frames.features[i][piece] for i, piece in zip(rows, pieces, strict=True)],
        names=[frames.names[i] for i in rows],
        labels=None if labels is None else [labels[i][piece] for i, piece in zip(rows, pieces, strict=True)],
        splits=None,
    )


def _window(length: int, window: int, num: int) -> slice:
    return slice(length * window // num, length * (window + 1) // num)
