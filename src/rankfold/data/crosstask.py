"""CrossTask (Zhukov et al. 2019): instructional videos as frames of features, with steps of tasks as labels.

The folder as published: `tasks_primary.txt`, `videos.csv`, `videos_val.csv`, `annotations/TASK_VIDEO.csv`; and a folder
of features, `VIDEO.npy` (or `TASK_VIDEO.npy`) "t f", a row per second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankfold.data.frame_files import SPLITS, load_arrays
from rankfold.data.frames import Frames, frames_of
from rankfold.errors import DataError

GROUPS = (1024, 2048, 128)  # columns: I3D of images, ResNet-152 of images, audio
COMPONENTS = 100  # of each group
VALID_SHARE = 0.1  # of the training videos
BACKGROUND = "background"
Floats = NDArray[np.float64]


class Task(NamedTuple):
    """A task and its steps, in their order."""

    title: str
    steps: tuple[str, ...]


def read_crosstask(
    folder: str | Path,
    features: str | Path | None = None,
    *,
    groups: Sequence[int] = GROUPS,
    components: int = COMPONENTS,
    seed: int = 0,
) -> Frames:
    """The videos of the primary tasks: the principal components of each group of columns, label 0 the background.

    Test videos are those of `videos_val.csv`; of the others, drawn by `seed`, a tenth is for validation. Components are
    those of the training frames, at most as many as a group has columns. A second belongs to a step that it overlaps,
    to the earlier line where to several. `features`: where the arrays are, if not in `features` of the folder.
    Source of the preparation: Chiu, Deng, Rush 2021, App. D.
    """
    folder = Path(folder)
    arrays = folder / "features" if features is None else Path(features)
    tasks = _tasks(folder / "tasks_primary.txt")
    held_out = set(_videos(folder / "videos_val.csv", tasks))
    videos = [video for video in _videos(folder / "videos.csv", tasks) if video not in held_out] + sorted(held_out)
    number = {key: i for i, key in enumerate(((t, s) for t in tasks for s in range(len(tasks[t].steps))), 1)}
    found, labels = [], []
    for task, video in videos:
        x = _features(arrays, task, video, sum(groups))
        file = folder / "annotations" / f"{task}_{video}.csv"
        found.append(x)
        labels.append(_labels(file, len(x), {s: number[task, s] for s in range(len(tasks[task].steps))}))
    splits = _splits(videos, held_out, seed)
    training = [x for x, split in zip(found, splits, strict=True) if split == "train"]
    if not training:
        raise DataError(f"{folder / 'videos.csv'}: every video is in videos_val.csv, so none is left to train on.")
    names = [BACKGROUND, *(f"{task.title}: {step}" for task in tasks.values() for step in task.steps)]
    return frames_of(
        _project(found, training, groups, components),
        labels=labels,
        names=[f"{task}_{video}" for task, video in videos],
        label_names=names,
        splits=splits,
        fps=1.0,
        source=folder,
    )


def write_npz(frames: Frames, path: str | Path) -> None:
    """Frames as a .npz that `read_frames` and `rankfold train` read."""
    assert frames.labels is not None
    assert frames.splits is not None
    with open(path, "wb") as stream:
        np.savez_compressed(
            stream,
            features=np.concatenate(frames.features),
            labels=np.concatenate(frames.labels),
            lengths=np.array([len(x) for x in frames.features]),
            split=np.array([SPLITS.index(split) for split in frames.splits]),
            seq_id=np.array(frames.names),
            label_names=np.array(frames.label_names),
            fps=np.array(frames.fps),
        )


def _tasks(path: Path) -> dict[str, Task]:
    """By number: blocks of number, title, address, how many steps, the steps with commas between them."""
    blocks = [block.strip().split("\n") for block in _text(path).replace("\r", "").split("\n\n") if block.strip()]
    tasks = {}
    for i, block in enumerate(blocks, 1):
        steps = tuple(step.strip() for step in block[4].split(",")) if len(block) == 5 else ()
        if len(block) != 5 or block[3].strip() != str(len(steps)):
            raise DataError(
                f"{path}, block {i}, {block[0]!r:.40}: five lines were expected: number, title, address, how many "
                "steps, and as many steps with commas between them."
            )
        tasks[block[0].strip()] = Task(block[1].strip(), steps)
    if not tasks:
        raise DataError(f"{path}: holds no task.")
    return tasks


def _videos(path: Path, tasks: Mapping[str, Task]) -> list[tuple[str, str]]:
    """(task, video) of each line whose task is primary; the file also has videos of related tasks."""
    found = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        fields = line.split(",")
        if len(fields) != 3:
            raise DataError(f"{path}, line {number}: {line!r:.60}, but task,video,address was expected.")
        if fields[0] in tasks:
            found.append((fields[0], fields[1]))
    return list(dict.fromkeys(found))


def _features(folder: Path, task: str, video: str, width: int) -> NDArray[Any]:  # "t f"
    places = [folder / f"{video}.npy", folder / f"{task}_{video}.npy"]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(f"{folder}: has neither {places[0].name} nor {places[1].name}, the features of a video.")
    (x,) = load_arrays(path).values()
    if x.ndim != 2 or x.shape[1] != width or not len(x):
        raise DataError(f"{path}: has shape {x.shape}, but a row per second of {width} columns was expected.")
    if not np.isfinite(x).all():
        raise DataError(f"{path}: row {int((~np.isfinite(x)).any(1).argmax()) + 1} holds NaN or infinity.")
    return x


def _labels(path: Path, length: int, numbers: Mapping[int, int]) -> NDArray[np.int64]:  # "t"
    """Steps by their numbers; 0 where there is none. A line is step (from 1), start and end in seconds."""
    labels = np.zeros(length, np.int64)
    for line_number, line in enumerate(_text(path).splitlines(), 1):
        try:
            step, start, end = line.split(",")
            which, begin, stop = int(step) - 1, math.floor(float(start)), math.ceil(float(end))
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}, line {line_number}: {line!r:.60}, but step,start,end was expected.") from error
        if which not in numbers or not 0 <= begin < stop:
            raise DataError(
                f"{path}, line {line_number}: {line!r:.60}, but steps are 1 to {len(numbers)}, a start before its end."
            )
        part = labels[begin:stop]  # beyond the last second there is nothing
        part[part == 0] = numbers[which]
    return labels


def _splits(videos: Sequence[tuple[str, str]], held_out: set[tuple[str, str]], seed: int) -> list[str]:
    others = [video for video in videos if video not in held_out]
    order = np.random.default_rng(seed).permutation(len(others))
    valid = {others[i] for i in order[: max(1, round(VALID_SHARE * len(others)))]} if len(others) > 1 else set()
    return ["test" if video in held_out else "valid" if video in valid else "train" for video in videos]


def _project(
    videos: Sequence[NDArray[Any]], training: Sequence[NDArray[Any]], groups: Sequence[int], components: int
) -> list[NDArray[np.float32]]:
    """Each group's first principal components, side by side; sums over frames in float64, a video at a time."""
    parts: list[list[Floats]] = [[] for _ in videos]
    num, begin = sum(map(len, training)), 0
    for width in groups:
        here = slice(begin, begin + width)
        begin += width
        mean = sum((x[:, here].sum(0, dtype=np.float64) for x in training), np.zeros(width)) / num
        centred = (x[:, here].astype(np.float64) - mean for x in training)
        spread = sum((x.T @ x for x in centred), np.zeros((width, width))) / num
        axes = np.linalg.eigh(spread)[1][:, ::-1][:, : min(components, width)]  # largest first
        for part, x in zip(parts, videos, strict=True):
            part.append((x[:, here].astype(np.float64) - mean) @ axes)
    return [np.concatenate(part, 1).astype(np.float32) for part in parts]


def _text(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path}: no such file; it is part of CrossTask's published folder.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text in UTF-8.") from error
