"""The hidden chain of a model of words, of any family: states (or ranks) with rows of words and of next values.

Tables of states and words, or of states and states, are visited in blocks of rows and never written whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rankfold.data.vocab import Vocabulary
from rankfold.decoding.query import Values
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.operators import Operator

ENTRIES = 2**22  # of a block of rows


class HiddenChain:
    """A model of words as a chain of hidden values that say words; its distributions are computed once.

    `of` says what the values are: "states", or "ranks" for a rank-space model, whose states are summed out.
    """

    def __init__(self, model: Model[Any, Any]) -> None:
        if model.config.data != "text":
            kind = "grammar" if model.config.data == "sentences" else "model of frames"
            instead = "rankfold symbols" if kind == "grammar" else "rankfold segments-report"
            raise UnsupportedError(
                f'states that say words are asked of a {kind}, family "{model.config.family}", which has none.\n'
                f"  Of a {kind} ask {instead}."
            )
        self.model: Any = model
        with torch.no_grad():
            self.parts = self.model.parts()
        self.of: Values = getattr(model, "of", "states")
        self.num_words = model.num_words
        self.has_blocks = model.config.has_clusters  # words are said by the values of their own cluster alone
        own = self.parts.dynamics if self.has_blocks else self.parts
        self.log_initial: Tensor = own.log_initial.flatten()  # "z"
        self.num_values = len(self.log_initial)

    @property
    def position_entries(self) -> int:
        """Entries of the largest table that each position of a text has of its own."""
        # A step of block models is a table of its own.
        return max(self.num_values, self.model.per_cluster**2 if self.has_blocks else 0)

    @property
    def device(self) -> torch.device:
        """Where the distributions are."""
        return self.log_initial.device

    def next_rows(self, values: Tensor) -> Tensor:  # "k" -> "k z"
        """p(next | value), a row for each value."""
        with torch.no_grad():
            rows: Tensor = self.model.transition_rows(self.parts, values).exp()
            return rows

    def word_rows(self, values: Tensor) -> Tensor:  # "k" -> "k v"
        """p(word | value), a row for each value."""
        with torch.no_grad():
            rows: Tensor = self.parts.emission.log_rows(values).exp()
            return rows

    @property
    def transition(self) -> Operator | None:  # "z z"
        """The transition as an operator; None of block models, which have rows alone."""
        if self.has_blocks:
            return None
        found: Operator = self.parts.transition("state") if self.of == "ranks" else self.parts.transition
        return found

    def push(self, share: Tensor) -> Tensor:  # "z" -> "z"
        """The distribution of the next value, if this one has the distribution `share`."""
        transition = self.transition
        with torch.no_grad():
            if transition is None:
                return torch.stack([share[own] @ self.next_rows(own) for own in self.blocks(self.num_values)]).sum(0)
            return transition.push(share[None])[0] * torch.as_tensor(transition.log_scale).exp().to(share.dtype)

    def next_columns(self, values: Tensor) -> Tensor | None:  # "k" -> "k z"
        """p(value | previous) by previous value, a row for each value; None where it takes all rows to know it."""
        transition = self.transition
        if transition is None:
            return None
        with torch.no_grad():
            chosen = torch.zeros(len(values), self.num_values, dtype=self.log_initial.dtype, device=self.device)
            chosen[torch.arange(len(values)), values] = 1.0
            return transition.pull(chosen) * torch.as_tensor(transition.log_scale).exp().to(chosen.dtype)

    def word_share(self, word: int) -> Tensor:  # "z"
        """p(word | value) of one word, by value."""
        if not 0 <= word < self.num_words:
            raise DomainError(f"the word has the id {word}, but this model knows 0 to {self.num_words - 1}.")
        emission = self.parts.emission
        with torch.no_grad():
            found: Tensor = emission.log_obs(torch.tensor([[word]], device=self.device))[0, 0].exp()
        if not self.has_blocks:
            return found
        every = torch.zeros_like(self.log_initial)
        start = int(emission.cluster[word]) * len(found)
        every[start : start + len(found)] = found
        return every

    def blocks(self, width: int, values: Tensor | None = None) -> Iterator[Tensor]:
        """The values (all by default), cut so that so many rows of `width` have at most ENTRIES entries."""
        every = torch.arange(self.num_values, device=self.device) if values is None else values
        return iter(torch.split(every, max(1, ENTRIES // width)))

    def unigram(self, share: Tensor) -> Tensor:  # "z" -> "v" float64
        """p(word) = sum_z share[z] p(word | z).   Cost: all rows of words once."""
        total = torch.zeros(self.num_words, dtype=torch.float64, device=self.device)
        for own in self.blocks(self.num_words):
            rows = self.word_rows(own)
            total += share[own].to(rows.dtype) @ rows
        return total


def end_of(vocabulary: Vocabulary | None, num_words: int) -> int | None:
    """The id of the word after which a sentence ends; None for a model of fewer words than have one."""
    if vocabulary is not None and not vocabulary.ends:
        return None
    return Vocabulary.eos_id if Vocabulary.eos_id < num_words else None
