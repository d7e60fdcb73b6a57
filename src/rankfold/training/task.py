"""What a run is of: sentences or recordings. All that the loop must ask of the one or the other.

Read next: `training/text_task.py`, `training/frame_task.py`, `training/loop.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankfold.numerics.precision import Precision
from rankfold.training.checkpoint import Loaded, Progress
from rankfold.training.config import Config, DataConfig
from rankfold.training.evaluation import Evaluation
from rankfold.training.memory import Room
from rankfold.training.report import Reporter

LARGEST = 700.0  # of an exponent that a float can hold


@dataclass(frozen=True)
class Measure:
    """How good a likelihood is, small is good: perplexity of words, nats a frame of frames."""

    name: str
    of_words: bool

    def __call__(self, log_likelihood: float, tokens: int) -> float:
        nats = -log_likelihood / tokens
        return math.exp(min(LARGEST, nats)) if self.of_words else nats

    def of(self, found: Evaluation) -> float:
        """That of an evaluation."""
        return found.perplexity if self.of_words else found.nats


PERPLEXITY, NATS = Measure("perplexity", True), Measure("nats", False)


class Task(ABC):
    """The data of a run, and what they mean for its model."""

    measure: Measure
    changed: str  # what is said of data that a resumed run did not find again
    fingerprint: str  # of the data: what a resumed run must find again
    has_test: bool

    @abstractmethod
    def summary(self) -> Mapping[str, Any]:
        """What was read, counted."""

    @abstractmethod
    def keep(self, folder: Path) -> None:
        """Write what a resumed run needs to read the same data alike."""

    def prepare(self, loaded: Loaded | None) -> None:
        """Find what the model needs to be built, if anything; what a checkpoint holds is not searched again."""
        return

    @abstractmethod
    def expect_batches(self) -> None:
        """Raise if an epoch cannot be cut as the recipe says, before any work."""

    @abstractmethod
    def room(self, device: torch.device, progress: Progress, say: Callable[[str], None]) -> Room:
        """How much of a batch fits into memory at once."""

    @abstractmethod
    def model(self) -> Any:
        """The model a run begins with, or goes on with once it is filled from a checkpoint."""

    @abstractmethod
    def steps(self, *made_of: Any) -> Any:
        """What turns the batches of an update into gradients, made as `Gradients` is."""

    @abstractmethod
    def save(self, model: Any, folder: Path) -> None:
        """Write a model with all that belongs to it."""

    @abstractmethod
    def load(self, folder: Path, device: str) -> Any:
        """What `save` wrote."""

    @abstractmethod
    def lines(self, model: Any) -> list[str]:
        """What a person should know before the first update: sizes first, without the device."""

    @abstractmethod
    def warnings(self) -> list[str]:
        """What a reader of the results should know."""

    @abstractmethod
    def epoch(self, epoch: int) -> Any:
        """The batches of an epoch, the same whenever asked: `len` and `[i]`."""

    @abstractmethod
    def counted(self, batch: Any) -> int:
        """What the measure divides by."""

    @abstractmethod
    def evaluate(self, model: Any, split: str, data: DataConfig, precision: Precision = "float32") -> Evaluation:
        """The likelihood of the split "valid" or "test"."""

    @abstractmethod
    def shown(self, batches: Sequence[Any]) -> dict[str, Any]:
        """Batches for a person to look at, as plain data."""


def read_task(config: Config, data: str | Path, run: Path, report: Reporter, *, resume: bool) -> Task:
    """The task of a recipe; its kind is that of the model."""
    from rankfold.models.frame_config import FrameConfig
    from rankfold.training.frame_task import FrameTask
    from rankfold.training.text_task import TextTask

    kind: Any = FrameTask if isinstance(config.model, FrameConfig) else TextTask
    task: Task = kind.read(config, data, run, report, resume=resume)
    return task
