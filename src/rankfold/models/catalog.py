"""The families of models: from a record of sizes to a model, one builder for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args, overload

import torch

from rankfold.data.clusters import Clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model, WordModel
from rankfold.models.block_hmm import BlockHMM
from rankfold.models.config import ModelConfig
from rankfold.models.frame_catalog import FrameModules
from rankfold.models.frame_config import FrameConfig, FrameFamily
from rankfold.models.frame_model import FrameModel
from rankfold.models.grammar_catalog import build_grammar
from rankfold.models.grammar_config import AnyConfig, GrammarFamily, WordConfig
from rankfold.models.hmm import HMM, Transition
from rankfold.models.rank_hmm import RankHMM
from rankfold.params.block_sparse import BlockParts, FreeBlockParts, TiedBlockParts
from rankfold.params.dynamics.free_tables import FreeDense
from rankfold.params.dynamics.rank_factors import FreeRankFactors, RankFactors
from rankfold.params.dynamics.transitions import BandedTransition, LowRankTransition, SoftmaxTransition
from rankfold.params.observations.categorical import CategoricalEmission, FreeEmission

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
    """A model with fresh parameters; the seed decides every one of them. Block models need word clusters.

    Of a model of frames `num_words` is the number of features, or of symbols, where the record does not say it.
    """
    num_words = config.num_inputs if num_words is None else num_words
    if num_words < 1:
        raise DomainError(f"num_words is {num_words}, but must be at least 1.")
    return BUILDERS[config.family](config, num_words, clusters, torch.Generator().manual_seed(seed))


def sized_model(config: AnyConfig, num_words: int, *, clusters: Clusters | None = None) -> Any:
    """The model for its sizes, without memory for its parameters; `UnsupportedError` for sizes that none could hold."""
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
    modules = FrameModules(config, generator)
    return FrameModel(config, modules.dynamics, modules.observation, modules.duration)


def _block(config: ModelConfig, num_words: int, clusters: Clusters | None, generator: torch.Generator) -> BlockHMM:
    return BlockHMM(config, _blocks(config, num_words, clusters, generator))


def _rank(config: ModelConfig, num_words: int, _: Clusters | None, generator: torch.Generator) -> RankHMM:
    sizes = (config.num_states, config.rank, num_words)
    if config.neural:
        return RankHMM(config, RankFactors(*sizes, config.dim, config.num_layers, generator=generator), num_words)
    return RankHMM(config, FreeRankFactors(*sizes, generator=generator), num_words)


def _hmm(config: ModelConfig, num_words: int, _: Clusters | None, generator: torch.Generator) -> HMM:
    size = config.num_states
    emission = (
        CategoricalEmission(size, num_words, config.dim, config.num_layers, init=config.init, generator=generator)
        if config.neural
        else FreeEmission.draw(size, num_words, generator=generator)
    )
    return HMM(config, _transition(config, generator), emission)


def _transition(config: ModelConfig, generator: torch.Generator) -> Transition:
    sizes = (config.num_states, config.rank, config.dim, config.num_layers)
    if config.family == "lhmm":
        return LowRankTransition(*sizes, feature_map=config.feature_map, neural=config.neural, generator=generator)
    if config.family == "banded":
        return BandedTransition(
            *sizes,
            band=config.band,
            band_init=config.band_init,
            feature_map=config.feature_map,
            neural=config.neural,
            generator=generator,
        )
    if config.neural:
        return SoftmaxTransition(config.num_states, config.dim, config.num_layers, generator=generator)
    return FreeDense.draw(config.num_states, generator=generator)


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
    if config.tied:
        return TiedBlockParts(
            config.num_states, clusters, config.dim, config.num_layers, init=config.init, generator=generator
        )
    if config.neural:
        return BlockParts(
            config.num_states, clusters, config.dim, config.num_layers, init=config.init, generator=generator
        )
    return FreeBlockParts(config.num_states, clusters, generator=generator)


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(("hmm", "lhmm", "banded"), _hmm),
    "rank": _rank,
    "block": _block,
    **dict.fromkeys(get_args(GrammarFamily), build_grammar),
    **dict.fromkeys(get_args(FrameFamily), _frames),
}
