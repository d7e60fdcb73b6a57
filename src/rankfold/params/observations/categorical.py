"""Words and other symbols given a state: softmax over the vocabulary, of inner products or of free logits.

Only the columns of a batch's own words are computed; the normalisers come from a blocked sum, which keeps the table of
all states and words for the backward pass only while it is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from rankfold.errors import UnsupportedError
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.numerics.log_space import pick
from rankfold.numerics.precision import current_precision, products_in
from rankfold.params.networks import InitKind, Network, free_logits, take_rows
from rankfold.params.observations.protocol import ObservationModule, Sizes, network_of
from rankfold.params.prior import Prior, Table, log_shares


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
    def softmax(cls, state: Tensor, word: Tensor, bias: Tensor | None = None) -> InnerEmission:  # "z d", "v d", "v"
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


class CategoricalEmission(nn.Module):
    """p(v | z) = softmax_v(f2(e_z) . w_v), f2 of `num_layers` residual layers.

    Source: Chiu, Deng, Rush 2021; their code applies f2 to the state, their eq. 10 to the word.
    """

    state_tables = ("state",)

    def __init__(self, num_states: int, num_words: int, network: Network) -> None:
        super().__init__()
        self.state, self.word = network.embeddings(num_states, num_words)
        self.mlp = network.mlp()

    @property
    def num_words(self) -> int:
        """How many words there are."""
        return len(self.word)

    def forward(self, keep: Tensor | None = None) -> Emission:
        # A view: where emissions are a branch of a captured graph, gradients of both uses of the words meet in it.
        return InnerEmission.softmax(self.mlp(take_rows(self.state, keep)), self.word.view_as(self.word))


class SourceEmission(nn.Module):
    """p(v | z) = softmax_v(u_z . f2(w_v)): u_z is the embedding that state z has as the source of a transition.

    Source: Chiu, Deng, Rush 2021, eq. 10 as printed.
    """

    def __init__(self, num_words: int, network: Network) -> None:
        super().__init__()
        _, self.word = network.embeddings(1, num_words)
        self.mlp = network.mlp()

    @property
    def num_words(self) -> int:
        """How many words there are."""
        return len(self.word)

    def forward(self, source: Tensor, keep: Tensor | None = None) -> Emission:  # "z d"
        # A view: where emissions are a branch of a captured graph, gradients of both uses of the states meet in it.
        return InnerEmission.softmax(take_rows(source.view_as(source), keep), self.mlp(self.word))


class FreeEmission(nn.Module):
    """p(v | z) = softmax_v of free logits "z v": logarithms of any range, -inf included."""

    state_tables = ("log_emission",)

    def __init__(self, log_emission: Tensor) -> None:  # "z v"
        super().__init__()
        self.log_emission = nn.Parameter(log_emission)

    @classmethod
    def draw(
        cls, num_states: int, num_words: int, init: InitKind = "spread", *, generator: torch.Generator
    ) -> FreeEmission:
        """Random logits around the uniform distribution."""
        return cls(free_logits(num_states, num_words, init=init, generator=generator).data)

    @property
    def num_words(self) -> int:
        """How many words there are."""
        return self.log_emission.shape[1]

    def forward(self, keep: Tensor | None = None) -> Emission:
        return TableEmission(torch.log_softmax(take_rows(self.log_emission, keep), 1))


class Categorical(NamedTuple):
    """The distribution of symbols in the states that are kept; -1 is a missing symbol."""

    emission: Emission

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t" -> "b t z"
        missing = frames < 0
        return self.emission.log_obs(frames.masked_fill(missing, 0)).masked_fill(missing.unsqueeze(-1), 0.0)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n"
        return pick(self.emission.log_rows(states), generator)


class CategoricalObservation(ObservationModule):
    """Softmax over the symbols, of free logits or of inner products with a network. EM maximises free ones."""

    symbols = True
    priors = ("emission",)
    values = "a whole number of at least 0"

    def __init__(self, emission: FreeEmission | CategoricalEmission) -> None:
        super().__init__()
        self.emission = emission

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        size, width = sizes.num_states, sizes.num_features
        if not sizes.neural:
            return cls(FreeEmission.draw(size, width, "xavier", generator=generator))  # `initialise` tells states apart
        return cls(CategoricalEmission(size, width, network_of(sizes, generator)))

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return ~(((frames >= 0) & (frames == frames.floor())) | frames.isnan())

    def forward(self, keep: Tensor | None = None) -> Categorical:
        return Categorical(self.emission(keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n" -> "n"
        """The symbols themselves."""
        return frames

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n", "n z" -> "z v"
        # A missing symbol has a row of its own, which nobody reads.
        num_symbols = self._logits.shape[1]
        rows = posterior.new_zeros(num_symbols + 1, posterior.shape[1], dtype=torch.float64)
        return rows.index_add_(0, torch.where(statistics < 0, num_symbols, statistics), posterior.double())[:-1].mT

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z v"
        """The share of each symbol, with `smoothing` of each."""
        if "probability" not in prior.fixed:
            self._logits.copy_(log_shares(counts, self._logits, added=prior.smoothing + prior.emission))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        return prior.of_shares(self._logits, prior.emission)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The shares of all symbols, each state's moved by chance, and what labels count; one more of each symbol."""
        num_states, num_symbols = self._logits.shape
        seen = frames >= 0
        overall = torch.bincount(frames[seen], minlength=num_symbols).double() + 1
        overall = overall / overall.sum()
        noise = torch.from_numpy(0.5 + rng.random((num_states, num_symbols))).to(frames.device)
        known = seen & (states >= 0)
        at = states[known] * num_symbols + frames[known]
        counts = torch.bincount(at, minlength=num_states * num_symbols).double().reshape(num_states, -1)
        table = counts + overall * noise
        self.fill(probability=table / table.sum(1, keepdim=True))

    def tables(self) -> dict[str, Table]:
        return {"probability": Table(self._logits.detach().double().softmax(1), axis=1)}

    def fill(self, *, probability: Tensor) -> None:  # type: ignore[override]
        """Set the distributions of symbols, "z v"."""
        with torch.no_grad():
            self._logits.copy_(probability.double().log())

    @property
    def _logits(self) -> nn.Parameter:
        if not isinstance(self.emission, FreeEmission):
            raise UnsupportedError('symbols from a network have no step of EM.\n  Use train.optimizer="adam".')
        return self.emission.log_emission

    @property
    def num_free(self) -> int:
        num_states, num_symbols = self._logits.shape
        return num_states * (num_symbols - 1)
