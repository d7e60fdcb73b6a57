"""The page of a model of frames: every recording as strips of states, next to true labels where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.analysis.states import match_states
from rankfold.data.frame_space import FrameSpace
from rankfold.data.frames import Frames
from rankfold.explore.bundle import Bundle, about, fractions, smallest

MOST_FEATURES = 32  # of the means that are shown: those that tell states apart best


def frame_bundle(
    space: FrameSpace,
    given: Frames,
    states: Sequence[NDArray[np.int64]],
    certainty: Sequence[NDArray[Any]],
    *,
    num_states: int,
    about_text: dict[str, Any],
) -> Bundle:
    """The most probable states "t" of each recording, their posteriors "t", and the means of features by state.

    `given`: the recordings as they were read; means are on that scale, over the frames of each state.
    """
    flat = np.concatenate(list(states))
    features = np.concatenate([np.asarray(x, dtype=np.float64) for x in given.features])
    means = np.stack([_mean(features[flat == state]) for state in range(num_states)])
    overall, spread = _mean(features), _spread(features)
    chosen = _telling(means, overall, spread)
    names = given.feature_names or tuple(str(i) for i in range(given.num_features))
    labels = given.label_names or tuple(str(i) for i in range(given.num_labels))
    labelled = given.labels is not None
    matched: Sequence[int] = []
    if given.labels is not None:
        own = [space.label_of(state) for state in range(num_states)]
        matched = (
            [-1 if label is None else int(label) for label in own]
            if space.labelled
            else list(match_states(states, given.labels).labels)
        )
        matched = [*matched, *[-1] * (num_states - len(matched))]
    arrays: dict[str, NDArray[Any]] = {
        "start": smallest(np.cumsum([0, *map(len, states)])),
        "state": smallest(flat),
        "p": fractions(np.concatenate(list(certainty)), np.uint8),
        "mean": means[:, chosen].astype(np.float32),
        "center": overall[chosen].astype(np.float32),
        "spread": spread[chosen].astype(np.float32),
    }
    if given.labels is not None:
        arrays["truth"] = np.concatenate(given.labels).astype(np.int32)
    meta = about(
        kind="frames",
        states=num_states,
        recordings=list(given.names),
        frames=len(flat),
        features=[names[i] for i in chosen],
        num_features=given.num_features,
        labels=list(labels) if labelled else [],
        matched=matched,
        fps=given.fps or space.fps,
        **about_text,
    )
    return Bundle(meta, arrays)


def _mean(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each feature where it is there; 0 for a state without frames, which the page says has none."""
    number = (~np.isnan(rows)).sum(0)
    found: NDArray[np.float64] = np.nansum(rows, 0) / np.maximum(number, 1)
    return found


def _spread(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard deviation of each feature, 1 for one that never changes."""
    found = np.sqrt(_mean((rows - _mean(rows)) ** 2))
    return np.where(found > 0, found, 1.0)


def _telling(means: NDArray[Any], overall: NDArray[Any], spread: NDArray[Any]) -> list[int]:
    """The features whose means differ most between states, in their own order."""
    apart = (((means - overall) / spread) ** 2).sum(0)
    return sorted(np.argsort(-apart, kind="stable")[:MOST_FEATURES].tolist())
