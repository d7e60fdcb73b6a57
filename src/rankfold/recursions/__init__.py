"""From potentials to log Z: pure functions, tensors and operators in, tensors out.

| file | in it |
|---|---|
| `problem` | validated potentials of any structure: the interface that all recursions use |
| `ladder` | the fallback to wider arithmetic, and log Z as one autograd function |
| `factor_gradients` | gradients of a transition: one product over all positions |
| `chain/`, `segments/`, `tree/`, `blocks/` | one structure each: potentials, rungs, best and sampled structures |

The choice of the recursion for given potentials is made here alone.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from rankfold.errors import ShapeError
from rankfold.numerics.precision import Precision
from rankfold.recursions import blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockChain, BlockPotentials
from rankfold.recursions.chain.potentials import Chain, ChainPotentials
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.problem import Problem
from rankfold.recursions.segments.potentials import SegmentPotentials, Segments
from rankfold.recursions.tree.potentials import Forest, TreePotentials

__all__ = ["RECURSIONS", "Potentials", "blocks", "chain", "log_z", "recursion_of", "segments", "tree", "validate"]

Potentials = ChainPotentials | SegmentPotentials | TreePotentials | BlockPotentials

# By recursion its potentials, and the problem that their validation gives.
KINDS: dict[ModuleType, tuple[type, type]] = {
    chain: (ChainPotentials, Chain),
    segments: (SegmentPotentials, Segments),
    tree: (TreePotentials, Forest),
    blocks: (BlockPotentials, BlockChain),
}
RECURSIONS: dict[type, ModuleType] = {kind: recursion for recursion, kinds in KINDS.items() for kind in kinds}


def recursion_of(p: object) -> ModuleType:
    """The recursion that potentials, or a validated problem, belong to; raises on anything else."""
    found = next((RECURSIONS[kind] for kind in type(p).__mro__ if kind in RECURSIONS), None)
    if found is None:
        known = ", ".join(potentials.__name__ for potentials, _ in KINDS.values())
        raise ShapeError(f"expected potentials ({known}), but got a {type(p).__name__}.")
    return found


def validate(p: Potentials | Problem) -> Any:
    """The potentials, completed, as a `Problem`; raises on any shape, dtype, device or value that does not fit."""
    return recursion_of(p).validate(p)


def log_z(
    p: Potentials | Problem,
    arithmetic: Arithmetic = "scaled",
    precision: Precision = "float32",
    *,
    strict: bool = False,
) -> Tensor:  # "b"   float64
    """Log-weight of each sequence or sentence, summed over all its hidden structures.

        log Z = log  sum_{structures}  weight(structure)

    Structures are state paths of a chain or of blocks, segmentations and their labels, labelled binary trees. Always
    float64; differentiable in every field, twice. `arithmetic`: "scaled" falls back to float64 and to logarithms by
    itself where numbers are too far apart, sequence by sequence; "log" begins there. `precision` permits products of a
    chain's float32 tensors to be rounded ("tf32", "bf16" on a GPU); those of other structures never are. Impossible
    sequences have -inf and zero gradients; `strict` raises instead. While a CUDA graph is captured nothing can be
    repeated: sequences that need wider arithmetic are NaN, never wrong.
    """
    found: Tensor = recursion_of(p).log_z(p, arithmetic, precision, strict=strict)
    return found
