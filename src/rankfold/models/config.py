"""Configurations of models: flat records, the `[model]` table of a recipe and of a saved model.

Three of them: words left to right, grammars, frames. All say what data they are of, how likelihoods are measured, and
which families read a setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import DomainError
from rankfold.params.dropout import DropoutKind, num_kept
from rankfold.params.dynamics.features import FeatureKind
from rankfold.params.networks import MOST_LAYERS, InitKind
from rankfold.params.observations import OBSERVATIONS, ObservationModule
from rankfold.params.observations.product import kinds_of, known_kind
from rankfold.params.observations.protocol import Invalid
from rankfold.settings import check_choices

GrammarFamily = Literal["npcfg", "cpcfg", "tnpcfg", "rankpcfg", "lpcfg", "spcfg"]
Init = Literal["family", "xavier", "xavier_normal", "torch", "spread"]
ChildKind = Literal["span_span", "span_leaf", "leaf_span", "leaf_leaf"]
KINDS: tuple[ChildKind, ...] = ("span_span", "span_leaf", "leaf_span", "leaf_leaf")
# Rules with a rank between parent and children: rank space is open to them.
FACTORED: tuple[GrammarFamily, ...] = ("tnpcfg", "rankpcfg")
FrameFamily = Literal["frame_hmm", "frame_lhmm", "hsmm", "lhsmm", "rank_hsmm"]
DurationKind = Literal["poisson", "negative_binomial", "categorical"]
CovarianceKind = Literal["diag", "full", "tied", "spherical", "low_rank"]
FrameInit = Literal["spread", "kmeans", "papers"]
SEGMENTS: tuple[FrameFamily, ...] = ("hsmm", "lhsmm", "rank_hsmm")
LOW_RANK: tuple[FrameFamily, ...] = ("frame_lhmm", "lhsmm")

Family = Literal["hmm", "lhmm", "banded", "block", "rank"]
HMMS: tuple[Family, ...] = ("hmm", "lhmm", "banded")  # ordinary chains of states that say the words
SHARDED: tuple[Family, ...] = ("hmm", "lhmm", "block")  # states, or clusters, that several processes may hold
PlanName = Literal["auto", "state", "rank"]
DataKind = Literal["text", "sentences", "recordings"]  # words that go on, sentences each by itself, frames
LARGEST = 700.0  # of an exponent that a float can hold


@dataclass(frozen=True)
class Measure:
    """How good a likelihood is, small is good: perplexity of words, nats per frame of recordings."""

    name: str
    unit: str  # what it is per: tokens, frames
    of_words: bool

    def __call__(self, log_likelihood: float, tokens: int) -> float:
        """The measure; a perplexity is infinite where a sentence is impossible, or it is out of a float's range."""
        nats = -log_likelihood / tokens
        if not self.of_words:
            return nats
        return math.exp(nats) if nats < LARGEST else math.inf


PERPLEXITY, NATS = Measure("perplexity", "tokens", True), Measure("nats", "frames", False)

_WORDS_READ_BY: dict[str, tuple[Family, ...]] = {  # settings that not every family reads
    "rank": ("lhmm", "banded", "rank"),
    "init": (*HMMS, "block"),
    "feature_map": ("lhmm", "banded"),
    "band": ("banded",),
    "band_init": ("banded",),
    "clusters": ("block",),
    "num_clusters": ("block",),
    "tied": ("block",),
    "printed": (*HMMS, "rank"),
    "reset_eos": ("block",),
    "plan": ("rank",),
    "state_dropout": (*HMMS, "block"),
    "state_dropout_kind": (*HMMS, "block"),
    "feature_dropout": ("lhmm", "banded"),
    "logit_dropout": ("rank",),
}
_GRAMMARS_READ_BY: dict[str, tuple[GrammarFamily, ...]] = {  # settings that not every family reads
    "rank": (*FACTORED, "lpcfg"),
    "released": ("rankpcfg", "lpcfg"),
    "low_rank": ("lpcfg",),
    "latent_dim": ("cpcfg",),
    "encoder_dim": ("cpcfg",),
    "plan": FACTORED,
}
_FRAMES_READ_BY: dict[str, tuple[FrameFamily, ...]] = {  # settings that not every family reads
    "rank": LOW_RANK,
    "feature_map": LOW_RANK,
    "feature_dropout": LOW_RANK,
    "max_duration": SEGMENTS,
    "durations": SEGMENTS,
    "normalised_durations": SEGMENTS,
    "censored": SEGMENTS,
    "summed_states": ("rank_hsmm",),
}


