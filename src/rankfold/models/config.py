"""What a model of words is made of: one flat record, the `[model]` table of a recipe and of a saved model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rankfold.errors import DomainError
from rankfold.params.dropout import DropoutKind
from rankfold.params.dynamics.features import FeatureKind
from rankfold.params.networks import MOST_LAYERS
from rankfold.params.observations.categorical import InitKind
from rankfold.settings import check_choices

Family = Literal["hmm", "lhmm", "banded", "block", "rank"]
PlanName = Literal["auto", "state", "rank"]
DataKind = Literal["text", "sentences", "recordings"]  # words that go on, sentences each by itself, frames
LARGEST = 700.0  # of an exponent that a float can hold


@dataclass(frozen=True)
class Measure:
    """How good a likelihood is, small is good: perplexity of words, nats per frame of recordings."""

    name: str
    unit: str  # what it is per
    of_words: bool

    def __call__(self, log_likelihood: float, tokens: int) -> float:
        """Of so many tokens; a perplexity is infinite where a sentence is impossible, or out of a float's range."""
        nats = -log_likelihood / tokens
        if not self.of_words:
            return nats
        return math.exp(nats) if nats < LARGEST else math.inf


PERPLEXITY, NATS = Measure("perplexity", "tokens", True), Measure("nats", "frames", False)
READ_BY: dict[str, tuple[Family, ...]] = {  # settings that not every family reads
    "rank": ("lhmm", "banded", "rank"),
    "init": ("hmm", "lhmm", "banded", "block"),
    "feature_map": ("lhmm", "banded"),
    "band": ("banded",),
    "band_init": ("banded",),
    "clusters": ("block",),
    "num_clusters": ("block",),
    "tied": ("block",),
    "reset_eos": ("block",),
    "plan": ("rank",),
    "state_dropout": ("hmm", "lhmm", "banded", "block"),
    "state_dropout_kind": ("hmm", "lhmm", "banded", "block"),
    "feature_dropout": ("lhmm", "banded"),
    "logit_dropout": ("rank",),
}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and choices. A family reads what concerns it and ignores the rest, so families differ by one line."""

    data: ClassVar[DataKind] = "text"
    measure: ClassVar[Measure] = PERPLEXITY
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = READ_BY
    single_words: ClassVar[bool] = True  # whether a sentence may be one word

    family: Family = "lhmm"
    num_states: int = 1024
    rank: int = 256  # lhmm, banded: features of the transition; rank: ranks, which say the words
    dim: int = 128  # of embeddings and residual layers
    num_layers: int = 2  # residual layers of each network
    neural: bool = True  # false: free tables, the ablation
    init: InitKind = "spread"  # all but rank: how the embeddings of the emissions begin
    feature_map: FeatureKind = "exp"  # lhmm, banded
    band: int = 8  # banded: diagonals on each side of the main one
    band_init: float | None = None  # banded: log-weight at the start; None: as much mass as the low-rank part
    clusters: str = "brown"  # block: "brown", "uniform", or a file of word clusters
    num_clusters: int = 32  # block
    tied: bool = False  # block: one embedding for all roles of a state, as in the VL-HMM
    reset_eos: bool = False  # block: in training, the state after <eos> is drawn as a first one (within a batch)
    plan: PlanName = "auto"  # rank: which variables are summed out first
    state_dropout: float = 0.0  # all but rank
    state_dropout_kind: DropoutKind = "exact"
    feature_dropout: float = 0.0  # lhmm, banded
    logit_dropout: float = 0.0  # rank

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("num_states", "rank", "dim", "num_clusters"):
            if getattr(self, name) < 1:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        for name in ("num_layers", "band"):
            if getattr(self, name) < 0:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 0.")
        if self.num_layers > MOST_LAYERS:
            raise DomainError(f"num_layers is {self.num_layers:,}, but must be at most {MOST_LAYERS}.")
        for name in ("state_dropout", "feature_dropout", "logit_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1.")
        if self.family == "block" and self.num_states % self.num_clusters:
            below = max(self.num_states - self.num_states % self.num_clusters, self.num_clusters)
            raise DomainError(
                f"num_states is {self.num_states}, which {self.num_clusters} clusters cannot share evenly.\n"
                f"  Take num_states = {below}, or another num_clusters."
            )
        if self.family == "block" and self.tied and not self.neural:
            raise DomainError("tied is true, but neural is false: free tables have no embedding to share.")
        if self.family == "block" and self.state_dropout_kind == "bernoulli" and self.state_dropout:
            raise DomainError('state_dropout_kind is "bernoulli", but block models keep an exact number: "exact".')

    @property
    def has_clusters(self) -> bool:
        """Whether a word belongs to a cluster of words."""
        return self.family == "block"

    @property
    def carries(self) -> bool:
        """Whether streams can be carried: no state is dropped, or it is carried by its number."""
        return not self.state_dropout or self.family in ("rank", "block")

    @property
    def graphs_carry(self) -> bool:
        """Whether a captured graph can vouch for what streams carry.

        What other chains carry comes from several arithmetics, of which a graph has the first alone.
        """
        return self.family == "block"

    @property
    def num_inputs(self) -> int:
        """How many words there are, which a record does not say."""
        raise DomainError("num_words is not given, but a model of words needs to know how many there are.")

    @property
    def size(self) -> str:
        """How large the model is, in words."""
        return f"{self.num_states:,} states"
