"""From a record of sizes to a grammar: one branch a family."""

from __future__ import annotations

import torch

from rankfold.data.clusters import Clusters
from rankfold.models.compound_pcfg import CompoundPCFG
from rankfold.models.grammar_config import GrammarConfig, GrammarFamily
from rankfold.models.pcfg import PCFG, Rules
from rankfold.params.networks import Drawing, DrawKind
from rankfold.params.observations.categorical import FreeEmission
from rankfold.params.rules.compound import CompoundGrammar, SentenceEncoder
from rankfold.params.rules.factored import FactoredRules, FreeFactors, SimpleRules
from rankfold.params.rules.low_rank import Form, LowRankRules
from rankfold.params.rules.root_leaves import FreeRoot, PreterminalWords, Root
from rankfold.params.rules.softmax import FreeRules, SoftmaxRules

# How each paper begins; the simple PCFG says nothing and is of the rank-space authors.
BEGINS: dict[GrammarFamily, DrawKind] = {
    "npcfg": "xavier",
    "cpcfg": "xavier",
    "tnpcfg": "torch",
    "rankpcfg": "xavier_normal",
    "lpcfg": "xavier",
    "spcfg": "xavier_normal",
}


def build_grammar(
    config: GrammarConfig, num_words: int, clusters: Clusters | None, generator: torch.Generator
) -> PCFG | CompoundPCFG:
    """A grammar with fresh parameters."""
    drawing = drawing_of(config, generator)
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


def drawing_of(config: GrammarConfig, generator: torch.Generator) -> Drawing:
    """How the parameters of a grammar begin."""
    return Drawing(BEGINS[config.family] if config.init == "family" else config.init, generator)


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