class OfWords:
    """What configurations of models of words have in common."""

    measure: ClassVar[Measure] = PERPLEXITY
    capturable: ClassVar[bool] = True  # whether a CUDA graph can hold it

    @property
    def num_inputs(self) -> int:
        """How many words there are, which a record does not say."""
        raise DomainError("num_words is not given, but a model of words needs to know how many there are.")


@dataclass(frozen=True)
class ModelConfig(OfWords):
    """Sizes and choices. A family ignores the settings of others, so configurations differ by one line."""

    data: ClassVar[DataKind] = "text"
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = _WORDS_READ_BY
    single_words: ClassVar[bool] = True  # whether a sentence may be one word

    family: Family = "lhmm"
    num_states: int = 1024
    rank: int = 256  # lhmm, banded: features of the transition; rank: ranks, which say the words
    dim: int = 128  # of embeddings and residual layers
    num_layers: int = 2  # residual layers of each network
    neural: bool = True  # false: free tables, the ablation
    init: InitKind = "spread"  # all but rank: of the emissions' embeddings; of the free tables of hmm, lhmm, banded
    printed: bool = False  # all but block: the networks of the papers' text instead of those of the authors' code
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
    shards: int = 1  # hmm, lhmm, block: processes that hold the states, each some of them

    def __post_init__(self) -> None:
        check_choices(self)
        _expect_least(self, 1, "num_states", "rank", "dim", "num_clusters", "shards")
        _expect_least(self, 0, "band")
        if self.shards > 1 and self.family not in SHARDED:
            raise DomainError(
                f'shards is {self.shards}, but the states of "{self.family}" cannot be shared by processes.\n'
                f"  Families that can: {', '.join(SHARDED)}."
            )
        _expect_networks(self, "state_dropout", "feature_dropout", "logit_dropout")
        if self.family == "block" and self.num_states % self.num_clusters:
            below = max(self.num_states - self.num_states % self.num_clusters, self.num_clusters)
            raise DomainError(
                f"num_states is {self.num_states}, which {self.num_clusters} clusters cannot share evenly.\n"
                f"  Take num_states = {below}, or another num_clusters."
            )
        if self.family == "block" and self.tied and not self.neural:
            raise DomainError("tied is true, but neural is false: free tables have no embedding to share.")
        if self.printed and not self.neural and self.family != "block":
            raise DomainError("printed is true, but neural is false: free tables have no network to choose.")
        if self.family == "block" and self.state_dropout_kind == "bernoulli" and self.state_dropout:
            raise DomainError('state_dropout_kind is "bernoulli", but block models keep an exact number: "exact".')

    @property
    def has_clusters(self) -> bool:
        """Whether a word belongs to a cluster of words."""
        return self.family == "block"

    @property
    def own_rank(self) -> int | None:
        """The rank of the transition; None if it is dense."""
        return self.rank if self.family in self.read_by["rank"] else None

    @property
    def keeps_numbers(self) -> bool:
        """Whether dropped states are masked, since their numbers say who is next to whom."""
        return self.family == "banded"

    @property
    def linear_start(self) -> bool:
        """Whether the start is made of probabilities in linear space."""
        return self.family != "hmm"

    @property
    def carries(self) -> bool:
        """Whether streams can be carried: no state is dropped, or it is carried by its number."""
        return not self.state_dropout or self.family in ("rank", "block")

    @property
    def graphs_carry(self) -> bool:
        """Whether a captured graph can vouch for the carried state of streams.

        The state of other chains may need a fallback to wider arithmetic, and a graph has only the first one.
        """
        return self.family == "block"

    @property
    def size(self) -> str:
        """The size of the model, as text for people."""
        return f"{self.num_states:,} states"


