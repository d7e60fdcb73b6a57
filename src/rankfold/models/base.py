"""What all models of words share: from a batch to its log-likelihood, questions, saving.

A model gives `parts` (its distributions, without a batch), `potentials` (with one), and names its recursion.
Dropout happens exactly where a generator is given. Read next: `models/sequence_model.py`, models that go from left to
right; `models/pcfg.py`, grammars.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError, ShapeError, expect_plain, may_look
from rankfold.models.config import PlanName
from rankfold.models.grammar_config import AnyConfig
from rankfold.models.saved import SavedModel, Shares
from rankfold.numerics.precision import Precision
from rankfold.planning import Plans
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.problem import validate_lengths

Parts = TypeVar("Parts")
Potentials = TypeVar("Potentials")
IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class WordModel(SavedModel, ABC, Generic[Parts, Potentials]):
    """A distribution over sequences of word ids, with hidden paths or trees summed out exactly."""

    config: AnyConfig
    num_words: int
    is_bound: bool = False  # whether `log_likelihood` is a lower bound of it
    vocabulary: Vocabulary | None = None  # what the ids mean, where known

    def parts(self, generator: torch.Generator | None = None) -> Parts:
        """The distributions the model is made of; with a generator, those of one training step with dropout.

        Where no gradient is to follow: in float64, if float32 would lose a probability.
        """
        found = self.own_parts(generator)
        return found if generator is not None or torch.is_grad_enabled() else self._wide(found)

    @abstractmethod
    def own_parts(self, generator: torch.Generator | None = None) -> Parts:
        """The same as the dtype of the parameters makes them: probabilities below its smallest number are 0."""

    def shares(self, parts: Parts) -> Shares:
        """The parts that are probabilities in linear space; none where all are logarithms."""
        return Shares(())

    def is_wide(self, parts: Parts) -> bool:
        """Whether parts are in float64 because float32 would lose some of them."""
        return any(x.dtype != next(self.parameters()).dtype for x in self.shares(parts).linear)

    def _wide(self, parts: Parts) -> Parts:
        return self.widened(parts, self.own_parts, self.shares)

    def capturable_parts(self, generator: torch.Generator | None = None) -> Parts:
        """The same distributions as a captured graph needs them: made without a look at values, in shapes that repeat.

        The same seed drops the same as in `parts`; states that are dropped may keep their number, without mass.
        """
        return self.own_parts(generator)

    @abstractmethod
    def potentials(
        self,
        batch: Batch,
        *,
        parts: Parts | None = None,
        carried: Any = None,
        generator: torch.Generator | None = None,
    ) -> Potentials:
        """The weights of all hidden paths of a batch. `parts` saves computing them again for every batch.

        `carried` is what a stream left behind, for models that go on from there.
        """

    @abstractmethod
    def log_z(
        self, potentials: Potentials, arithmetic: Arithmetic = "scaled", precision: Precision = "float32"
    ) -> Tensor:  # "b"   float64
        """The log-probability of each sequence."""

    @abstractmethod
    def query(self, potentials: Potentials) -> Any:
        """The object whose methods answer questions of a batch."""

    @abstractmethod
    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """What a gradient step costs, in operations and bytes, for each order of summing out; the cheapest first."""

    def order(self, plan: PlanName, batch: int, length: int, device: str, precision: Precision) -> PlanName:
        """The order of summing out that was asked for; "auto": the cheapest for a batch of this shape.

        In bf16 it is TF32's: the order is chosen where potentials are made, and they are never made in bfloat16.
        """
        if plan != "auto":
            return plan
        best = self.plan(batch, length, device, "tf32" if precision == "bf16" else precision).best
        return "rank" if best.order == "rank" else "state"

    def cheapest(self, plan: PlanName, batch: Batch) -> PlanName:
        """The `order` of a batch, in the precision that is set."""
        num, length = batch.values.shape
        precision: Precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "float32"
        return self.order(plan, num, length, batch.values.device.type, precision)

    def log_likelihood(
        self, batch: Batch, *, parts: Parts | None = None, generator: torch.Generator | None = None
    ) -> Tensor:  # "b"   float64
        """The log-probability of each sequence of a batch; differentiable in the parameters."""
        self._expect_ids(batch.values)
        if parts is None and generator is None:
            parts = self._wide(self.own_parts())
        return self.log_z(self.potentials(batch, parts=parts, generator=generator))

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Any:  # "b t", "b"
        """The questions one may ask of these sequences: `.log_partition`, `.marginals()`, `.argmax()`, ..."""
        return self.query(self.potentials(self.batch(words, lengths), parts=self._wide(self.own_parts())))

    def batch(self, words: Tensor, lengths: Tensor | None = None) -> Batch:  # "b t", "b"
        """Word ids as a batch on the model's device; raises on what is not one."""
        if not isinstance(words, Tensor) or words.dtype not in IDS or words.ndim != 2 or not words.numel():
            what = f"shape {tuple(words.shape)}, {words.dtype}" if isinstance(words, Tensor) else type(words).__name__
            raise ShapeError(f'words is {what}, but integer ids "b t" were expected, at least one.')
        expect_plain(words, name="words")
        device = self.device
        lengths, _ = validate_lengths(lengths, len(words), words.shape[1], torch.empty(0, device=device))
        words = words.to(device).long()
        inside = torch.arange(words.shape[1], device=device) < lengths[:, None]
        words = torch.where(inside, words, 0)
        self._expect_ids(words)
        return Batch(words, lengths)

    def _expect_ids(self, words: Tensor) -> None:
        if not may_look(words):
            return
        low, high = int(words.min()), int(words.max())
        if low < 0 or high >= self.num_words:
            raise DomainError(
                f"a word has the id {low if low < 0 else high}, but this model knows 0 to {self.num_words - 1}."
            )
