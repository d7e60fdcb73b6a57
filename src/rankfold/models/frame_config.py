"""What a model of frames is made of: one flat record, the `[model]` table of a recipe and of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from rankfold.errors import DomainError
from rankfold.models.config import NATS, DataKind, Measure, PlanName
from rankfold.params.dropout import DropoutKind, num_kept
from rankfold.params.dynamics.features import FeatureKind
from rankfold.params.networks import MOST_LAYERS
from rankfold.params.observations import OBSERVATIONS, ObservationModule
from rankfold.settings import check_choices

FrameFamily = Literal["frame_hmm", "frame_lhmm", "hsmm", "lhsmm"]
DurationKind = Literal["poisson", "negative_binomial", "categorical"]
FrameInit = Literal["spread", "kmeans", "papers"]
SEGMENTS = ("hsmm", "lhsmm")
LOW_RANK = ("frame_lhmm", "lhsmm")
READ_BY: dict[str, tuple[FrameFamily, ...]] = {  # settings that not every family reads
    "rank": ("frame_lhmm", "lhsmm"),
    "feature_map": ("frame_lhmm", "lhsmm"),
    "feature_dropout": ("frame_lhmm", "lhsmm"),
    "max_duration": ("hsmm", "lhsmm"),
    "durations": ("hsmm", "lhsmm"),
    "normalised_durations": ("hsmm", "lhsmm"),
    "censored": ("hsmm", "lhsmm"),
}


@dataclass(frozen=True)
class FrameConfig:
    """Sizes and choices. A family reads what concerns it and ignores the rest, so families differ by one line."""

    data: ClassVar[DataKind] = "recordings"
    measure: ClassVar[Measure] = NATS
    read_by: ClassVar[Mapping[str, tuple[str, ...]]] = READ_BY
    has_clusters: ClassVar[bool] = False
    plan: ClassVar[PlanName] = "auto"  # there is one elimination order
    carries: ClassVar[bool] = True  # whether streams can be carried
    graphs_carry: ClassVar[bool] = True  # the first arithmetic is enough for recordings, whose windows are many

    family: FrameFamily = "hsmm"
    observations: str = "gaussian"  # a name in the catalogue `params.observations.OBSERVATIONS`
    num_states: int = 16
    num_features: int = 0  # of a frame; categorical: how many symbols there are; 0: as many as the data have
    rank: int = 16  # frame_lhmm, lhsmm
    max_duration: int = 50  # hsmm, lhsmm: the longest segment, in frames
    durations: DurationKind = "poisson"  # hsmm, lhsmm
    normalised_durations: bool = True  # false: the mass a Poisson has at 0 and above the longest is lost
    self_transitions: bool | None = None  # whether a state may follow itself; None: of frames it may, of segments not
    censored: bool = False  # hsmm, lhsmm: whether the end of a sequence may cut its last segment
    tied_variance: bool = False  # gaussian: one vector of variances for all states
    min_variance: float = 1e-3  # gaussian: no variance is below it, in units of the features; 0: none
    variance_prior: float = 0.0  # gaussian: as if each variance had seen so many frames of variance 1
    neural: bool = False  # transitions, Bernoullis and symbols from networks; false: free tables
    dim: int = 128  # neural: of embeddings and residual layers
    num_layers: int = 2  # neural: residual layers of each network
    feature_map: FeatureKind = "exp"  # frame_lhmm, lhsmm, neural
    # How parameters begin. "spread": drawn; "kmeans": drawn, until training puts the means where the frames are;
    # "papers": all states alike, or as the papers' networks do.
    init: FrameInit = "spread"
    state_dropout: float = 0.0
    state_dropout_kind: DropoutKind = "exact"
    feature_dropout: float = 0.0  # frame_lhmm, lhsmm: of the ranks

    def __post_init__(self) -> None:
        check_choices(self)
        if self.observations not in OBSERVATIONS:
            raise DomainError(f"observations is {self.observations!r}, but must be one of {', '.join(OBSERVATIONS)}.")
        for name in ("num_states", "rank", "max_duration", "dim"):
            if getattr(self, name) < 1:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        for name in ("num_features", "num_layers", "min_variance", "variance_prior"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise DomainError(f"{name} is {value}, but must be finite and at least 0.")
        if self.num_layers > MOST_LAYERS:
            raise DomainError(f"num_layers is {self.num_layers:,}, but must be at most {MOST_LAYERS}.")
        for name in ("state_dropout", "feature_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1.")
        if not self.normalised_durations and self.durations != "poisson":
            raise DomainError(
                f'normalised_durations is false, but durations are "{self.durations}": only "poisson" may lose mass.'
            )
        if not self.may_repeat:
            self._expect_others()

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
        """What knows of frames what can be known without parameters: `symbols`, `measured`, which are `invalid`."""
        return OBSERVATIONS[self.observations]

    @property
    def may_repeat(self) -> bool:
        """Whether a state may follow itself."""
        return self.family not in SEGMENTS if self.self_transitions is None else self.self_transitions

    @property
    def has_segments(self) -> bool:
        """Whether states have durations: a semi-Markov model."""
        return self.family in SEGMENTS

    @property
    def own_rank(self) -> int | None:
        """The rank of the transition; None if it is dense."""
        return self.rank if self.family in LOW_RANK else None

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
        """How large the model is, in words."""
        return f"{self.num_states:,} states"
