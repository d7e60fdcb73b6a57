"""What a grammar is made of: one flat record, the `[model]` table of a recipe and of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rankfold.errors import DomainError
from rankfold.models.config import PERPLEXITY, DataKind, Measure, ModelConfig, PlanName
from rankfold.models.frame_config import FrameConfig
from rankfold.params.networks import MOST_LAYERS
from rankfold.settings import check_choices

GrammarFamily = Literal["npcfg", "cpcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"]
Init = Literal["family", "xavier", "xavier_normal", "torch", "spread"]
ChildKind = Literal["span_span", "span_leaf", "leaf_span", "leaf_leaf"]
KINDS: tuple[ChildKind, ...] = ("span_span", "span_leaf", "leaf_span", "leaf_leaf")
FACTORED = ("tnpcfg", "rankpcfg")  # rules with a rank between parent and children: rank space is open to them
READ_BY: dict[str, tuple[GrammarFamily, ...]] = {  # settings that not every family reads
    "rank": ("tnpcfg", "rankpcfg", "lpcfg"),
    "released": ("rankpcfg", "lpcfg"),
    "low_rank": ("lpcfg",),
    "latent_dim": ("cpcfg",),
    "encoder_dim": ("cpcfg",),
    "plan": ("tnpcfg", "rankpcfg"),
}


@dataclass(frozen=True)
class GrammarConfig:
    """Sizes and choices. A family reads what concerns it and ignores the rest, so families differ by one line."""

    data: ClassVar[DataKind] = "sentences"
    measure: ClassVar[Measure] = PERPLEXITY
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = READ_BY
    has_clusters: ClassVar[bool] = False
    carries: ClassVar[bool] = False  # whether streams can be carried
    graphs_carry: ClassVar[bool] = False

    family: GrammarFamily = "rankpcfg"
    num_nonterminals: int = 30  # symbols of spans of two words and more
    num_preterminals: int = 60  # symbols of words
    rank: int = 64  # tnpcfg, rankpcfg, lpcfg
    dim: int = 256  # of embeddings and residual layers
    num_layers: int = 2  # residual layers of each network
    neural: bool = True  # false: free tables
    released: bool = False  # rankpcfg, lpcfg: the networks of the authors' code instead of those of their paper
    init: Init = "family"  # how parameters begin; "family": as its paper says
    low_rank: tuple[ChildKind, ...] = ("span_span",)  # lpcfg: which kinds of children are of low rank
    latent_dim: int = 64  # cpcfg: of the vector drawn for each sentence
    encoder_dim: int = 512  # cpcfg: of the network that guesses it, in each direction
    single_words: bool = False  # whether a sentence may be one word; the papers leave them out
    plan: PlanName = "auto"  # tnpcfg, rankpcfg: which variables are summed out first

    def __post_init__(self) -> None:
        check_choices(self)
        for name in ("num_nonterminals", "num_preterminals", "rank", "dim", "latent_dim", "encoder_dim"):
            if getattr(self, name) < 1:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.num_layers < 0:
            raise DomainError(f"num_layers is {self.num_layers}, but must be at least 0.")
        if self.num_layers > MOST_LAYERS:
            raise DomainError(f"num_layers is {self.num_layers:,}, but must be at most {MOST_LAYERS}.")
        strange = [kind for kind in self.low_rank if kind not in KINDS]
        if strange or len(set(self.low_rank)) < len(self.low_rank):
            raise DomainError(f"low_rank is {list(self.low_rank)}, but each of {', '.join(KINDS)} may be there once.")
        if self.family == "cpcfg" and not self.neural:
            raise DomainError('neural is false, but a "cpcfg" is its networks: free tables have no latent vector.')
        if self.plan == "rank" and self.family not in FACTORED:
            raise DomainError(f'plan is "rank", but {self.family} has no ranks to sum in: "auto" or "state".')

    @property
    def num_symbols(self) -> int:
        """Nonterminals and preterminals together."""
        return self.num_nonterminals + self.num_preterminals

    @property
    def num_inputs(self) -> int:
        """How many words there are, which a record does not say."""
        raise DomainError("num_words is not given, but a model of words needs to know how many there are.")

    @property
    def size(self) -> str:
        """How large the grammar is, in words."""
        return f"{self.num_nonterminals:,} nonterminals, {self.num_preterminals:,} preterminals"


WordConfig = ModelConfig | GrammarConfig
AnyConfig = WordConfig | FrameConfig
CONFIGS = (ModelConfig, GrammarConfig, FrameConfig)


def readers(config: AnyConfig, name: str) -> tuple[str, ...] | None:
    """The families that read a setting, if this one does not; None where it does."""
    found = config.read_by.get(name)
    return None if found is None or config.family in found else found
