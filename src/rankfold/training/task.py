"""The task of a run: its data, sentences or recordings, and all steps of the loop that differ between the two."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.data.batch import Batch
from rankfold.data.clusters import Clusters
from rankfold.data.frame_space import FILE, FrameSpace
from rankfold.data.frames import UNKNOWN, Frames
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError
from rankfold.models.base import Model
from rankfold.models.catalog import build_model
from rankfold.models.config import DataKind, FrameConfig, Measure
from rankfold.training.batch_em import BatchEM
from rankfold.training.checkpoint import Loaded, Progress
from rankfold.training.config import Config
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.em import EMSteps, initialise_from_recipe
from rankfold.training.evaluation import Data
from rankfold.training.gradients import Gradients
from rankfold.training.in_memory import name_data
from rankfold.training.init_from import Origin
from rankfold.training.memory_budget import Budget, DataSizes, memory_budget
from rankfold.training.recordings import Recordings, read_recordings
from rankfold.training.report import Reporter
from rankfold.training.setup import clusters
from rankfold.training.sharding import ShardedGradients


class Task(ABC):
    """The data of a run, and how its model is built, trained and measured on them."""

    config: Config
    data: Corpus | Recordings
    changed: str  # for the error message if a resumed run finds other data

    @classmethod
    @abstractmethod
    def read(
        cls, config: Config, data: Any, run: Path, report: Reporter, *, resume: bool, origin: Origin | None = None
    ) -> Task:
        """The data of a folder or file, or given in Python; as `origin`, the model a run starts from, knows them."""

    @property
    def measure(self) -> Measure:
        """Perplexity, or nats per frame."""
        return self.config.model.measure

    @property
    def fingerprint(self) -> str:
        """A hash of the data: a resumed run must find the same."""
        return self.data.fingerprint

    @property
    def has_test(self) -> bool:
        """Whether there is a split to test on."""
        return self.data.test is not None

    def summary(self) -> Mapping[str, Any]:
        """Counts of the data that were read."""
        return self.data.summary()

    def split(self, name: str) -> Data:
        """The data of "valid" or "test"."""
        found: Data = getattr(self.data, name)
        return found

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """The tokens, or frames, of the training set."""

    @abstractmethod
    def keep(self, folder: Path) -> None:
        """Write the vocabulary, or the scale of the features, with which a resumed run reads the same data."""

    def prepare(self, loaded: Loaded | None, origin: Origin | None = None) -> None:
        """Compute word clusters, if the model needs them and neither the checkpoint nor the origin has some."""
        return

    @abstractmethod
    def expect_batches(self) -> None:
        """Raise if an epoch cannot be cut as the recipe says, before any work."""

    def budget(self, device: torch.device, progress: Progress, say: Callable[[str], None]) -> Budget:
        """How much of a batch fits into memory at once."""
        return memory_budget(self.config, self.sizes(), str(device), progress, say)

    @abstractmethod
    def sizes(self) -> DataSizes:
        """The sizes of the data that bound memory from below: inputs, and the longest sequences."""

    @abstractmethod
    def model(self) -> Model[Any, Any]:
        """The model with initial parameters; a resumed run fills it from its checkpoint afterwards."""

    def steps(self, model: Any, *arguments: Any) -> Any:
        """The callable for the batches of an update: `Gradients`, `BatchEM` or `EMSteps`."""
        make: Callable[..., Gradients] = Gradients if model.shard is None else ShardedGradients
        return make(model, *arguments, self.num_tokens)

    @abstractmethod
    def lines(self, model: Any) -> list[str]:
        """Lines to print before the first update: sizes first, without the device."""

    @abstractmethod
    def epoch(self, epoch: int) -> Any:
        """The batches of an epoch, the same at every call; has `len` and `[i]`."""

    @abstractmethod
    def plain(self, batches: Sequence[Batch]) -> dict[str, Any]:
        """Batches as readable JSON data, for the report of a bad one."""


class TextTask(Task):
    """A model of words and its corpus."""

    changed = "the text is not the one"
    data: Corpus

    def __init__(self, config: Config, corpus: Corpus, report: Reporter) -> None:
        self.config, self.data, self.report = config, corpus, report
        self._clusters: Clusters | None = None

    @classmethod
    def read(
        cls, config: Config, data: Any, run: Path, report: Reporter, *, resume: bool, origin: Origin | None = None
    ) -> TextTask:
        """The text of a folder or list; a resumed run has its vocabulary already."""
        vocabulary = origin.model.vocabulary if origin else None
        if resume:
            vocabulary = Vocabulary.load(run / "vocab.json")
        return cls(config, read_corpus(data, config.data, vocabulary, model=config.model, say=report.say), report)

    @property
    def num_tokens(self) -> int:
        return self.data.train.num_tokens

    def steps(self, model: Any, *arguments: Any) -> Any:
        if self.config.train.optimizer != "em":
            return super().steps(model, *arguments)
        make: Callable[..., BatchEM] = BatchEM
        return make(model, *arguments, self.num_tokens)

    def keep(self, folder: Path) -> None:
        self.data.vocabulary.save(folder / "vocab.json")

    def prepare(self, loaded: Loaded | None, origin: Origin | None = None) -> None:
        held, path = (loaded.of("model"), loaded.path) if loaded else (None, None)
        if origin is not None:
            held, path = origin.model.state_dict(), origin.path
        self._clusters = clusters(self.config, self.data, self.report, held, path)

    def expect_batches(self) -> None:
        if self.config.data.batching == "streams" or self.config.data.curriculum_start:
            self.epoch(0)

    def sizes(self) -> DataSizes:
        splits = [split for split in (self.data.valid, self.data.test) if split is not None]
        longest, held_out = max(map(len, self.data.train)), max(len(row) for split in splits for row in split)
        return DataSizes(len(self.data.vocabulary), longest, held_out, self._clusters)

    def model(self) -> Model[Any, Any]:
        config, vocabulary = self.config, self.data.vocabulary
        model = build_model(config.model, len(vocabulary), clusters=self._clusters, seed=config.train.seed)
        model.vocabulary = vocabulary
        return model

    def lines(self, model: Model[Any, Any]) -> list[str]:
        lines = [
            f"{self.config.model.family}, {model.num_parameters:,} parameters, {len(self.data.vocabulary):,} words, "
            f"{self.num_tokens:,} training tokens"
        ]
        if self.config.model.data == "sentences":
            bounds = ", and are bounds: the true ones are lower" if model.is_bound else ""
            lines.append(f"perplexities divide by {model.denominator}{bounds}")
        if model.shard is not None:
            lines.append(f"states in {model.shard.num} shards; the parameters are those that this process holds")
        return [*lines, *self.data.warnings()]

    def epoch(self, epoch: int) -> Any:
        return self.data.epoch(self.config.data, self.config.train.seed, epoch)

    def plain(self, batches: Sequence[Batch]) -> dict[str, Any]:
        decode = self.data.vocabulary.decode
        return {"sentences": [decode(row.tolist()) for row in _rows(batches)]}


class FrameTask(Task):
    """A model of frames and its recordings."""

    changed = "the recordings are not those"
    data: Recordings

    def __init__(self, config: Config, recordings: Recordings) -> None:
        self.config, self.data = config, recordings
        model: Any = config.model
        # The configuration of the model, with the number of features of the data.
        self.own: FrameConfig = dataclasses.replace(model, num_features=num_features(model, recordings))

    @classmethod
    def read(
        cls, config: Config, data: Any, run: Path, report: Reporter, *, resume: bool, origin: Origin | None = None
    ) -> FrameTask:
        """The recordings of a file or folder, or given as arrays; a resumed run has their scale already."""
        model: Any = config.model
        space = FrameSpace.load(run / FILE) if resume else origin.model.space if origin else None
        task = cls(config, read_recordings(data, config.data, model, space=space))
        expect_variance(task.own, task.data.train, name_data(data))
        expect_durations(task.own, task.data.train, name_data(data))
        return task

    @property
    def num_tokens(self) -> int:
        return self.data.train.num_frames

    def keep(self, folder: Path) -> None:
        self.data.space.save(folder / FILE)

    def expect_batches(self) -> None:
        self.epoch(0)

    def sizes(self) -> DataSizes:
        lengths = self.data.train.lengths
        return DataSizes(self.own.num_features, max(lengths), lengths=tuple(lengths))

    def model(self) -> Model[Any, Any]:
        model = build_model(self.own, self.own.num_features, seed=self.config.train.seed)
        model.space = self.data.space
        if self.own.init != "kmeans":
            model.move_to(self.data.train)
        return model

    def steps(self, model: Any, *arguments: Any) -> Any:
        em, train = self.config.train.optimizer == "em", self.data.train
        if em or self.own.init == "kmeans":  # a resumed run overwrites this from its checkpoint
            initialise_from_recipe(model, train, self.config.train.seed)
        return EMSteps(train, model, self.config, arguments[0]) if em else super().steps(model, *arguments)

    def lines(self, model: Model[Any, Any]) -> list[str]:
        train = self.data.train
        sizes = f"{self.own.size}, {model.num_parameters:,} parameters, {self.own.num_features:,} features"
        return [
            f"{self.own.family}, {sizes}, {len(train):,} training recordings of {train.num_frames:,} frames",
            *self.data.warnings(),
        ]

    def epoch(self, epoch: int) -> Any:
        symbols = self.own.observation.symbols
        return self.data.epoch(self.config.data, self.config.train.seed, epoch, symbols=symbols)

    def plain(self, batches: Sequence[Batch]) -> dict[str, Any]:
        rows = [
            [[None if x != x else x for x in frame] if isinstance(frame, list) else frame for frame in row.tolist()]
            for row in _rows(batches)
        ]
        return {"recordings": rows}


TASKS: dict[DataKind, type[Task]] = {"text": TextTask, "sentences": TextTask, "recordings": FrameTask}


def read_task(
    config: Config, data: Any, run: Path, report: Reporter, *, resume: bool, origin: Origin | None = None
) -> Task:
    """The task of a recipe; its kind is that of the model."""
    return TASKS[config.model.data].read(config, data, run, report, resume=resume, origin=origin)


def _rows(batches: Sequence[Batch]) -> list[torch.Tensor]:  # "t" or "t f" each
    return [row[:length] for batch in batches for row, length in zip(batch.values, batch.lengths.tolist(), strict=True)]


def expect_variance(model: FrameConfig, train: Frames, data: str) -> None:
    """`DataError` for a feature without any value, and a Gaussian one that is the same in all training frames."""
    gone = np.all([np.isnan(x).all(0) for x in train.features], 0)
    if gone.any():
        raise DataError(f"{data}: feature {int(gone.argmax())} is missing in every training frame.\n  Leave it out.")
    if model.observation.measured and train.constant:
        first = train.constant[0]
        raise DataError(
            f"{data}: feature {first.feature} ({first.name}) has the same value, {first.value:g}, in every training "
            "frame, smoothed and scaled as the recipe says: it has no variance and tells no states apart.\n"
            "  Leave it out."
        )


def expect_durations(model: FrameConfig, train: Frames, data: str) -> None:
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
    """The number of features of a frame, or of symbols; a recipe that says otherwise is refused."""
    found = recordings.space.num_features
    if model.observation.symbols:
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
