"""Words and other symbols given a state: softmax over the vocabulary, of inner products or of free logits.

Only the columns of a batch's own words are computed; the normalisers come from a blocked sum, which keeps the table of
all states and words for the backward pass only while it is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.numerics.log_space import pick
from rankfold.numerics.precision import current_precision, products_in
from rankfold.params.networks import normal, residual_mlp, taken, xavier


class Categorical(NamedTuple):
    """The distribution of symbols in the states that are kept; -1 is a missing symbol."""

    emission: Emission

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t" -> "b t z"
        missing = frames < 0
        return self.emission.log_obs(frames.masked_fill(missing, 0)).masked_fill(missing.unsqueeze(-1), 0.0)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n"
        return pick(self.emission.log_rows(states), generator)


class CategoricalObservation(nn.Module):
    """Softmax over the symbols, of free logits or of inner products with a network."""

    def __init__(self, emission: FreeEmission | CategoricalEmission) -> None:
        super().__init__()
        self.emission = emission

    def forward(self, keep: Tensor | None = None) -> Categorical:
        return Categorical(self.emission(keep))

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t" -> "b t z"
        """The log-probability of every symbol in every state."""
        return self.forward().log_obs(frames)


InitKind = Literal["spread", "xavier"]


class Emission(Protocol):
    """The distribution of words in every state."""

    def __iter__(self) -> Iterator[Tensor | None]: ...  # what it is made of
    def log_obs(self, words: Tensor) -> Tensor: ...  # "b t" -> "b t z"
    def log_rows(self, states: Tensor) -> Tensor: ...  # "k" -> "k v", -inf where a state never says a word


class InnerEmission(NamedTuple):
    """log p(v | z) = state_z . word_v + bias_v - log_norm_z"""

    state: Tensor  # "z d"
    word: Tensor  # "v d"
    log_norm: Tensor  # "z"
    bias: Tensor | None = None  # "v"

    @classmethod
    def normalised(cls, state: Tensor, word: Tensor, bias: Tensor | None = None) -> InnerEmission:  # "z d", "v d", "v"
        """Softmax over the words.   Cost: z v d multiply-adds; memory as `linear_logsumexp` says."""
        return cls(state, word, linear_logsumexp(state, word, bias), bias)

    def log_obs(self, words: Tensor) -> Tensor:  # "b t" -> "b t z"
        # Few words: their own products can afford float32, whose error would not average out as the normaliser's does.
        # Only where the recursion itself rounds to bfloat16 it could not be seen.
        mixed = current_precision(words.device) == "mixed"
        with products_in("mixed" if mixed else "float32", words.device):
            log_obs = linear(embedding(words, self.word), self.state, -self.log_norm)
        return log_obs if self.bias is None else log_obs + embedding(words, self.bias[:, None])

    def log_rows(self, states: Tensor) -> Tensor:  # "k" -> "k v"
        log_rows = self.state[states] @ self.word.mT - self.log_norm[states, None]
        return log_rows if self.bias is None else log_rows + self.bias


class TableEmission(NamedTuple):
    """log p(v | z) as a table."""

    log_table: Tensor  # "z v"

    def log_obs(self, words: Tensor) -> Tensor:  # "b t" -> "b t z"
        return embedding(words, self.log_table.mT)

    def log_rows(self, states: Tensor) -> Tensor:  # "k" -> "k v"
        return self.log_table[states]


def word_embeddings(
    num_states: int, num_words: int, dim: int, init: InitKind, *, generator: torch.Generator
) -> tuple[nn.Parameter, nn.Parameter]:  # "z d", "v d"
    """Embeddings of states and words. "spread": logits begin with a spread of about 1, so that states differ from the
    first update on. "xavier" is the papers' code: all states begin nearly alike, and a run first tells them apart.
    """
    if init == "xavier":
        return xavier(num_states, dim, generator=generator), xavier(num_words, dim, generator=generator)
    state = normal(num_states, dim, generator=generator)
    return state, normal(num_words, dim, spread=dim**-0.5, generator=generator)


class CategoricalEmission(nn.Module):
    """p(v | z) = softmax_v(f2(e_z) . w_v), f2 of `num_layers` residual layers.

    Source: Chiu, Deng, Rush 2021; their code applies f2 to the state, their eq. 10 to the word.
    """

    def __init__(
        self,
        num_states: int,
        num_words: int,
        dim: int,
        num_layers: int,
        *,
        init: InitKind = "spread",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.state, self.word = word_embeddings(num_states, num_words, dim, init, generator=generator)
        self.mlp = residual_mlp(dim, num_layers, generator=generator)

    def forward(self, keep: Tensor | None = None) -> Emission:
        # A view: where emissions are a branch of a captured graph, gradients of both uses of the words meet in it.
        return InnerEmission.normalised(self.mlp(taken(self.state, keep)), self.word.view_as(self.word))


class FreeEmission(nn.Module):
    """p(v | z) = softmax_v of free logits "z v": logarithms of any range, -inf included."""

    def __init__(self, log_emission: Tensor) -> None:  # "z v"
        super().__init__()
        self.log_emission = nn.Parameter(log_emission)

    @classmethod
    def draw(cls, num_states: int, num_words: int, *, generator: torch.Generator) -> FreeEmission:
        """Small random logits around the uniform distribution."""
        return cls(xavier(num_states, num_words, generator=generator).data)

    def forward(self, keep: Tensor | None = None) -> Emission:
        return TableEmission(torch.log_softmax(taken(self.log_emission, keep), 1))
