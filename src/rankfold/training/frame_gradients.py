"""Gradients of recordings: labels bind states, and what the recipe says of variances beforehand counts.

Read next: `training/gradients.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from rankfold.models.supervision import allowed_states
from rankfold.training.frame_graphs import FrameGraphs
from rankfold.training.gradients import Gradients


class FrameGradients(Gradients):
    """As `Gradients`, of a model of frames; labels of a batch bind its states."""

    graphed = FrameGraphs
    model: Any
    num_frames: int = 1  # of the training set
    parts: Any = None  # those of the last potentials, which say what states were dropped; None between batches

    def potentials(self, part: Any, carried: Any, generator: torch.Generator) -> Any:
        allowed = None if part.labels is None else allowed_states(part.labels, self.model.config.num_states)
        self.parts = self.model.parts(generator)
        return self.model.potentials(part, parts=self.parts, carried=carried, allowed=allowed)

    def _batch(self, batch: Any, tokens: int, seed: int) -> float:
        """The parts are let go of with the batch: as long as their history lives, so do nodes of the parameters that
        belong to this stream, and a graph that is captured on another breaks off when it meets them.
        """
        try:
            return super()._batch(batch, tokens, seed)
        finally:
            self.parts = None

    def beside(self) -> None:
        """A prior counts once in a pass over all frames: in an update by its share of them."""
        if self.model.config.variance_prior:
            (-self.model.log_prior() / self.num_frames).backward()

    def carry(self, potentials: Any) -> Any:
        return self.model.carry(potentials, parts=self.parts)