@dataclass(frozen=True)
class GrammarConfig(OfWords):
    """Sizes and choices. A family ignores the settings of others, so configurations differ by one line."""

    data: ClassVar[DataKind] = "sentences"
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = _GRAMMARS_READ_BY
    has_clusters: ClassVar[bool] = False
    carries: ClassVar[bool] = False  # whether streams can be carried
    graphs_carry: ClassVar[bool] = False
    shards: ClassVar[int] = 1

    family: GrammarFamily = "rankpcfg"
    num_nonterminals: int = 30  # symbols of spans of two words and more
    num_preterminals: int = 60  # symbols of words
    rank: int = 64  # tnpcfg, rankpcfg, lpcfg
    dim: int = 256  # of embeddings and residual layers
    num_layers: int = 2  # residual layers of each network
    neural: bool = True  # false: free tables
    released: bool = False  # rankpcfg, lpcfg: the networks of the authors' code instead of those of their paper
    init: Init = "family"  # initialisation of parameters; "family": as its paper says
    low_rank: tuple[ChildKind, ...] = ("span_span",)  # lpcfg: which kinds of children are of low rank
    latent_dim: int = 64  # cpcfg: of the vector drawn for each sentence
    encoder_dim: int = 512  # cpcfg: of the network that guesses it, in each direction
    single_words: bool = False  # whether a sentence may be one word; the papers leave them out
    early_width: int = 0  # longest constituent in the first updates, but for those that end the sentence; 0: any
    early_updates: int = 0  # how many updates these are
    plan: PlanName = "auto"  # tnpcfg, rankpcfg: which variables are summed out first

    def __post_init__(self) -> None:
        check_choices(self)
        _expect_least(self, 1, "num_nonterminals", "num_preterminals", "rank", "dim", "latent_dim", "encoder_dim")
        _expect_networks(self)
        _expect_least(self, 0, "early_width", "early_updates")
        if bool(self.early_width) != bool(self.early_updates):
            raise DomainError(
                f"early_width is {self.early_width} and early_updates is {self.early_updates}, but they go together: "
                "both above 0, or both 0."
            )
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
    def size(self) -> str:
        """The size of the grammar, as text for people."""
        return f"{self.num_nonterminals:,} nonterminals, {self.num_preterminals:,} preterminals"


