"""The hidden Markov model of words: softmax, low-rank or banded transitions, words from states.

    p(x, z) = start[z_1] emission[z_1, x_1]  prod_t  A[z_t-1, z_t] emission[z_t, x_t]

Read next: `params/transitions.py` for A, `recursions/chain` for the sum over z.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.errors import UnsupportedError, expect, same_kind
from rankfold.models.base import Shares, linear
from rankfold.models.chain_model import ChainModel
from rankfold.models.config import ModelConfig
from rankfold.models.tables import expect_distributions
from rankfold.numerics.capture import beside
from rankfold.numerics.precision import Precision
from rankfold.operators import Operator
from rankfold.params.dropout import kept, num_kept, staying
from rankfold.params.dynamics.free_tables import FreeDense
from rankfold.params.dynamics.transitions import BandedTransition, LowRankTransition, SoftmaxTransition
from rankfold.params.observations.categorical import CategoricalEmission, Emission, FreeEmission
from rankfold.planning import ChainSizes, Plans, chain_plan
from rankfold.recursions.chain.potentials import ChainPotentials

Transition = SoftmaxTransition | FreeDense | LowRankTransition | BandedTransition


class HMMParts(NamedTuple):
    """The distributions of an HMM, over the states that are kept."""

    log_initial: Tensor  # "z"
    transition: Operator  # "z z"
    emission: Emission
    log_mask: Tensor | None = None  # "z"   -inf for dropped states that keep their number


class HMM(ChainModel[HMMParts]):
    """Families "hmm" (softmax), "lhmm" (low rank) and "banded" (low rank + band)."""

    def __init__(
        self, config: ModelConfig, transition: Transition, emission: CategoricalEmission | FreeEmission
    ) -> None:
        super().__init__()
        self.config, self.transition, self.emission = config, transition, emission
        table = emission.word if isinstance(emission, CategoricalEmission) else emission.log_emission.mT
        self.num_words = len(table)

    @classmethod
    def from_tables(cls, start: Tensor, transition: Tensor, emission: Tensor) -> HMM:  # "z", "z z", "z v"
        """The HMM with these probabilities, each row summing to 1, as trainable free tables.

        float32 or float64; zeros stay zero, in training too.
        """
        if not isinstance(transition, Tensor):
            raise UnsupportedError(
                f"transition is a {type(transition).__name__}, but a matrix was expected.\n"
                "  With an operator build rankfold.ChainPotentials(log_initial, operator, log_obs) directly."
            )
        expect(start, "z", name="start")
        expect(transition, "z y", name="transition", z=len(start), y=len(start))
        expect(emission, "z v", name="emission", z=len(start))
        same_kind(start, "start", {"transition": transition, "emission": emission})
        for name, table in (("start", start), ("transition", transition), ("emission", emission)):
            expect_distributions(table, name)
        config = ModelConfig(family="hmm", num_states=len(start), neural=False)
        log_start, log_transition, log_emission = (x.detach().log() for x in (start, transition, emission))
        return cls(config, FreeDense(log_start, log_transition), FreeEmission(log_emission))

    def own_parts(self, generator: torch.Generator | None = None) -> HMMParts:
        return self._parts(generator, masked=isinstance(self.transition, BandedTransition))

    def shares(self, parts: HMMParts) -> Shares:
        low_rank = isinstance(self.transition, LowRankTransition | BandedTransition)
        return Shares(linear([parts.transition]), [parts.log_initial] if low_rank else [])

    def capturable_parts(self, generator: torch.Generator | None = None) -> HMMParts:
        """States that are dropped each by itself leave by a mask. Cost: that of all states."""
        varies = self.config.state_dropout_kind == "bernoulli"
        return self._parts(generator, masked=varies or isinstance(self.transition, BandedTransition))

    def _parts(self, generator: torch.Generator | None, *, masked: bool) -> HMMParts:
        """Dropped states are left out, or masked: of the start, of every step's targets and of the observations.

        The same distribution over sentences: a dropped state has no mass, so what its own row says is never used.
        """
        config = self.config
        size, dropout, kind = config.num_states, config.state_dropout, config.state_dropout_kind
        keep = None if masked else kept(size, dropout, generator=generator, kind=kind)
        stays = staying(size, dropout, generator=generator, kind=kind) if masked else None
        features = kept(config.rank, config.feature_dropout, generator=generator)
        # Emissions first: gradients go the other way, so the transition's tables are gone when the emissions' are made.
        with beside(keep) as join:
            emission = self.emission(keep)
        log_initial, transition = self.transition(keep, features, stays)
        for x in emission:
            join(x)
        if stays is None:
            return HMMParts(log_initial, transition, emission)
        log_mask = torch.zeros_like(log_initial).masked_fill(~stays, float("-inf"))
        return HMMParts(log_initial, transition, emission, log_mask)

    def potentials(
        self,
        batch: Batch,
        *,
        parts: HMMParts | None = None,
        carried: Tensor | None = None,
        generator: torch.Generator | None = None,
        allowed: Tensor | None = None,
    ) -> ChainPotentials:
        parts = self.parts(generator) if parts is None else parts
        log_obs = parts.emission.log_obs(batch.values)
        if parts.log_mask is not None:
            log_obs = log_obs + parts.log_mask
        self.refuse_allowed(allowed)
        log_initial = parts.log_initial if carried is None else carried[: len(batch.values)]
        return ChainPotentials(log_initial, parts.transition, log_obs, lengths=batch.lengths)

    def transition_rows(self, parts: HMMParts, index: Tensor) -> Tensor:  # "k" -> "k z"
        return parts.transition.log_rows(index)

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        config = self.config
        # Banded states keep their numbers; so do, in a captured graph, those that are dropped each by itself.
        graphs = config.state_dropout_kind == "bernoulli" and device.startswith("cuda")
        masked = config.family == "banded" or graphs
        size = config.num_states if masked else num_kept(config.num_states, config.state_dropout)
        rank = None if config.family == "hmm" else num_kept(config.rank, config.feature_dropout)
        band = 2 * min(config.band, size - 1) + 1 if config.family == "banded" else 0
        dim = config.dim if config.neural else 0
        sizes = ChainSizes(size, rank, self.num_parameters, dim, self.num_words, band)
        return chain_plan(sizes, batch, length, device, precision)
