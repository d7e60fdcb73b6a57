"""How a training run ended. Read next: `training/loop.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankfold.training.evaluation import Evaluation


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: Path
    updates: int
    finished: bool  # false: interrupted, and `--resume` goes on
    best_valid: float  # the best validation: perplexity of words, nats a frame of frames
    test: Evaluation | None  # of the best model, once finished
    seconds: float  # of training, over all its parts

    @property
    def best_valid_perplexity(self) -> float:
        """That of a model of words."""
        return self.best_valid
