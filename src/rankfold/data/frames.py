"""Sequences of feature vectors, validated: lists of arrays "t f", with or without labels.

A missing frame is a row of NaN; single features may be missing, too, where that is asked for. Nothing is repaired: an
error names the file or sequence, the row, the value and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rankfold.errors import DataError, DomainError

Missing = Literal["error", "row", "feature"]
Features = NDArray[np.floating[Any]]  # "t f", float32 or float64
Labels = NDArray[np.int64]  # "t"; -1: not known
UNKNOWN = -1
LARGEST_SQUARED = 2.0**-20  # of the largest number's root: so squares of 2^40 frames can be summed


class ConstantFeature(NamedTuple):
    """A feature that has one value in every frame: it tells no state from another, and its variance is 0."""

    feature: int  # its place
    name: str
    value: float


@dataclass(frozen=True)
class Frames:
    """Sequences of frames, all of one width and one dtype. Iterates over the feature arrays."""

    features: list[Features]
    names: list[str]  # of the sequences
    labels: list[Labels] | None = None
    label_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    splits: tuple[str, ...] | None = None  # of each sequence: train, valid or test
    fps: float | None = None  # frames per second
    source: Path | None = None
    constant: tuple[ConstantFeature, ...] = ()
    num_partly_missing: int = 0  # frames that are rows of NaN, but had some values, given up by missing="row"

    def __iter__(self) -> Iterator[Features]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_features(self) -> int:
        return int(self.features[0].shape[1])

    @property
    def lengths(self) -> list[int]:
        return [len(x) for x in self.features]

    @property
    def num_frames(self) -> int:
        return sum(self.lengths)

    @property
    def num_missing(self) -> int:
        """Frames that are rows of NaN."""
        # The least of all entries is NaN where any is: one pass, without a table of answers.
        return sum(int(np.isnan(x).all(1).sum()) for x in self.features if np.isnan(x.min()))

    @property
    def num_gaps(self) -> int:
        """Frames of which some features are missing and others are there."""
        return sum(int((np.isnan(x).any(1) & ~np.isnan(x).all(1)).sum()) for x in self.features)

    @property
    def num_labels(self) -> int:
        """How many labels there are: the named ones, else one more than the largest."""
        if self.label_names is not None:
            return len(self.label_names)
        return 0 if self.labels is None else 1 + max(int(y.max()) for y in self.labels)

    def split(self, name: str) -> Frames:
        """The sequences of one split."""
        if self.splits is None or name not in self.splits:
            held = "no splits" if self.splits is None else "the splits " + ", ".join(dict.fromkeys(self.splits))
            raise DataError(f"{_origin(self.source)}no split {name!r}: the frames have {held}.")
        return self.subset([i for i, split in enumerate(self.splits) if split == name])

    def subset(self, which: Sequence[int]) -> Frames:
        """The sequences with these indices, in this order."""
        if not len(which):
            raise DataError(f"{_origin(self.source)}a subset of no sequences; at least one was expected.")
        features = [self.features[i] for i in which]
        parts = replace(
            self,
            features=features,
            names=[self.names[i] for i in which],
            labels=None if self.labels is None else [self.labels[i] for i in which],
            splits=None if self.splits is None else tuple(self.splits[i] for i in which),
            constant=constant_features(features, self.feature_names),
        )
        # Which frames were made missing is not kept: of a part of the sequences their number is not known.
        return parts if len(which) == len(self) else replace(parts, num_partly_missing=0)

    def __str__(self) -> str:
        lengths = self.lengths
        lines = [
            f"{len(self):,} sequences, {self.num_frames:,} frames ({min(lengths):,} to {max(lengths):,} each), "
            f"{self.num_features:,} features, {self.features[0].dtype}"
        ]
        if self.labels is not None:
            unknown = sum(int((y == UNKNOWN).sum()) for y in self.labels)
            lines.append(f"{self.num_labels:,} labels" + (f"; {unknown:,} frames without one" if unknown else ""))
        if self.num_missing:
            given_up = f" ({self.num_partly_missing:,} of them in part)" if self.num_partly_missing else ""
            lines.append(f"missing frames: {self.num_missing:,}{given_up}")
        if self.num_gaps:
            lines.append(f"frames with some features missing: {self.num_gaps:,}")
        if self.constant:
            listed = ", ".join(f"{c.feature} ({c.name}, {c.value:g})" for c in self.constant[:5])
            more = f" and {len(self.constant) - 5} more" if len(self.constant) > 5 else ""
            lines.append(f"warning: the same value in every frame: features {listed}{more}")
        return "\n".join(lines)


def frames_of(
    features: Any,
    *,
    lengths: Sequence[int] | None = None,
    labels: Any = None,
    names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    fps: float | None = None,
    missing: Missing = "error",
    source: Path | None = None,
) -> Frames:
    """Frames from memory: a list of arrays "t f", or one array of all frames and the sequences' `lengths`.

    `labels` come in the same form: whole numbers from 0, or -1 where a label is not known. A row of NaN is a missing
    frame; a row with some NaN is an error, with missing="row" a missing frame too, and counted, with missing="feature"
    a frame of which single features are missing. Whole numbers and
    truth values become float64, half precision float32; mixed widths of float the wider. Cost: a few passes.
    """
    where = _origin(source)
    if missing not in get_args(Missing):
        raise DomainError(f'missing is {missing!r}, but must be "error", "row" or "feature".')
    arrays = _sequences(features, lengths, f"{where}features")
    if not arrays:
        raise DataError(f"{where}no sequences; at least one array of frames was expected.")
    called = [str(name) for name in names] if names is not None else [str(i) for i in range(len(arrays))]
    for what, given in (("names", called), ("splits", splits)):
        if given is not None and len(given) != len(arrays):
            raise DataError(f"{where}{len(given)} {what} for {len(arrays)} sequences; one each was expected.")
    spots = [f"{where}sequence {name!r}" if len(arrays) > 1 or not where else where[:-2] for name in called]
    pairs = [validate_features(array, spot, missing=missing) for array, spot in zip(arrays, spots, strict=True)]
    checked, partly = [x for x, _ in pairs], sum(num for _, num in pairs)
    expect_one_width(checked, spots, feature_names)
    wide = np.result_type(*(x.dtype for x in checked))
    found = [x.astype(wide, copy=False) for x in checked]
    return Frames(
        found,
        called,
        labels=_labels(labels, lengths, found, spots, where, label_names),
        label_names=None if label_names is None else tuple(map(str, label_names)),
        feature_names=None if feature_names is None else tuple(map(str, feature_names)),
        splits=None if splits is None else tuple(splits),
        fps=fps,
        source=source,
        constant=constant_features(found, feature_names),
        num_partly_missing=partly,
    )


def validate_features(
    array: Any, where: str, *, missing: Missing = "error", row: str = "row", first: int = 0
) -> tuple[Features, int]:
    """The frames "t f" of one sequence as floats, and how many rows that were missing in part are missing now.

    `row` and `first` say how an error counts rows: from 0, or by the lines of a file.
    """
    x = as_array(array, where)
    if x.dtype.kind not in "fiub":
        raise DataError(f"{where}: holds {x.dtype} and not numbers.\n  Features are real numbers, one row a frame.")
    if x.ndim != 2:
        what = f"a single number, {x.item()}" if x.ndim == 0 else f"an array of shape {x.shape}"
        remedy = (
            "Several sequences in one array are a list: list(x)"
            if x.ndim == 3
            else "A single feature is one column: x[:, None]"
        )
        raise DataError(f'{where}: is {what}, but frames "t f" were expected, one row a frame.\n  {remedy}.')
    if 0 in x.shape:
        raise DataError(f"{where}: is empty, of shape {x.shape}; at least one frame and one feature were expected.")
    x = x.astype(
        np.float32 if x.dtype == np.float16 else x.dtype if x.dtype in (np.float32, np.float64) else np.float64
    )
    largest = LARGEST_SQUARED * np.sqrt(np.finfo(x.dtype).max)
    if x.min() >= -largest and x.max() <= largest:  # nor is any NaN
        return x, 0
    infinite = np.isinf(x)
    if infinite.any():
        t, f = np.argwhere(infinite)[0]
        raise DataError(
            f"{where}, {row} {first + t}: feature {f} is {x[t, f]}, but features are finite.\n"
            "  Write a missing frame as a whole row of NaN."
        )
    large = np.abs(x) > largest
    if large.any():
        t, f = np.argwhere(large)[0]
        raise DataError(
            f"{where}, {row} {first + t}: feature {f} is {x[t, f]:g}, of which {x.dtype} holds no sum of squares.\n"
            "  Rescale the feature; write a missing frame as a whole row of NaN."
        )
    absent = np.isnan(x)
    none, some = absent.all(1), absent.any(1)
    partly = some & ~none
    if partly.any():
        if missing == "error":
            t = int(partly.argmax())
            raise DataError(
                f"{where}, {row} {first + t}: feature {int(absent[t].argmax())} is NaN and others are not, but a "
                'missing frame is a whole row of NaN.\n  Fill it in, or give the whole row up: missing="row", '
                f"--missing row ({int(partly.sum()):,} of {len(x):,} rows here); or sum over what is missing alone: "
                'missing="feature", --missing feature.'
            )
        if missing == "row":
            x[partly] = np.nan
    if np.isnan(x).all(1).all():
        raise DataError(f"{where}: all {len(x):,} frames are missing (NaN).\n  Leave the sequence out.")
    return x, 0 if missing == "feature" else int(partly.sum())


def as_array(given: Any, where: str) -> NDArray[Any]:
    """An array from anything that converts to one; masked entries of a masked array are missing."""
    given = given.detach().cpu() if hasattr(given, "detach") else given
    if isinstance(given, np.ma.MaskedArray):
        values = np.ma.getdata(given).astype(object if given.dtype.kind in "OUS" else np.float64)
        values[np.ma.getmaskarray(given)] = np.nan
        return values
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: is no array ({error!s:.80}).\n  Rows of one array have one length.") from None


def expect_one_width(arrays: Sequence[Features], spots: Sequence[str], feature_names: Sequence[str] | None) -> None:
    """Raise unless all sequences have as many features as the first, and as there are names."""
    width = arrays[0].shape[1]
    for x, spot in zip(arrays, spots, strict=True):
        if x.shape[1] != width:
            raise DataError(
                f"{spot}: {x.shape[1]} features, but {spots[0]} has {width}.\n"
                "  All sequences of a set have the same features, in the same order."
            )
    if feature_names is not None and len(feature_names) != width:
        raise DataError(
            f"{spots[0]}: {len(feature_names)} names of features for {width} features; one each was expected."
        )


def constant_features(arrays: Sequence[Features], names: Sequence[str] | None) -> tuple[ConstantFeature, ...]:
    """The features with a single value in all frames that are there."""
    ends = np.concatenate([x[[0, -1]] for x in arrays])
    others = np.flatnonzero(~(np.fmin.reduce(ends, 0) < np.fmax.reduce(ends, 0)))  # those that do not differ here
    low = np.array([np.fmin.reduce([np.fmin.reduce(x[:, i]) for x in arrays]) for i in others])
    high = np.array([np.fmax.reduce([np.fmax.reduce(x[:, i]) for x in arrays]) for i in others])
    return tuple(
        ConstantFeature(int(i), "unnamed" if names is None else str(names[i]), float(value))
        for i, value in zip(others[low == high], low[low == high], strict=True)
    )


def _sequences(given: Any, lengths: Sequence[int] | None, what: str) -> list[Any]:
    """A list of arrays as it is; one array, cut by `lengths` if there are any."""
    if isinstance(given, list | tuple):
        if lengths is not None:
            raise DataError(
                f"{what}: a list of {len(given)} arrays and lengths too.\n  Lengths cut one array; leave them out."
            )
        return list(given)
    array = as_array(given, what)
    if lengths is None:
        return [array]
    sizes = as_array(lengths, f"{what}: lengths")
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        raise DataError(f"{what}: lengths are {sizes.tolist()!r:.80}, but must be whole numbers of at least 1.")
    num = len(array) if array.ndim else 0
    of = "labels" if what.endswith("labels") else "frames"
    if int(sizes.sum()) != num:
        raise DataError(f"{what}: the lengths add up to {int(sizes.sum()):,}, but there are {num:,} {of}.")
    return np.split(array, np.cumsum(sizes)[:-1])


def _labels(
    given: Any,
    lengths: Sequence[int] | None,
    features: Sequence[Features],
    spots: Sequence[str],
    where: str,
    names: Sequence[str] | None,
) -> list[Labels] | None:
    if given is None:
        return None
    arrays = [as_array(y, f"{where}labels") for y in _sequences(given, lengths, f"{where}labels")]
    if len(arrays) != len(features):
        raise DataError(
            f"{where}labels of {len(arrays)} sequences for {len(features)}; one array each was expected.\n"
            "  Labels of a single sequence are an array, or a list of one."
        )
    for y, x, spot in zip(arrays, features, spots, strict=True):
        if y.dtype.kind not in "iu":
            raise DataError(
                f"{spot}: labels are {y.dtype}, but must be whole numbers: their places among the label names."
            )
        if y.shape != (len(x),):
            raise DataError(f"{spot}: labels of shape {y.shape} for {len(x):,} frames; one a frame was expected.")
        bad = (y < UNKNOWN) | (y >= len(names) if names is not None else False)
        if bad.any():
            t = int(bad.argmax())
            allowed = f"from 0 to {len(names) - 1}" if names is not None else "at least 0"
            raise DataError(
                f"{spot}, row {t}: the label is {int(y[t])}, but labels are {allowed}.\n"
                f"  A frame whose label is not known has {UNKNOWN}."
            )
    return [y.astype(np.int64) for y in arrays]


def _origin(source: Path | None) -> str:
    return "" if source is None else f"{source}: "
