"""What a gradient step costs before it is taken: multiply-adds, seconds, bytes held, for each way to do it.

An estimate, to choose by and to refuse by, never a result. Read next: `planning/families.py`.
"""

from rankfold.planning.cost import CPU, CUDA, CUDA_EAGER_LAUNCH, Plan, Plans, Rates, Work, rates_of
from rankfold.planning.families import block_plan, chain_plan, rank_plans
from rankfold.planning.frames import FrameSizes, frame_plan
from rankfold.planning.trees import factored_ways, pair_way, simple_way, tree_plans

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_EAGER_LAUNCH",
    "FrameSizes",
    "Plan",
    "Plans",
    "Rates",
    "Work",
    "block_plan",
    "chain_plan",
    "factored_ways",
    "frame_plan",
    "pair_way",
    "rank_plans",
    "rates_of",
    "simple_way",
    "tree_plans",
]