@dataclass(frozen=True)
class FrameConfig:
    """Sizes and choices. A family ignores the settings of others, so configurations differ by one line."""

    data: ClassVar[DataKind] = "recordings"
    measure: ClassVar[Measure] = NATS
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = _FRAMES_READ_BY
    has_clusters: ClassVar[bool] = False
    carries: ClassVar[bool] = True  # whether streams can be carried
    shards: ClassVar[int] = 1
    plan: ClassVar[PlanName] = "auto"  # there is one elimination order
    keeps_numbers: ClassVar[bool] = False
    graphs_carry: ClassVar[bool] = True  # the first arithmetic is enough for recordings, whose windows are many

    family: FrameFamily = "hsmm"
    observations: str = "gaussian"  # a name in the catalogue `params.observations.OBSERVATIONS`
    num_states: int = 16
    num_features: int = 0  # of a frame; categorical: how many symbols there are; 0: as many as the data have
    rank: int = 16  # frame_lhmm, lhsmm
    summed_states: int = 256  # rank_hsmm: states between segments, summed out; num_states are then the ranks
    max_duration: int = 50  # hsmm, lhsmm: the longest segment, in frames
    durations: DurationKind = "poisson"  # hsmm, lhsmm
    normalised_durations: bool = True  # false: the mass a Poisson has at 0 and above the longest is lost
    self_transitions: bool | None = None  # whether a state may follow itself; None: of frames it may, of segments not
    censored: bool = False  # hsmm, lhsmm: whether the end of a sequence may cut its last segment
    min_duration: int = 1  # hsmm, lhsmm: the shortest segment, in frames
    tied_states: tuple[int, ...] = ()  # the group of each state, whose observations its states share; (): none does
    ends: bool = False  # whether sequences end by themselves, each state with its own probability to be the last
    tied_variance: bool = False  # gaussian: one vector of variances for all states
    min_variance: float = 1e-3  # gaussian: no variance is below it, in units of the features; 0: none
    variance_prior: float = 0.0  # gaussian: as if each variance had seen so many frames of variance 1
    covariance: CovarianceKind = "diag"  # gaussian and others like it; "tied": one matrix for all states
    covariance_states: int = 1  # gaussian, covariance "full": so many neighbouring states share a matrix
    covariance_rank: int = 1  # covariance "low_rank": factors, besides the noise of each feature
    num_components: int = 2  # gaussian_mixture: Gaussians of a state
    num_covariates: int = 0  # regression: the last so many columns are inputs
    num_classes: int = 2  # logistic: how many symbols there are
    order: int = 1  # autoregressive: how many frames before count
    driven: tuple[str, ...] = ()  # frame_hmm: what the inputs of each frame drive, of "transition" and "start"
    num_drivers: int = 0  # driven: how many inputs
    drivers_rank: int = 0  # driven: of the weights of transitions; 0: any
    columns: tuple[str, ...] = ()  # product: the observations of each column, "categorical:4" with its symbols
    chains: tuple[int, ...] = ()  # frame_hmm: states of each of several chains side by side; num_states: their product
    parents: tuple[int, ...] = ()  # frame_hmm: a tree of chains, the parent of each node (-1: root); states are leaves
    neural: bool = False  # transitions, Bernoullis and symbols from networks; false: free tables
    dim: int = 128  # neural: of embeddings and residual layers
    num_layers: int = 2  # neural: residual layers of each network
    feature_map: FeatureKind = "exp"  # frame_lhmm, lhsmm, neural
    # Initialisation. "spread": drawn; "kmeans": drawn, until training puts the means where the frames are;
    # "papers": all states alike, or as the papers' networks do.
    init: FrameInit = "spread"
    state_dropout: float = 0.0
    state_dropout_kind: DropoutKind = "exact"
    feature_dropout: float = 0.0  # frame_lhmm, lhsmm: of the ranks

    def __post_init__(self) -> None:
        check_choices(self)
        if self.observations not in OBSERVATIONS:
            raise DomainError(f"observations is {self.observations!r}, but must be one of {', '.join(OBSERVATIONS)}.")
        _expect_least(self, 1, "num_states", "rank", "summed_states", "max_duration", "dim")
        _expect_least(self, 1, "covariance_states", "covariance_rank", "num_components", "order", "num_classes")
        for name in ("num_features", "min_variance", "variance_prior", "num_covariates", "num_drivers", "drivers_rank"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise DomainError(f"{name} is {value}, but must be finite and at least 0.")
        _expect_networks(self, "state_dropout", "feature_dropout")
        if not self.normalised_durations and self.durations != "poisson":
            raise DomainError(
                f'normalised_durations is false, but durations are "{self.durations}": only "poisson" may lose mass.'
            )
        self._expect_observations()
        self._expect_groups()
        if not 1 <= self.min_duration <= (self.max_duration if self.has_segments else 1):
            raise DomainError(
                f"min_duration is {self.min_duration}, but must be from 1 to max_duration, {self.max_duration}, and "
                "states without segments have none."
            )
        if self.min_duration > 1 and not self.normalised_durations:
            raise DomainError("min_duration is above 1, and normalised_durations false: shorter ones lose their mass.")
        if self.ends and self.censored:
            raise DomainError("ends and censored are both true, but a sequence ends by itself, or is cut.")
        if self.chains or self.parents:
            self._expect_structure()
        if strange := [name for name in self.driven if name not in ("transition", "start")]:
            raise DomainError(f'driven has {strange[0]!r}, but inputs drive "transition" or "start".')
        if self.driven and (self.family != "frame_hmm" or self.neural or self.state_dropout or not self.num_drivers):
            raise DomainError(
                "driven goes with the family frame_hmm, free tables, no state_dropout, and num_drivers of at least 1."
            )
        if self.family == "rank_hsmm" and (self.state_dropout or not self.may_repeat):
            raise DomainError(
                "rank_hsmm has no states left to drop or leave, but state_dropout or self_transitions = false came.\n"
                "  Leave them out, or take the family lhsmm."
            )
        if not self.may_repeat:
            self._expect_others()

    @property
    def num_groups(self) -> int:
        """How many distributions of observations there are: states, or groups of them."""
        return max(self.tied_states) + 1 if self.tied_states else self.num_states

    def _expect_groups(self) -> None:
        tied = self.tied_states
        if tied and (len(tied) != self.num_states or set(tied) != set(range(self.num_groups))):
            raise DomainError(
                f"tied_states is {list(tied)}, but the group of each of {self.num_states} states was expected, "
                "numbered from 0 on without gaps."
            )
        if tied and (self.neural or self.chains or self.parents):
            raise DomainError("tied_states go with free tables of plain states: no networks, no structure of chains.")

    def _expect_observations(self) -> None:
        takes = OBSERVATIONS[self.observations].covariances
        if takes and self.covariance not in takes:
            raise DomainError(
                f'covariance is "{self.covariance}", but {self.observations} observations have {" or ".join(takes)}.'
            )
        if self.tied_variance and self.covariance != "diag":
            raise DomainError(
                f'tied_variance is true and covariance "{self.covariance}", but only diagonal ones are tied so.\n'
                '  covariance = "tied" is one full matrix for all states.'
            )
        if self.tied_variance and self.observations in (
            "gaussian_mixture",
            "student_t",
            "regression",
            "autoregressive",
            "regression_student_t",
            "autoregressive_student_t",
        ):
            raise DomainError(
                f"tied_variance is true, but {self.observations} observations have variances for each state alone.\n"
                "  Set tied_variance = false."
            )
        shared = self.covariance_states
        if shared > 1 and (self.observations != "gaussian" or self.covariance != "full" or self.state_dropout):
            raise DomainError(
                f"covariance_states is {shared}, but the matrices that states may share are those of gaussian "
                'observations with covariance = "full" and without state_dropout.'
            )
        if self.num_groups % shared:
            raise DomainError(
                f"covariance_states is {shared}, but {self.num_groups} states cannot be shared out evenly.\n"
                f"  Set it to a divisor of {self.num_groups}."
            )
        if (self.observations == "product") != bool(self.columns):
            raise DomainError(
                'columns name the observations of each column, and go with observations = "product" alone, which needs '
                "them."
            )
        for name in kinds_of(self.columns):
            known_kind(name, OBSERVATIONS)

    def _expect_structure(self) -> None:
        if self.chains and self.parents:
            raise DomainError("chains and parents: states are tuples of several chains, or leaves of a tree, not both.")
        name = "chains" if self.chains else "parents"
        if self.family != "frame_hmm" or self.neural or self.state_dropout or not self.may_repeat:
            raise DomainError(f'{name} go with family = "frame_hmm", free tables and no dropout alone.')
        if self.chains and min(self.chains) < 1:
            raise DomainError(f"chains are {list(self.chains)}, but a chain has at least one state.")
        num = math.prod(self.chains) if self.chains else len(set(range(len(self.parents))) - set(self.parents))
        if num != self.num_states:
            raise DomainError(
                f"num_states is {self.num_states}, but {name} = {list(getattr(self, name))!s:.60} make {num}."
            )

    def invalid(self, frames: Tensor, inside: Tensor | None = None) -> Invalid | None:  # "... f", "..." bool
        """The first value that cannot be observed; None if all can. `inside`: which frames are no padding."""
        inside = frames.new_ones(frames.shape[:-1], dtype=torch.bool) if inside is None else inside
        return self.observation.first_invalid(frames, inside, self)

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the observations."""
        return self.observation.capturable and self.covariance in ("diag", "spherical")

    def _expect_others(self) -> None:
        if num_kept(self.num_states, self.state_dropout) < 2:
            raise DomainError(
                f"num_states is {self.num_states}, state_dropout {self.state_dropout} and no state follows itself, but "
                "then at least 2 must be there.\n  Set self_transitions = true, or take more states."
            )
        if self.state_dropout and self.state_dropout_kind == "bernoulli":
            raise DomainError(
                'state_dropout_kind is "bernoulli" and no state follows itself, but then at least 2 must be kept: '
                '"exact", or self_transitions = true.'
            )

    @property
    def observation(self) -> type[ObservationModule]:
        """The class of the observations; its `symbols`, `measured` and `invalid` need no parameters."""
        return OBSERVATIONS[self.observations]

    @property
    def may_repeat(self) -> bool:
        """Whether a state may follow itself."""
        if self.self_transitions is not None:
            return self.self_transitions
        return self.family not in SEGMENTS or self.family == "rank_hsmm"

    @property
    def has_segments(self) -> bool:
        """Whether states have durations: a semi-Markov model."""
        return self.family in SEGMENTS

    @property
    def own_rank(self) -> int | None:
        """The rank of the transition; None if it is dense."""
        return self.rank if self.family in LOW_RANK else None

    @property
    def linear_start(self) -> bool:
        """Whether the start is made of probabilities in linear space."""
        return self.neural

    @property
    def num_inputs(self) -> int:
        """How many features a frame has, or how many symbols there are."""
        if self.num_features < 1:
            raise DomainError(
                "num_features is 0, but a model needs to know its frames: how many features, or symbols.\n"
                "  dataclasses.replace(config, num_features=...)"
            )
        return self.num_features

    @property
    def size(self) -> str:
        """The size of the model, as text for people."""
        return f"{self.num_states:,} states"


WordConfig = ModelConfig | GrammarConfig
AnyConfig = WordConfig | FrameConfig
CONFIGS = (ModelConfig, GrammarConfig, FrameConfig)


def _expect_least(config: AnyConfig, least: int, *names: str) -> None:
    for name in names:
        if getattr(config, name) < least:
            raise DomainError(f"{name} is {getattr(config, name)}, but must be at least {least}.")


def _expect_networks(config: AnyConfig, *dropouts: str) -> None:
    """Raise on networks of impossible depth, and on shares that dropout cannot drop."""
    _expect_least(config, 0, "num_layers")
    if config.num_layers > MOST_LAYERS:
        raise DomainError(f"num_layers is {config.num_layers:,}, but must be at most {MOST_LAYERS}.")
    for name in dropouts:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise DomainError(f"{name} is {getattr(config, name)}, but must be at least 0 and below 1.")


def frame_family(*, segments: bool, low_rank: bool) -> FrameFamily:
    """The family of frames with or without durations, with or without a rank."""
    return next(x for x in get_args(FrameFamily) if (x in SEGMENTS, x in LOW_RANK) == (segments, low_rank))


def readers(config: AnyConfig, name: str) -> tuple[str, ...] | None:
    """The families that read a setting, if this one does not; None where it does."""
    found = config.read_by.get(name)
    return None if found is None or config.family in found else found
