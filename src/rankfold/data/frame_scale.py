"""Features on one scale: mean 0 and standard deviation 1 by the statistics of a training set, applied to any other.

Read next: `data/frames.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frames import ConstantFeature, Features, Frames, constant_features
from rankfold.errors import DataError


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


def standardise(train: Frames) -> Scale:
    """The mean and the standard deviation (divided by n) of every feature over the frames of `train` that are there.

    In float64, in two passes, so that a large mean costs no digits. A constant feature has no spread: its scale is 1,
    which moves it to 0 and says so. Constant means equal in every frame, not of small spread.
    """
    seen = [x[~np.isnan(x[:, 0])].astype(np.float64) for x in train.features]
    num_frames = sum(map(len, seen))
    if num_frames < 2:
        raise DataError(
            f"{train.source or 'the frames'}: a single frame has no spread; at least two were expected.\n"
            "  Take the scale of a training set."
        )
    mean: Any = sum(x.sum(0) for x in seen) / num_frames
    variance: Any = sum(((x - mean) ** 2).sum(0) for x in seen) / num_frames
    scale = np.sqrt(variance)
    for c in train.constant:
        mean[c.feature], scale[c.feature] = c.value, 1.0
    return Scale(mean, scale, train.constant, num_frames)
