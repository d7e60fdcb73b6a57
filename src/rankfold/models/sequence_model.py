"""Models that read words from left to right: what they carry along a stream, the next word, generation.

Read next: `models/chain_model.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.generate import generate_words
from rankfold.decoding.online import next_words
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Potentials, WordModel
from rankfold.models.config import ModelConfig
from rankfold.params.observations.categorical import Emission


class HasEmission(Protocol):
    """Whatever else a model is made of, it has a distribution of words given each hidden value."""

    @property
    def emission(self) -> Emission: ...


Parts = TypeVar("Parts", bound=HasEmission)
Carried = TypeVar("Carried")
AT_ONCE = 256


class SequenceModel(WordModel[Parts, Potentials], Generic[Parts, Potentials, Carried]):
    """A model of words whose hidden values follow one another."""

    config: ModelConfig

    @abstractmethod
    def potentials(
        self,
        batch: Batch,
        *,
        parts: Parts | None = None,
        carried: Carried | None = None,
        generator: torch.Generator | None = None,
        allowed: Tensor | None = None,
    ) -> Potentials: ...

    @abstractmethod
    def carry(self, potentials: Potentials, parts: Parts | None = None) -> Carried:
        """What the next stretch of a stream needs to know, detached."""

    @abstractmethod
    def log_next(self, parts: Parts, batch: Batch | None) -> Tensor:  # "b z"
        """The log-distribution of the hidden value after each sequence; before any word if there is no batch."""

    @abstractmethod
    def transition_rows(self, parts: Parts, index: Tensor) -> Tensor:  # "k" -> "k z"
        """The log-distribution of the next hidden value, given this one."""

    def generate(
        self,
        num: int = 1,
        *,
        prefix: Sequence[int] = (),
        end: int = Vocabulary.eos_id,
        max_length: int = 100,
        generator: torch.Generator | None = None,
    ) -> list[list[int]]:
        """Word ids of `num` independent sentences that go on after `prefix`, which is not repeated; without `end`."""
        if num < 1 or max_length < 1:
            raise DomainError(f"num is {num} and max_length {max_length}, but both must be at least 1.")
        with torch.no_grad():
            parts = self.parts()
            batch = self.batch(torch.tensor([list(prefix)])) if len(prefix) else None
            log_next = self.log_next(parts, batch)
            if not bool((log_next > float("-inf")).any()):
                raise DomainError("the prefix has probability 0 under this model: nothing can follow it.")
            drawn: list[list[int]] = []
            while len(drawn) < num:  # a few at a time: each holds a row of the transition and of the emissions
                drawn += generate_words(
                    log_next.expand(min(AT_ONCE, num - len(drawn)), -1),
                    lambda index: self.transition_rows(parts, index),
                    parts.emission.log_rows,
                    end=end,
                    max_length=max_length,
                    generator=generator,
                )
            return drawn

    def predict(self, batch: Batch | None = None, *, parts: Parts | None = None) -> Tensor:  # "b v"   float64
        """The log-probability of every word as the next one, after each sequence of a batch (or at the start)."""
        with torch.no_grad():
            parts = self.parts() if parts is None else parts
            return next_words(self.log_next(parts, batch), parts.emission.log_rows, self.num_words)


def expect_sequences(model: WordModel[Any, Any], what: str) -> SequenceModel[Any, Any, Any]:
    """The model, if it reads from left to right; raises with `what` was asked of it if not."""
    if not isinstance(model, SequenceModel):
        raise UnsupportedError(
            f"{what} needs a model that reads words from left to right, but {model.config.family} is a grammar."
        )
    return model
