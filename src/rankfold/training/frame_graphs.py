"""Captured gradients of recordings: buffers for frames and labels, and the state that windows carry.

A row that only fills a shape is one missing frame, which every state explains alike; it weighs 0.
Read next: `training/graphs.py`, `training/frame_gradients.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from rankfold.data.batch import Batch
from rankfold.data.frames import UNKNOWN
from rankfold.models.supervision import allowed_states
from rankfold.training.config import Config
from rankfold.training.graphs import GraphedGradients, into
from rankfold.training.memory import Room
from rankfold.training.shapes import FrameShapes


class FrameGraphs(GraphedGradients):
    """As `GraphedGradients`, of a model of frames; labels of a batch bind its states."""

    model: Any

    @staticmethod
    def shapes_of(config: Config, room: Room) -> FrameShapes:
        return FrameShapes(config.data, room.part_tokens)

    def takes(self, batch: Any) -> bool:
        """Not windows with labels: impossible states carry exact zeros, which a graph cannot tell from lost ones."""
        return super().takes(batch) and not (self.streams and batch.labels is not None)

    def kind(self, batch: Any) -> tuple[bool, ...]:
        """Whether its sequences end, and whether some states are known."""
        return batch.last, batch.labels is not None

    def buffers(self, shape: tuple[int, int], like: Any) -> Any:
        device = self.model.device
        frames = like.values.new_full((*shape, *like.values.shape[2:]), missing(like), device=device)
        labels = None if like.labels is None else like.labels.new_full(shape, UNKNOWN, device=device)
        return Batch(frames, torch.ones(shape[0], dtype=torch.int64, device=device), labels, like.first, like.last)

    def write(self, batch: Any, buffers: Any) -> None:
        into(buffers.values, batch.values, missing(batch))
        into(buffers.lengths, batch.lengths, 1)
        if batch.labels is not None:
            into(buffers.labels, batch.labels, UNKNOWN)

    def potentials(self, batch: Any, carried: Any) -> tuple[Any, Any]:
        allowed = None if batch.labels is None else allowed_states(batch.labels, self.model.config.num_states)
        parts = self.model.capturable_parts(self.generator)
        return self.model.potentials(batch, parts=parts, carried=carried, allowed=allowed), parts

    def carry(self, batch: Any, p: Any, parts: Any) -> Any:
        return None if batch.last else self.model.carry(p, parts)


def missing(batch: Batch) -> float:
    """What stands for a missing feature, or symbol."""
    return float("nan") if batch.values.dtype.is_floating_point else UNKNOWN
