"""Runs on recordings: their space, labels that bind states, nats a frame. Read next: `training/recordings.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.data.batch import Batch
from rankfold.data.frame_space import FILE
from rankfold.data.frames import UNKNOWN, Frames
from rankfold.errors import DataError, DomainError
from rankfold.models.frame_config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.models.frame_start import start_from
from rankfold.models.pretrained import save_model
from rankfold.numerics.precision import Precision
from rankfold.training.checkpoint import Progress
from rankfold.training.config import Config, DataConfig
from rankfold.training.em import EMSteps, begin
from rankfold.training.evaluation import Evaluation
from rankfold.training.frame_evaluation import evaluate_frames, num_seen
from rankfold.training.frame_gradients import FrameGradients
from rankfold.training.frame_room import frame_room
from rankfold.training.memory import Room
from rankfold.training.recordings import Recordings, read_recordings
from rankfold.training.report import Reporter
from rankfold.training.task import NATS, Task


class FrameTask(Task):
    """A model of frames and its recordings."""

    measure = NATS
    changed = "the recordings are not those"

    def __init__(self, config: Config, recordings: Recordings) -> None:
        assert isinstance(config.model, FrameConfig)
        self.config, self.recordings = config, recordings
        self.own = dataclasses.replace(config.model, num_features=num_features(config.model, recordings))

    @classmethod
    def read(cls, config: Config, data: str | Path, run: Path, report: Reporter, *, resume: bool) -> FrameTask:
        """The recordings of a file or folder."""
        assert isinstance(config.model, FrameConfig)
        task = cls(config, read_recordings(data, config.data, config.model))
        expect_variance(task.own, task.recordings.train, data)
        expect_durations(task.own, task.recordings.train, data)
        return task

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self.recordings.fingerprint

    @property
    def has_test(self) -> bool:  # type: ignore[override]
        return self.recordings.test is not None

    def summary(self) -> Mapping[str, Any]:
        return self.recordings.summary()

    def keep(self, folder: Path) -> None:
        self.recordings.space.save(folder / FILE)

    def expect_batches(self) -> None:
        self.epoch(0)

    def room(self, device: torch.device, progress: Progress, say: Callable[[str], None]) -> Room:
        return frame_room(self.config, self.own, self.recordings, device, progress, say)

    def model(self) -> FrameModel:
        model = FrameModel.build(self.own, seed=self.config.train.seed)
        model.space = self.recordings.space
        if self.own.init != "kmeans":
            start_from(model, self.recordings.train)
        return model

    def steps(self, model: FrameModel, *made_of: Any) -> FrameGradients | EMSteps:
        em = self.config.train.optimizer == "em"
        if em or self.own.init == "kmeans":  # a resumed model is filled afterwards
            begin(model, self.recordings.train, self.config.train.seed)
        if em:
            return EMSteps(self.recordings.train, model, self.config.train.smoothing)
        made = FrameGradients(*(model, *made_of))
        made.num_frames = self.recordings.train.num_frames
        return made

    def save(self, model: FrameModel, folder: Path) -> None:
        save_model(model, folder, file_bytes=self.config.train.shard_bytes)

    def load(self, folder: Path, device: str) -> FrameModel:
        return FrameModel.from_pretrained(folder, device=device)

    def lines(self, model: FrameModel) -> list[str]:
        train = self.recordings.train
        sizes = (
            f"{self.own.num_states:,} states, {model.num_parameters:,} parameters, {self.own.num_features:,} features"
        )
        return [
            f"{self.own.family}, {sizes}, {len(train):,} training recordings of {train.num_frames:,} frames",
            *self.recordings.warnings(),
        ]

    def warnings(self) -> list[str]:
        return []

    def epoch(self, epoch: int) -> Any:
        return self.recordings.epoch(self.config.data, self.config.train.seed, epoch, symbols=self._symbols)

    def counted(self, batch: Batch) -> int:
        return num_seen(batch)

    def evaluate(self, model: FrameModel, split: str, data: DataConfig, precision: Precision = "float32") -> Evaluation:
        frames = self.recordings.valid if split == "valid" else self.recordings.splits[split]
        return evaluate_frames(model, frames, data.eval_tokens, precision=precision)

    def shown(self, batches: Sequence[Batch]) -> dict[str, Any]:
        rows = [
            [[None if x != x else x for x in frame] if isinstance(frame, list) else frame for frame in row[:n].tolist()]
            for batch in batches
            for row, n in zip(batch.values, batch.lengths.tolist(), strict=True)
        ]
        return {"recordings": rows}

    @property
    def _symbols(self) -> bool:
        return self.own.observations == "categorical"


def expect_variance(model: FrameConfig, train: Frames, data: str | Path) -> None:
    """`DataError` for a Gaussian feature that is the same in all training frames, as the model sees them."""
    if model.observations == "gaussian" and train.constant:
        first = train.constant[0]
        raise DataError(
            f"{data}: feature {first.feature} ({first.name}) has the same value, {first.value:g}, in every training "
            "frame, smoothed and scaled as the recipe says: it has no variance and tells no states apart.\n"
            "  Leave it out."
        )


def expect_durations(model: FrameConfig, train: Frames, data: str | Path) -> None:
    """An error for segments longer than any recording, and for labels that last longer than a segment can."""
    if not model.has_segments:
        return
    longest = max(train.lengths)
    if model.max_duration > longest:
        raise DomainError(
            f"{data}: the longest training recording has {longest:,} frames, but model.max_duration is "
            f"{model.max_duration:,}.\n  Set model.max_duration to at most {longest:,}."
        )
    for name, labels in zip(train.names, () if model.may_repeat else train.labels or (), strict=False):
        starts = np.flatnonzero(np.diff(labels, prepend=labels[:1] - 1))
        ends = np.append(starts[1:], len(labels))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if labels[start] != UNKNOWN and end - start > model.max_duration:
                raise DataError(
                    f"{data}: recording '{name}', rows {start} to {end - 1}: label {int(labels[start])} lasts "
                    f"{end - start:,} frames, but model.max_duration is {model.max_duration:,}, and no state follows "
                    f"itself.\n  Set model.max_duration to at least {end - start:,}, or model.self_transitions = true."
                )


def num_features(model: FrameConfig, recordings: Recordings) -> int:
    """The features of a frame, or how many symbols there are; a recipe that says otherwise is refused."""
    found = recordings.space.num_features
    if model.observations == "categorical":
        sets = [*recordings.splits.values()]
        found = 1 + int(max(float(x[x == x].max()) for split in sets for x in split.features))
        if found <= model.num_features:
            return model.num_features
    if model.num_features not in (0, found):
        raise DataError(
            f"model.num_features is {model.num_features}, but the recordings have {found}.\n"
            f"  Leave it out, or set model.num_features={found}."
        )
    return found
