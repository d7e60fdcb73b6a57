"""What is measured: a model and a batch, of any sizes."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from rankfold.cli.bench import draw_batch, fresh_model
from rankfold.data.batch import Batch
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.config import FACTORED, AnyConfig, FrameConfig, GrammarConfig, ModelConfig, PlanName
from rankfold.numerics.precision import Precision
from rankfold.operators import Dense
from rankfold.params.dropout import num_kept
from rankfold.planning.chains import ChainSizes, chain_plan
from rankfold.planning.cost import Plan, Plans
from rankfold.recursions import chain
from rankfold.recursions.chain.potentials import ChainPotentials

NUM_WORDS = 10_000
ORDERED = ("rank", *FACTORED)  # families with a choice of what is summed out first


class Case(NamedTuple):
    """A model and a batch; what other code takes for the same step on an H200, where that was measured."""

    config: AnyConfig | FrameConfig
    batch: int = 8
    length: int = 32
    num_words: int = NUM_WORDS
    published_ms: float | None = None
    published_mib: float | None = None
    update: bool = False  # whether a whole update of training is timed as well

    @property
    def trees(self) -> bool:
        """Whether the model is a grammar."""
        return isinstance(self.config, GrammarConfig)

    @property
    def given(self) -> bool:
        """Whether the tables themselves are the parameters (`GivenTables`)."""
        return isinstance(self.config, ModelConfig) and not self.config.neural

    @property
    def ordered(self) -> bool:
        """Whether there is a choice of what is summed out first."""
        return self.config.family in ORDERED

    @property
    def plan_name(self) -> str:
        """What the record asks to be summed out first, where there is a choice."""
        return "auto" if isinstance(self.config, FrameConfig) or not self.ordered else self.config.plan

    @property
    def has_reference(self) -> bool:
        """Whether the plain code knows the family."""
        return self.config.family != "cpcfg"

    @property
    def dropout(self) -> float:
        """The share that a step of training leaves out."""
        config = self.config
        if isinstance(config, GrammarConfig):
            return 0.0
        if isinstance(config, FrameConfig):
            return config.state_dropout
        return config.logit_dropout if config.family == "rank" else config.state_dropout

    @property
    def name(self) -> str:
        """The sizes in words."""
        config = self.config
        if isinstance(config, GrammarConfig):
            return _grammar_name(config)
        if isinstance(config, FrameConfig):
            return _frame_name(config)
        what = [f"{config.family}{', given tables' if self.given else ''}", f"{config.num_states:,} states"]
        if config.family in ("lhmm", "banded", "rank"):
            what.append(f"rank {config.rank:,}")
        if config.family == "banded":
            what.append(f"{config.band} diagonals each side")
        if config.family == "block":
            what.append(f"{config.num_clusters:,} clusters")
        if self.dropout and config.family == "block":
            size = config.num_states // config.num_clusters
            what.append(f"{num_kept(size, config.state_dropout)} of {size} kept")
        elif self.dropout:
            what.append(f"dropout {self.dropout:.2g}")
        return ", ".join(what)

    def validate(self) -> Case:
        """The same; raises on sizes that no batch has, and on choices the reference does not know."""
        config = self.config
        for name in ("batch", "length", "num_words"):
            if getattr(self, name) < 1:
                raise DomainError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.num_words == 1 and not isinstance(config, FrameConfig):
            raise DomainError("num_words is 1, but of a single word every log Z is 0 or the same.\n  Take at least 2.")
        if isinstance(config, GrammarConfig):
            if self.length < 2:
                raise DomainError("length is 1, but a sentence of one word has no tree.\n  Take at least 2.")
            if not config.neural or config.single_words:
                raise UnsupportedError("grammars of free tables or of single words have no reference here.")
            return self
        if isinstance(config, FrameConfig):
            _check_frames(config)
            return self
        if (self.given and config.family != "hmm") or config.tied:
            raise UnsupportedError(
                f"{config.family} with neural = {config.neural} or tied embeddings has no reference here.\n"
                "  Measure neural models with embeddings of their own, or an hmm's given tables."
            )
        if config.family == "block" and self.num_words < config.num_clusters:
            raise DomainError(
                f"num_words is {self.num_words}, but each of {config.num_clusters} clusters needs a word.\n"
                "  Take more words, or fewer clusters."
            )
        return self

    def build(self, device: torch.device, seed: int = 0) -> Any:
        """The model, with fresh parameters; on the device "meta" without memory for them."""
        drawn_on = "meta" if device.type == "meta" else "cpu"
        if isinstance(self.config, ModelConfig) and self.given:
            with torch.device(drawn_on):
                return GivenTables(self.config.num_states, self.num_words, seed=seed).to(device)
        return fresh_model(self.config, self.num_words, seed=seed, device=drawn_on).to(device)

    def plan(self, device: torch.device, precision: Precision) -> Plan:
        """What a step costs, in the order that is asked for, or the cheapest."""
        plans = self.build(torch.device("meta")).plan(self.batch, self.length, device.type, precision)
        found: Plan = next((way for way in plans.ways if way.order == self.plan_name), plans.best)
        return found

    def with_order(self, device: torch.device, precision: Precision) -> Case:
        """The same with the order fixed, so that the order checked and priced is the one run."""
        if isinstance(self.config, FrameConfig) or not self.ordered:
            return self
        model = self.build(torch.device("meta"))
        return self.in_order(model.order(self.config.plan, self.batch, self.length, device.type, precision))

    def in_order(self, plan: PlanName) -> Case:
        """The same model, other variables summed out first."""
        assert not isinstance(self.config, FrameConfig)
        return self._replace(config=dataclasses.replace(self.config, plan=plan))

    def draw(self, device: torch.device) -> Batch:
        """Sequences of random words or frames, all as long as the batch is wide."""
        return draw_batch(self.config, self.num_words, self.batch, self.length).to(device)


def shrink(case: Case, *, dropout: bool = False) -> Case:
    """The same family and choices at a size where every check takes a moment; a chain of words has its dropout only
    where asked for."""
    if isinstance(case.config, GrammarConfig):
        grammar = dataclasses.replace(
            case.config, num_nonterminals=6, num_preterminals=9, rank=5, dim=8, latent_dim=4, encoder_dim=8
        )
        return Case(grammar, batch=4, length=7, num_words=31)
    if isinstance(case.config, FrameConfig):
        return Case(_small_frames(case.config), batch=4, length=7)
    config = dataclasses.replace(
        case.config,
        num_states=24,
        rank=10,
        dim=8,
        band=3,
        num_clusters=4,
    )
    if not dropout:
        config = dataclasses.replace(config, state_dropout=0.0, logit_dropout=0.0)
    return Case(config, batch=4, length=7, num_words=31)


def _grammar_name(config: GrammarConfig) -> str:
    sizes = f"{config.family}, {config.num_nonterminals:,} / {config.num_preterminals:,} symbols"
    if config.family in (*FACTORED, "lpcfg"):
        sizes += f", rank {config.rank:,}"
    return sizes + (", released" if config.released else "")


def _frame_name(config: FrameConfig) -> str:
    """The sizes in words."""
    what = [config.family, f"{config.num_states:,} states"]
    if config.own_rank is not None:
        what.append(f"rank {config.rank:,}")
    if config.has_segments:
        what.append(f"durations to {config.max_duration}")
        what += [] if config.may_repeat else ["no state after itself"]
    what.append(f"{config.num_features} {config.observations}")
    return ", ".join(what) + (f", dropout {config.state_dropout:.2g}" if config.state_dropout else "")


def _check_frames(config: FrameConfig) -> None:
    """Raise on choices the reference does not know."""
    if config.observations == "categorical" or (config.neural and config.observations == "gaussian"):
        raise UnsupportedError(
            f"{config.observations} observations with neural = {config.neural} have no reference here.\n"
            "  Measure Gaussian ones of free tables, or Bernoullis."
        )
    if config.feature_dropout:
        raise UnsupportedError("feature_dropout has no reference here.\n  Set it to 0.")


def _small_frames(config: FrameConfig) -> FrameConfig:
    """The same choices at a size where every check takes a moment; without dropout."""
    return dataclasses.replace(
        config,
        num_states=12,
        rank=5,
        max_duration=min(3, config.max_duration),
        num_features=4,
        dim=8,
        state_dropout=0.0,
    )


class GivenTables(nn.Module):
    """An HMM that is nothing but its tables: no softmax, no network, the gradient is in the tables themselves.

    What libraries of circuits and of classical HMMs measure. Random tables of normalised rows; the emissions are laid
    out by word, as a batch reads them.
    Cost: b t z^2 for the scan and nothing else. Memory: the tables and their gradients.
    """

    def __init__(self, num_states: int, num_words: int, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def logits(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32)

        self.config = ModelConfig(family="hmm", num_states=num_states, neural=False)
        self.num_words = num_words
        self.log_initial = nn.Parameter(torch.log_softmax(logits(num_states), 0))  # "z"
        self.transition = nn.Parameter(torch.softmax(logits(num_states, num_states), 1))  # "z y"
        self.log_emission = nn.Parameter(torch.log_softmax(logits(num_words, num_states), 0))  # "v z"

    def potentials(self, batch: Batch, *, generator: torch.Generator | None = None) -> ChainPotentials:
        """The weights of all hidden paths; the generator has nothing to drop."""
        log_obs = embedding(batch.values, self.log_emission)
        return ChainPotentials(self.log_initial, Dense.unchecked(self.transition), log_obs, lengths=batch.lengths)

    def log_z(self, potentials: ChainPotentials, *, precision: Precision = "float32") -> Tensor:  # "b"   float64
        """The log-probability of each sequence."""
        return chain.log_z(potentials, precision=precision)

    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """The plan of the softmax HMM without the parts that make its tables, and without what these hold."""
        params = sum(x.numel() for x in self.parameters())
        sizes = ChainSizes(self.config.num_states, None, params, num_words=self.num_words)
        plans = chain_plan(sizes, batch, length, device, precision)
        ways = (
            way._replace(
                parts=tuple(x for x in way.parts if x.name.startswith("scan")),
                fixed_bytes=way.fixed_bytes - way.work_bytes,
                eval_fixed_bytes=0,
            )
            for way in plans.ways
        )
        return plans._replace(ways=tuple(ways))
