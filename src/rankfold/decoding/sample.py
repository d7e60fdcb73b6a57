"""Exact samples of the hidden structure from its posterior, independent of one another."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Generic, NamedTuple, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer
from rankfold.decoding.parsed_tree import ParsedTree, parsed_trees
from rankfold.decoding.viterbi import TreeKind
from rankfold.errors import DomainError
from rankfold.numerics.log_space import pick
from rankfold.operators.factor import Factor
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.paths import draw as draw_paths
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.segments.paths import draw as draw_segments
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.tree.best import log_inside, log_side
from rankfold.recursions.tree.descend import Pairs, Ranks, View, trace
from rankfold.recursions.tree.potentials import TreePotentials


class SampledPaths(NamedTuple):
    """State paths; of blocks, of states of the whole model."""

    path: Tensor  # "b t" or "n b t"   -1 beyond a length and throughout an impossible sequence


class SampledSegments(NamedTuple):
    """Segmentations and labellings."""

    path: Tensor  # "b t" or "n b t"     the state of a frame; -1 beyond a length and for impossible sequences
    begins: Tensor  # "b t" or "n b t"   whether a segment begins at a frame


class SampledTrees(NamedTuple, Generic[TreeKind]):
    """Trees with labels: one for each sentence; with `num_samples`, by sample, then sentence."""

    trees: list[TreeKind]


@overload
def sample(
    p: ChainPotentials | BlockPotentials, *, num_samples: int | None = None, generator: torch.Generator | None = None
) -> SampledPaths: ...
@overload
def sample(
    p: SegmentPotentials, *, num_samples: int | None = None, generator: torch.Generator | None = None
) -> SampledSegments: ...
@overload
def sample(
    p: TreePotentials, *, num_samples: None = None, generator: torch.Generator | None = None
) -> SampledTrees[ParsedTree]: ...
@overload
def sample(
    p: TreePotentials, *, num_samples: int, generator: torch.Generator | None = None
) -> SampledTrees[list[ParsedTree]]: ...
def sample(p: Potentials, *, num_samples: int | None = None, generator: torch.Generator | None = None) -> Any:
    """Paths, segmentations or trees drawn from their posterior given the sequence, independent and exact.

    With `num_samples` a leading axis "n" (of trees, a list for each sample). Cost: one pass (of segments two), then for
    each position and sample one row of the transition, z r for low rank; for each node of a tree r numbers per split
    for rules with ranks and n + m for the children, n m per split for others. For labels of a grammar in rank space
    give the rules over states.
    """
    if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 1):
        raise DomainError(f"num_samples is {num_samples}, but must be a whole number of at least 1.")
    with torch.no_grad():
        drawn = answer("sample", _ANSWERS, p)(p, num_samples or 1, generator)
    return drawn if num_samples is not None else type(drawn)(*(x[0] for x in drawn))


def _of_tree(p: TreePotentials, num: int, generator: torch.Generator | None) -> SampledTrees[list[ParsedTree]]:
    f = tree.validate(p).detach().double()
    vectors, in_logs = log_inside(f)

    def side(x: Tensor, factor: Factor) -> Tensor:
        return log_side(x, factor, in_logs)

    views: list[View] = [Pairs(rule) if rule.cpd is None else Ranks(rule.cpd, side) for rule in f.rules]
    return SampledTrees(parsed_trees(trace(f, vectors, views, lambda logits: pick(logits, generator), num)))


_ANSWERS: dict[ModuleType, Any] = {
    chain: lambda p, *how: SampledPaths(draw_paths(chain.validate(p).detach(), *how)),
    segments: lambda p, *how: SampledSegments(*draw_segments(segments.validate(p).detach(), *how)),
    tree: _of_tree,
    blocks: lambda p, *how: SampledPaths(blocks.draw(p, *how)),
}
