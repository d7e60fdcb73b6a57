"""What the features of a model of frames mean: their scale, their names, the labels of its states.

To such a model this is what a vocabulary is to one of words: frames of another set are brought onto the scale of the
training set before it sees them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frames import ConstantFeature, Features, Frames, constant_features
from rankfold.errors import DataError, DomainError
from rankfold.files import read_json, write_text
from rankfold.settings import build


@dataclass(frozen=True)
class Scale:
    """x -> (x - mean) / scale for every feature. Constant features have scale 1, and are listed."""

    mean: NDArray[np.float64]  # "f"
    scale: NDArray[np.float64]  # "f"
    constant: tuple[ConstantFeature, ...]
    num_frames: int  # that the statistics are of; missing ones do not count

    def apply(self, frames: Frames) -> Frames:
        """The same frames on this scale, in their dtype; missing frames stay missing."""
        if frames.num_features != len(self.mean):
            raise DataError(
                f"{frames.source or 'frames'}: {frames.num_features} features, but the scale has {len(self.mean)}.\n"
                "  Standardise with the statistics of a set with the same features."
            )
        features = [self(x) for x in frames.features]
        return replace(frames, features=features, constant=constant_features(features, frames.feature_names))

    def __call__(self, x: Features) -> Features:
        return ((x - self.mean) / self.scale).astype(x.dtype)

    def undo(self, x: Features) -> Features:
        """The features as they were, to rounding."""
        return (x * self.scale + self.mean).astype(x.dtype)

    def __str__(self) -> str:
        lines = [f"{len(self.mean):,} features on the scale of {self.num_frames:,} frames"]
        if self.constant:
            listed = ", ".join(f"{c.feature} ({c.name})" for c in self.constant[:5])
            more = f" and {len(self.constant) - 5} more" if len(self.constant) > 5 else ""
            lines.append(f"scale 1, for they never change: features {listed}{more}")
        return "\n".join(lines)


def feature_scale(train: Frames) -> Scale:
    """The mean and the standard deviation (divided by n) of every feature over the frames of `train` that are there.

    In float64, in two passes, so that a large mean costs no digits. A constant feature has no spread: its scale is 1,
    so it becomes 0, and it is listed. Constant means equal in every frame, not of small spread.
    """
    seen = [x[~np.isnan(x).all(1)].astype(np.float64) for x in train.features]
    num_frames = sum(map(len, seen))
    number: Any = sum((~np.isnan(x)).sum(0) for x in seen)  # "f"
    if int(number.min()) < 1:
        raise DataError(
            f"{train.source or 'the frames'}: feature {int(number.argmin())} is missing in every frame.\n"
            "  Leave it out."
        )
    if num_frames < 2:
        raise DataError(
            f"{train.source or 'the frames'}: a single frame has no spread; at least two were expected.\n"
            "  Take the scale of a training set."
        )
    mean: Any = sum(np.nansum(x, 0) for x in seen) / number
    variance: Any = sum(np.nansum((x - mean) ** 2, 0) for x in seen) / number
    scale = np.sqrt(variance)
    for c in train.constant:
        mean[c.feature], scale[c.feature] = c.value, 1.0
    return Scale(mean, scale, train.constant, num_frames)


FILE = "frames.json"
Standardise = Literal["train", "recording", "none"]


@dataclass(frozen=True)
class FrameSpace:
    """How frames are read for one model.

    standardise   "train": features by their mean and deviation in the training set, which `mean` and `scale` keep;
                  "recording": by those of each recording itself; "none": as they are.
    smooth        each feature is first replaced by its mean over so many frames, this one in the middle
    parts         how many states stand for a label, those of label l from l parts on: the parts of its segments
    """

    num_features: int
    standardise: Standardise = "none"
    smooth: int = 1
    mean: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None
    labelled: bool = False  # whether labels bound states in training: then the first states are the labels
    fps: float | None = None  # frames per second of the training set
    parts: int = 1

    @classmethod
    def of(
        cls,
        train: Frames,
        *,
        standardise: Standardise = "train",
        smooth: int = 1,
        labelled: bool = False,
        parts: int = 1,
    ) -> FrameSpace:
        """The space of a training set."""
        train = smooth_frames(train, smooth)
        scale = feature_scale(train) if standardise == "train" else None
        return cls(
            train.num_features,
            standardise,
            smooth,
            None if scale is None else tuple(scale.mean.tolist()),
            None if scale is None else tuple(scale.scale.tolist()),
            train.feature_names,
            train.label_names if train.label_names is not None else _numbered(train),
            labelled,
            train.fps,
            parts,
        )

    def apply(self, frames: Frames) -> Frames:
        """The frames smoothed and scaled for the model; raises on other features than those it was trained on."""
        origin = "" if frames.source is None else f"{frames.source}: "
        if frames.num_features != self.num_features:
            raise DataError(
                f"{origin}{frames.num_features} features, but the model was trained on {self.num_features}.\n"
                "  Give the same features, in the same order."
            )
        if None not in (self.feature_names, frames.feature_names) and self.feature_names != frames.feature_names:
            pairs = zip(self.feature_names or (), frames.feature_names or (), strict=True)
            place, (own, other) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            raise DataError(
                f"{origin}feature {place} is called {other!r}, but {own!r} where the model was trained.\n"
                "  Give the same features, in the same order."
            )
        frames = smooth_frames(frames, self.smooth)
        if self.standardise == "recording":
            _expect_spread(frames, origin)
            scaled = [
                feature_scale(frames.subset([i])).apply(frames.subset([i])).features[0] for i in range(len(frames))
            ]
            return replace(frames, features=scaled, constant=constant_features(scaled, frames.feature_names))
        return frames if self.mean is None else self._scale().apply(frames)

    def log_volume(self, frames: Frames) -> float | None:
        """Log-density per frame, in nats, of standardised frames minus that of the same frames in their own units.

        None where each recording has a scale of its own. Features that are missing have no density.
        """
        if self.standardise == "recording":
            return None
        if self.scale is None:
            return 0.0
        number = np.sum([(~np.isnan(x)).sum(0) for x in frames.features], 0)  # "f"
        return float((np.log(self.scale) * (number / (frames.num_frames - frames.num_missing))).sum())

    def undo(self, features: Any) -> Any:  # "t f"
        """Features as they were before they were brought onto the scale, to rounding."""
        return features if self.mean is None else self._scale().undo(np.asarray(features))

    def label_of(self, state: int) -> int | None:
        """The label a state stands for, where training gave it one; of states whose parts are joined."""
        return state if self.labelled and state < len(self.label_names or ()) else None

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> FrameSpace:
        """Read what `save` wrote; `DataError` for anything else."""
        remedy = "Copy it together with config.json and the weights."
        content = read_json(path, "what the features of a model mean")
        try:
            space = build(cls, content, source=path)
        except DataError as error:
            raise DataError(f"{error}\n  {remedy}") from None
        sizes = [len(x) for x in (space.mean, space.scale, space.feature_names) if x is not None]
        if any(size != space.num_features for size in sizes) or (space.mean is None) != (space.scale is None):
            raise DataError(f"{path}: {sizes} numbers for {space.num_features} features.\n  {remedy}")
        above = (*(space.scale or ()), space.fps or 1, space.parts)
        if space.smooth < 1 or space.smooth % 2 == 0 or not all(x > 0 for x in above):
            raise DataError(f"{path}: smooth is odd, scales, fps and parts are above 0; others came.\n  {remedy}")
        return space

    def _scale(self) -> Scale:
        return Scale(np.array(self.mean), np.array(self.scale), (), 0)


def _expect_spread(frames: Frames, origin: str) -> None:
    """Raise on a recording of a single frame, which has no scale of its own."""
    for x, name in zip(frames.features, frames.names, strict=True):
        if int((~np.isnan(x).all(1)).sum()) < 2:
            raise DataError(
                f"{origin}recording {name!r} has a single frame that is not missing, but each recording is brought "
                'onto a scale of its own.\n  Leave it out, or train with data.standardise="train".'
            )


def smooth_frames(frames: Frames, num: int) -> Frames:
    """Frames averaged over the `num` (an odd number) around each, fewer at the ends; missing ones stay missing.

    Differences of running sums, in float64.   Cost: O(frames features).
    """
    if num == 1:
        return frames
    if num < 1 or num % 2 == 0:
        raise DomainError(f"smooth is {num}, but must be an odd number of frames: 1 leaves them as they are.")
    features = [_smoothed(x, num) for x in frames.features]
    return replace(frames, features=features, constant=constant_features(features, frames.feature_names))


def _smoothed(x: Features, num: int) -> Features:
    here: Any = ~np.isnan(x)
    values = np.where(here, x, 0.0).astype(np.float64)
    centre = values.sum(0) / np.maximum(here.sum(0), 1)  # large means would cost digits
    none = np.zeros((1, x.shape[1]))
    sums, counts = (np.concatenate([none, np.cumsum(y, 0)]) for y in ((values - centre) * here, here))
    places = np.arange(len(x))
    start, end = np.maximum(places - num // 2, 0), np.minimum(places + num // 2 + 1, len(x))
    mean = (sums[end] - sums[start]) / np.maximum(counts[end] - counts[start], 1) + centre
    return np.where(here, mean, np.nan).astype(x.dtype)


def _numbered(frames: Frames) -> tuple[str, ...] | None:
    """Labels without names are called by their numbers."""
    return None if frames.labels is None else tuple(map(str, range(frames.num_labels)))
