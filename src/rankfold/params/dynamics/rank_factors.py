"""The three factors of a rank-space HMM: ranks given states, states given ranks, words given ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.kernels.linear_softmax import linear_softmax
from rankfold.params.dropout import drop_entries, drop_logits
from rankfold.params.networks import Drawing, linear, normal, residual_mlp, xavier
from rankfold.params.observations.categorical import Emission, InnerEmission, TableEmission
from rankfold.params.prior import Prior, Table, log_shares


class Factors(NamedTuple):
    """z_1 ~ start;  r_t ~ rank(. | z_t);  w_t ~ emission(. | r_t);  z_t+1 ~ state(. | r_t)."""

    log_start: Tensor  # "z"
    first: Tensor  # "r"     p(r_1), the start's mixture of the rows of U
    rank: Tensor  # "z r"    p(r | z), rows sum to 1: the paper's U
    state: Tensor  # "z r"   p(z' | r), columns sum to 1: the paper's V
    emission: Emission  # words given ranks: the paper's W


class RankFactors(nn.Module):
    """U = softmax_r(u P^T), V = softmax_z(v P^T), W = softmax_w(WordMLP), start = softmax_z(MLP(e)).

    P "r d" is shared by U and V. Embeddings begin as standard normal numbers, the rest Xavier. `printed`: the start is
    softmax_z(u . MLP(e_z)), of one embedding e_z per state, and the rest begins as Xavier normal numbers.
    Source: Yang, Liu, Tu 2022, their code; printed: App. B and D.
    """

    def __init__(
        self,
        num_states: int,
        rank: int,
        num_words: int,
        dim: int,
        num_layers: int,
        *,
        printed: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.source = normal(num_states, dim, generator=generator)
        self.target = normal(num_states, dim, generator=generator)
        if printed:
            self._draw_printed(num_states, rank, num_words, dim, num_layers, generator)
            return
        self.projection = xavier(rank, dim, generator=generator)
        self.start = normal(dim, generator=generator)
        self.start_mlp = residual_mlp(dim, num_layers, leading=True, generator=generator)
        self.start_out = linear(dim, num_states, generator=generator)
        self.word = normal(num_words, dim, generator=generator)
        self.word_mlp = residual_mlp(dim, num_layers, leading=True, generator=generator)
        self.word_out = xavier(rank, dim, generator=generator)

    def _draw_printed(
        self, num_states: int, rank: int, num_words: int, dim: int, num_layers: int, generator: torch.Generator
    ) -> None:
        drawn = Drawing("xavier_normal", generator)
        self.projection = drawn.matrix(rank, dim)
        self.start = normal(num_states, dim, generator=generator)
        self.start_mlp = drawn.residual(dim, dim, num_layers)
        self.start_out = drawn.linear(dim, 1)
        self.word = normal(num_words, dim, generator=generator)
        self.word_mlp = drawn.residual(dim, dim, num_layers)
        self.word_out = drawn.matrix(rank, dim)

    def forward(self, dropout: float, generator: torch.Generator | None) -> Factors:
        # Words first: gradients go the other way, so the tables of states are gone when those of words are made.
        emission = InnerEmission.softmax(self.word_out, self.word_mlp(self.word))
        start = self.start_mlp(drop_entries(self.start, dropout, generator=generator))
        rank = linear_softmax(self.source, self.projection, dropout=dropout, generator=generator)
        # Ranks in front: sums over states then run along memory.
        state = linear_softmax(self.projection, self.target, dropout=dropout, generator=generator)
        log_start = torch.log_softmax(self.start_out(start).flatten(), 0)
        return Factors(
            log_start,
            rank.mix(torch.exp(log_start)),
            rank.share,
            state.share.mT,
            emission,
        )


class FreeRankFactors(nn.Module):
    """The same of free logits: the ablation without a network."""

    def __init__(self, num_states: int, rank: int, num_words: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.log_start = nn.Parameter(torch.zeros(num_states, dtype=torch.float32))
        self.log_rank = normal(num_states, rank, generator=generator)
        self.log_state = normal(num_states, rank, generator=generator)
        self.log_word = xavier(rank, num_words, generator=generator)

    def forward(self, dropout: float, generator: torch.Generator | None) -> Factors:
        log_start = torch.log_softmax(self.log_start, 0)
        rank = torch.softmax(drop_logits(self.log_rank, dropout, 1, generator=generator), 1)
        return Factors(
            log_start,
            torch.exp(log_start) @ rank,
            rank,
            torch.softmax(drop_logits(self.log_state, dropout, 0, generator=generator), 0),
            TableEmission(torch.log_softmax(self.log_word, 1)),
        )

    def tables(self) -> dict[str, Table]:
        """The four distributions, by name."""
        start, rank, state, word = (x.detach().double() for x in self._logits)
        return {
            "start": Table(start.softmax(0), 0),
            "rank": Table(rank.softmax(1), 1),
            "state": Table(state.softmax(0), 0),
            "word": Table(word.softmax(1), 1),
        }

    @property
    def _logits(self) -> tuple[nn.Parameter, ...]:
        return self.log_start, self.log_rank, self.log_state, self.log_word

    def count(self, initial: Tensor, uses: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # "r", ...
        """The expected uses of all tables but the words, the states between ranks being hidden: "z", "z r", "z r".

        `uses` are those of V^T U multiplied out, "r r", or of its factors, "r z" each.
        """
        start, rank, state, _ = (x.value for x in self.tables().values())
        if len(uses) == 1:
            ratio = _ratio(uses[0].double(), state.mT @ rank)
            states, ranks = state * (rank @ ratio.mT), rank * (state @ ratio)
        else:
            states, ranks = (x.double().mT for x in uses)
        first = start[:, None] * rank * _ratio(initial.double(), start @ rank)
        return first.sum(1), ranks + first, states

    @torch.no_grad()
    def maximise(self, counts: tuple[Tensor, ...], prior: Prior) -> None:
        """The shares, with `smoothing` of each; distributions without any use stay as they are."""
        for own, used, axis in zip(self._logits, counts, (0, 1, 0, 1), strict=True):
            own.copy_(log_shares(used, own, axis, prior.smoothing))


def _ratio(uses: Tensor, weight: Tensor) -> Tensor:
    """Uses over weights; 0 where there is no weight, and so no use."""
    return torch.where(weight > 0, uses / torch.where(weight > 0, weight, 1.0), 0.0)
