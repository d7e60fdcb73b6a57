"""Work and memory of a gradient step before it is taken: `cost` (plans), `chains` and `trees` (families), `measure`
(the memory there is, time and memory that work takes)."""

from rankfold.planning.chains import ChainSizes, block_plan, chain_plan, rank_plans
from rankfold.planning.cost import Peak, Plan, Plans, Rates, Work, rates_of
from rankfold.planning.trees import TreeSizes, factored_rules, pair_rules, simple_rules, tree_plans

__all__ = [
    "ChainSizes",
    "Peak",
    "Plan",
    "Plans",
    "Rates",
    "TreeSizes",
    "Work",
    "block_plan",
    "chain_plan",
    "factored_rules",
    "pair_rules",
    "rank_plans",
    "rates_of",
    "simple_rules",
    "tree_plans",
]
