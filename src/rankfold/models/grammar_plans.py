"""What a gradient step of a grammar costs: from its record to the planner's sizes. Read next: `planning/trees.py`."""

from __future__ import annotations

from rankfold.models.grammar_config import FACTORED, KINDS, GrammarConfig
from rankfold.numerics.precision import Precision
from rankfold.planning import Plans, factored_ways, pair_way, simple_way, tree_plans
from rankfold.planning.trees import Sizes, Way


def grammar_plans(
    config: GrammarConfig, num_words: int, batch: int, length: int, device: str, precision: Precision, params: int
) -> Plans:
    """Each order of summing out, the cheapest first."""
    n, p = config.num_nonterminals, config.num_preterminals
    sizes = Sizes(n, p, num_words, config.dim if config.neural else 0, params)
    return tree_plans(sizes, _ways(config), batch, length, device, precision)


def _ways(config: GrammarConfig) -> list[Way]:
    """The orders of a family."""
    n, p, rank = config.num_nonterminals, config.num_preterminals, config.rank
    if config.family in FACTORED:
        return factored_ways(n, p, rank, shallow=config.released or config.family == "tnpcfg")
    if config.family == "spcfg":
        return [simple_way(n, p)]
    thin = config.low_rank if config.family == "lpcfg" else ()
    return [pair_way(n, p, [rank if kind in thin else None for kind in KINDS], own_rules=config.family == "cpcfg")]
