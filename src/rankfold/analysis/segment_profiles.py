"""What each state of a model of frames does: how often, how long its segments last, its features, its labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.analysis.segmentation import segments_of
from rankfold.analysis.states import contingency, match_states
from rankfold.data.frames import Frames
from rankfold.errors import ShapeError

States = NDArray[np.int64]  # "t"


class SegmentProfiles(NamedTuple):
    """Plain data: a mapping for each state in use, the most frequent first, and labels against states."""

    num_recordings: int
    num_frames: int
    num_segments: int
    fps: float | None
    states: list[dict[str, Any]]
    feature_names: list[str]
    label_names: list[str] | None  # None: no frame has a label
    confusion: list[list[int]] | None  # frames by state, in the order of `states`, and label


def segment_profiles(
    found: Sequence[States],
    given: Frames,
    *,
    fps: float | None = None,
    label_names: Sequence[str] | None = None,
    symbols: bool = False,
) -> SegmentProfiles:
    """The segments of recordings whose frames have the states `found`, with the features as they were given.

    A run of equal states is one segment: where a state may follow itself, two segments in a row count as one. Features
    have their mean and standard deviation over the frames of a state that are not missing; `symbols` their most
    frequent values instead. States are matched to labels one to one, for as many frames as possible.
    """
    if [len(x) for x in found] != given.lengths:
        raise ShapeError("the states are not as long as the recordings: one for each frame was expected.")
    cut = [[s for s in segments_of(x) if s.label >= 0] for x in found]
    durations: dict[int, list[int]] = {}
    for segment in (one for row in cut for one in row):
        durations.setdefault(segment.label, []).append(segment.end - segment.start)
    states = np.concatenate(found)
    features = np.concatenate([np.asarray(x, dtype=np.float64) for x in given.features])
    used = sorted(durations, key=lambda state: (-sum(durations[state]), state))
    rate = given.fps if fps is None else fps
    labelled = given.labels is not None and any((y >= 0).any() for y in given.labels)
    matched = match_states(found, given.labels or []).labels if labelled else ()
    names = _label_names(given, label_names) if labelled else None
    rows = []
    for state in used:
        row: dict[str, Any] = {
            "state": state,
            "frames": sum(durations[state]),
            "use": sum(durations[state]) / len(states),
            "segments": len(durations[state]),
            "duration": _summary(durations[state]),
        }
        own = features[states == state]
        row |= {"symbols": _symbols(own)} if symbols else {"features": _features(own)}
        if names is not None:
            label = matched[state] if state < len(matched) else -1
            row["label"] = names[label] if label >= 0 else None
        rows.append(row)
    confusion = None
    if labelled and names is not None:
        table = contingency(found, given.labels or [])
        wide = np.zeros((max([*used, -1]) + 1, len(names)), dtype=np.int64)
        wide[: table.shape[0], : table.shape[1]] = table
        confusion = wide[used].tolist()
    return SegmentProfiles(
        len(found),
        len(states),
        sum(map(len, cut)),
        rate,
        rows,
        [f"feature {i}" for i in range(given.num_features)]
        if given.feature_names is None
        else list(given.feature_names),
        names,
        confusion,
    )


def _label_names(given: Frames, names: Sequence[str] | None) -> list[str]:
    named = list(given.label_names or names or ())
    return named + [str(i) for i in range(len(named), given.num_labels)]


def _summary(durations: Sequence[int]) -> dict[str, float]:
    values = np.array(durations, dtype=np.float64)
    return {
        "mean": float(values.mean()),
        "deviation": float(values.std()),
        "median": float(np.median(values)),
        "shortest": float(values.min()),
        "longest": float(values.max()),
    }


def _features(own: NDArray[np.float64]) -> list[dict[str, float | None]]:  # "n f"
    """Mean and standard deviation of each feature; None where all frames are missing."""
    found: list[dict[str, float | None]] = []
    for column in own.T:
        there = column[~np.isnan(column)]
        mean = float(there.mean()) if len(there) else None
        found.append({"mean": mean, "deviation": float(there.std()) if len(there) else None})
    return found


def _symbols(own: NDArray[np.float64], num: int = 8) -> list[list[float]]:  # "n 1"
    """The most frequent symbols and their shares of the frames that are not missing."""
    values, counts = np.unique(own[~np.isnan(own)], return_counts=True)
    order = np.lexsort((values, -counts))[:num]
    return [[int(values[i]), float(counts[i] / counts.sum())] for i in order]
