"""The families of models: one builder for each, from its configuration to a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args, overload

import torch
from torch import nn

from rankfold.data.clusters import Clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model, WordModel
from rankfold.models.block_hmm import BlockHMM
from rankfold.models.compound_pcfg import CompoundPCFG
from rankfold.models.config import (
    HMMS,
    AnyConfig,
    FrameConfig,
    FrameFamily,
    GrammarConfig,
    GrammarFamily,
    ModelConfig,
    WordConfig,
)
from rankfold.models.frame_model import FrameModel
from rankfold.models.pcfg import PCFG, Rules
from rankfold.models.rank_hmm import RankHMM
from rankfold.models.sequence import HMM
from rankfold.params.block_sparse import BlockParts, FreeBlockParts, TiedBlockParts
from rankfold.params.durations import Duration, draw_duration
from rankfold.params.dynamics.ending import Ending
from rankfold.params.dynamics.factorial import FreeKronecker
from rankfold.params.dynamics.free_tables import FreeDense, draw_free
from rankfold.params.dynamics.hierarchy import FreeHierarchy
from rankfold.params.dynamics.input_driven import InputDriven
from rankfold.params.dynamics.rank_dynamics import RankSpace
from rankfold.params.dynamics.rank_factors import FreeRankFactors, RankFactors
from rankfold.params.dynamics.transitions import (
    BandedTransition,
    FrameDynamics,
    LowRankTransition,
    NeuralDynamics,
    SoftmaxTransition,
)
from rankfold.params.networks import Drawing, DrawKind, Network
from rankfold.params.observations.categorical import CategoricalEmission, FreeEmission, SourceEmission
from rankfold.params.observations.tied import TiedObservation
from rankfold.params.rules.compound import CompoundGrammar, SentenceEncoder
from rankfold.params.rules.factored import FactoredRules, FreeFactors, SimpleRules
from rankfold.params.rules.low_rank import Form, LowRankRules
from rankfold.params.rules.root_leaves import FreeRoot, PreterminalWords, Root
from rankfold.params.rules.softmax import FreeRules, SoftmaxRules

# How each paper initialises. That of the simple PCFG does not say; its authors are those of the rank-space grammars.
BEGINS: dict[GrammarFamily, DrawKind] = {
    "npcfg": "xavier",
    "cpcfg": "xavier",
    "tnpcfg": "torch",
    "rankpcfg": "xavier_normal",
    "lpcfg": "xavier",
    "spcfg": "xavier_normal",
}

AnyModel = WordModel[Any, Any]


Builder = Callable[[Any, int, Clusters | None, torch.Generator], Model[Any, Any]]


@overload
def build_model(config: FrameConfig, num_words: int | None = None, *, seed: int = 0) -> FrameModel: ...
@overload
def build_model(config: WordConfig, num_words: int, *, clusters: Clusters | None = None, seed: int = 0) -> AnyModel: ...
@overload
def build_model(
    config: AnyConfig, num_words: int | None = None, *, clusters: Clusters | None = None, seed: int = 0
) -> Model[Any, Any]: ...


def build_model(
    config: AnyConfig, num_words: int | None = None, *, clusters: Clusters | None = None, seed: int = 0
) -> Model[Any, Any]:
    """A model with initial parameters, all determined by the seed. Block models need word clusters.

    For a model of frames `num_words` is the number of features, or of symbols; None takes it from the configuration.
    """
    num_words = config.num_inputs if num_words is None else num_words
    if num_words < 1:
        raise DomainError(f"num_words is {num_words}, but must be at least 1.")
    return BUILDERS[config.family](config, num_words, clusters, torch.Generator().manual_seed(seed))


def sized_model(config: AnyConfig, num_words: int, *, clusters: Clusters | None = None) -> Any:
    """The model on the meta device, whose parameters have sizes but no memory; `UnsupportedError` if they overflow."""
    try:
        with torch.device("meta"):
            return build_model(config, num_words, clusters=clusters)
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:  # torch's, where products pass 2^63
        raise UnsupportedError(
            f"{config.family} of these sizes has more numbers than any memory: {str(error).splitlines()[0]:.120}.\n"
            "  Check the sizes of the model."
        ) from None


def _frames(config: FrameConfig, num_features: int, _: Clusters | None, generator: torch.Generator) -> FrameModel:
    if config.num_features not in (0, num_features):
        raise DomainError(
            f"model.num_features is {config.num_features}, but the frames have {num_features}.\n"
            "  Leave it out: it is then that of the data."
        )
    config = dataclasses.replace(config, num_features=num_features)
    # Always in this order: every draw advances the generator, so another order makes another model of the same seed.
    dynamics = _dynamics(config, generator)
    each = config
    if config.tied_states:  # a distribution for each group, of which one is enough
        each = dataclasses.replace(config, num_states=config.num_groups, tied_states=(), self_transitions=True)
    observation = config.observation.draw(each, generator)
    if config.tied_states:
        observation = TiedObservation(observation, torch.tensor(config.tied_states))
    duration = _durations(config, generator) if config.has_segments else None
    ending = Ending(torch.zeros(config.num_states, dtype=torch.float32)) if config.ends else None
    return FrameModel(config, dynamics, observation, duration, ending)


def _block(config: ModelConfig, num_words: int, clusters: Clusters | None, generator: torch.Generator) -> BlockHMM:
    return BlockHMM(config, _blocks(config, num_words, clusters, generator))


def _rank(config: ModelConfig, num_words: int, _: Clusters | None, generator: torch.Generator) -> RankHMM:
    sizes = (config.num_states, config.rank, num_words)
    if config.neural:
        return RankHMM(
            config,
            RankFactors(*sizes, config.dim, config.num_layers, printed=config.printed, generator=generator),
            num_words,
        )
    return RankHMM(config, FreeRankFactors(*sizes, generator=generator), num_words)


def _hmm(config: ModelConfig, num_words: int, _: Clusters | None, generator: torch.Generator) -> HMM:
    size = config.num_states
    if config.printed:
        transition = _transition(config, generator)
        network = Network(config.dim, config.num_layers, generator, config.init)
        return HMM(config, transition, SourceEmission(num_words, network))
    emission = (
        CategoricalEmission(size, num_words, Network(config.dim, config.num_layers, generator, config.init))
        if config.neural
        else FreeEmission.draw(size, num_words, config.init, generator=generator)
    )
    return HMM(config, _transition(config, generator), emission)


def _transition(config: ModelConfig, generator: torch.Generator) -> nn.Module:
    sizes = (config.num_states, config.rank, config.dim, config.num_layers)
    if config.family == "lhmm":
        return LowRankTransition(
            *sizes, feature_map=config.feature_map, neural=config.neural, init=config.init, generator=generator
        )
    if config.family == "banded":
        return BandedTransition(
            *sizes,
            band=config.band,
            band_init=config.band_init,
            feature_map=config.feature_map,
            neural=config.neural,
            init=config.init,
            generator=generator,
        )
    if config.neural:
        return SoftmaxTransition(config.num_states, config.dim, config.num_layers, generator=generator)
    return FreeDense.draw(config.num_states, config.init, generator=generator)


def _blocks(
    config: ModelConfig, num_words: int, clusters: Clusters | None, generator: torch.Generator
) -> BlockParts | FreeBlockParts | TiedBlockParts:
    if clusters is None:
        raise DomainError(
            "a block model needs the cluster of every word: build_model(..., clusters=...).\n"
            "  rankfold.data has brown, uniform_clusters and read_clusters."
        )
    if len(clusters.assignment) != num_words or clusters.num_clusters != config.num_clusters:
        raise DomainError(
            f"{clusters.num_clusters} clusters of {len(clusters.assignment)} words were given, "
            f"but the model has {config.num_clusters} clusters of {num_words} words."
        )
    network = Network(config.dim, config.num_layers, generator, config.init)
    if config.tied:
        return TiedBlockParts(config.num_states, clusters, network)
    if config.neural:
        return BlockParts(config.num_states, clusters, network)
    return FreeBlockParts(config.num_states, clusters, generator=generator)


def _dynamics(config: FrameConfig, generator: torch.Generator) -> FrameDynamics | InputDriven:
    """Initial start and transitions."""
    size, rank, may_repeat = config.num_states, config.own_rank, config.may_repeat
    if config.chains:
        return FreeKronecker.draw(config.chains, generator=generator)
    if config.parents:
        return FreeHierarchy.draw(config.parents, generator=generator)
    if config.family == "rank_hsmm":
        dim = config.dim if config.neural else None
        return RankSpace.draw(config.summed_states, size, dim, generator=generator)
    if not config.neural:
        alike = config.init == "papers"
        tables = draw_free(size, rank, self_transitions=may_repeat, alike=alike, generator=generator)
        if not config.driven:
            return tables
        assert isinstance(tables, FreeDense)
        return InputDriven.draw(tables, config.num_drivers, config.driven, config.drivers_rank, generator)
    network: SoftmaxTransition | LowRankTransition = (
        SoftmaxTransition(size, config.dim, config.num_layers, generator=generator)
        if rank is None
        else LowRankTransition(
            size, rank, config.dim, config.num_layers, feature_map=config.feature_map, generator=generator
        )
    )
    # The papers' semi-Markov models have a separate vector for the first segment, initialised in U(0, 1).
    start = torch.rand(size, generator=generator, dtype=torch.float32) if config.has_segments else None
    return NeuralDynamics(network, start, self_transitions=may_repeat)


def _durations(config: FrameConfig, generator: torch.Generator) -> Duration:
    """Initial durations; with `init` "papers" rate 1 for all states."""
    return draw_duration(
        config.durations,
        config.num_states,
        config.max_duration,
        normalised=config.normalised_durations,
        shortest=config.min_duration,
        generator=None if config.init == "papers" else generator,
    )


def _grammar(
    config: GrammarConfig, num_words: int, clusters: Clusters | None, generator: torch.Generator
) -> PCFG | CompoundPCFG:
    """A grammar with initial parameters."""
    drawing = Drawing(BEGINS[config.family] if config.init == "family" else config.init, generator)
    n, p, dim, num_layers = config.num_nonterminals, config.num_preterminals, config.dim, config.num_layers
    if config.family == "cpcfg":
        grammar = CompoundGrammar(
            n, p, num_words, dim, num_layers, config.latent_dim, single_words=config.single_words, drawing=drawing
        )
        encoder = SentenceEncoder(num_words, dim, config.encoder_dim, config.latent_dim, drawing)
        return CompoundPCFG(config, grammar, encoder, num_words)
    if not config.neural:
        free_root = FreeRoot(torch.zeros(n + (p if config.single_words else 0), dtype=torch.float32), n)
        free_words = FreeEmission(drawing.embedding(p, num_words).data)
        return PCFG(config, free_root, _free_rules(config, drawing), free_words, num_words)
    root = Root(n, p, dim, num_layers, single_words=config.single_words, drawing=drawing)
    rules = _rules(config, drawing)
    # In rank space a preterminal has one embedding, as parent of a word and as child of a rule.
    own = None if config.family == "rankpcfg" else p
    words = PreterminalWords(own, num_words, dim, num_layers, drawing)
    return PCFG(config, root, rules, words, num_words)


def _rules(config: GrammarConfig, drawing: Drawing) -> Rules:
    sizes, dim, num_layers = (config.num_nonterminals, config.num_preterminals), config.dim, config.num_layers
    if config.family in ("tnpcfg", "rankpcfg"):
        shared = config.family == "rankpcfg"
        shallow = config.released or not shared
        return FactoredRules(*sizes, config.rank, dim, num_layers, shared=shared, shallow=shallow, drawing=drawing)
    if config.family == "lpcfg":
        form: Form = "released" if config.released else "paper"
        return LowRankRules(*sizes, config.rank, dim, config.low_rank, form=form, drawing=drawing)
    if config.family == "spcfg":
        return SimpleRules(*sizes, dim, num_layers, drawing)
    return SoftmaxRules(*sizes, dim, drawing)


def _free_rules(config: GrammarConfig, drawing: Drawing) -> Rules:
    sizes = config.num_nonterminals, config.num_preterminals
    if config.family in ("tnpcfg", "rankpcfg", "spcfg"):
        return FreeFactors.draw(*sizes, None if config.family == "spcfg" else config.rank, drawing=drawing)
    if config.family == "lpcfg":
        return LowRankRules(*sizes, config.rank, config.dim, config.low_rank, form="free", drawing=drawing)
    return FreeRules.draw(*sizes, drawing=drawing)


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(HMMS, _hmm),
    "rank": _rank,
    "block": _block,
    **dict.fromkeys(get_args(GrammarFamily), _grammar),
    **dict.fromkeys(get_args(FrameFamily), _frames),
}
