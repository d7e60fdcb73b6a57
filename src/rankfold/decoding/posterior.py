"""Posteriors: derivatives of log Z, which are forward-backward and inside-outside."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer, derivatives, has_graph
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.chain.rungs import solve as solve_chain
from rankfold.recursions.segments.plain import Marks, differentiable_marks
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.rungs import solve as solve_segments
from rankfold.recursions.tree.potentials import TreePotentials


class StatePosterior(NamedTuple):
    """Probabilities given the whole sequence; 0 beyond a length and for impossible sequences."""

    state: Tensor  # "b t z", of blocks "b t k" within the block


class SegmentPosterior(NamedTuple):
    """Probabilities given the whole sequence; 0 beyond a length and for impossible sequences."""

    state: Tensor  # "b t z"   the state of a frame
    start: Tensor  # "b t z"   a segment of z begins at a frame
    end: Tensor  # "b t z"     a segment of z ends at a frame; not the last one if `censored`, which the end may cut

    @property
    def boundary(self) -> Tensor:  # "b t"
        """The probability that some segment begins at a frame."""
        return self.start.sum(-1)


class TreePosterior(NamedTuple):
    """Probabilities given the whole sentence; 0 beyond a length and for impossible sentences."""

    span: Tensor  # "b t+1 t+1"   [i, j]: words i..j-1, at least two, form a constituent; T words: sums to T - 1
    leaf: Tensor  # "b t p"       the symbol of a word


@overload
def posterior(p: ChainPotentials | BlockPotentials) -> StatePosterior: ...
@overload
def posterior(p: SegmentPotentials) -> SegmentPosterior: ...
@overload
def posterior(p: TreePotentials) -> TreePosterior: ...
def posterior(p: Potentials) -> StatePosterior | SegmentPosterior | TreePosterior:
    """How probable every part of the hidden structure is, given the whole sequence or sentence.

        state_t[z] = p(z_t = z | x) = d log Z / d log_obs_t[z]       span[i, j] = d log Z / d log_span[i, j]

    Differentiable where the potentials are (it may enter a loss), detached where not. Cost: one pass in each
    direction. Not the best structure: see `viterbi`, `mbr`.
    """
    return answer("posterior", _ANSWERS, p)(p)


def _of_chain(p: ChainPotentials) -> StatePosterior:
    c = chain.validate(p)
    if has_graph(c):
        return StatePosterior(*derivatives(c, ["log_obs"])[1])
    with torch.no_grad():
        solution = solve_chain(c.detach(), "scaled", "float32")
        state = solution.gradients(torch.ones_like(solution.log_z), of_factors=False)[1]
    return StatePosterior(state.to(c.log_obs.dtype))


def _of_blocks(p: BlockPotentials) -> StatePosterior:
    return StatePosterior(*derivatives(blocks.validate(p), ["log_obs"])[1])


def _of_segments(p: SegmentPotentials) -> SegmentPosterior:
    c = segments.validate(p)
    with torch.no_grad():
        solved = solve_segments(c.detach(), "scaled").posteriors()
        known = SegmentPosterior(*(x.transpose(0, 1) for x in (solved.states, solved.starts, solved.ends)))
    if not has_graph(c):
        return known
    # Starts and ends have no log-weights to differentiate log Z in; `Marks` are zeros in their place.
    total, (state,) = derivatives(c, ["log_obs"])
    possible = (total > float("-inf")).nonzero()[:, 0]
    if not len(possible):
        return SegmentPosterior(state, known.start, known.end)
    marks = differentiable_marks(c.take(possible), Marks(known.start[possible], known.end[possible]))
    nothing = torch.zeros_like(state)
    return SegmentPosterior(state, *(nothing.index_copy(0, possible, x.to(state.dtype)) for x in marks))


def _of_tree(p: TreePotentials) -> TreePosterior:
    return TreePosterior(*derivatives(tree.validate(p), ["log_span", "log_leaf"])[1])


_ANSWERS: dict[ModuleType, Callable[..., StatePosterior | SegmentPosterior | TreePosterior]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}
