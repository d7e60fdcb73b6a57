"""Expected counts: how often each weight is used under the posterior, which is weight x d log Z / d weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer, derivatives, has_graph
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.chain.rungs import solve
from rankfold.recursions.factor_gradients import count_uses
from rankfold.recursions.problem import Problem
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.segments.stretches import solve_long
from rankfold.recursions.tree.potentials import TreePotentials


class ChainCounts(NamedTuple):
    """How often each part of a chain is used."""

    initial: Tensor  # "z"                  summed over sequences
    transition: tuple[Tensor, ...]  # like the operator's factors(), summed over sequences and positions
    state: Tensor  # "b t z"                the state posterior
    log_z: Tensor  # "b"                    float64; the counts are its derivatives


class SegmentCounts(NamedTuple):
    """How often each part of a semi-Markov chain is used."""

    initial: Tensor  # "z"                  summed over sequences; zeros where a state was carried in
    transition: tuple[Tensor, ...]  # like the operator's factors(), summed over sequences and segments
    duration: Tensor  # "z d"               summed over sequences
    state: Tensor  # "b t z"                the state posterior
    log_z: Tensor  # "b"


class TreeCounts(NamedTuple):
    """How often each part of a grammar is used."""

    root: Tensor  # "n"                     summed over sentences
    root_leaf: Tensor  # "p"                summed over sentences of one word
    rules: tuple[Tensor, ...]  # like the rules' factors(); one that several rules share has the uses by all of them
    leaf: Tensor  # "b t p"                 the posterior of each word's symbol
    log_z: Tensor  # "b"


class BlockCounts(NamedTuple):
    """How often each part of a chain of blocks is used; its weights are each sequence's own."""

    initial: Tensor  # "b k"
    transition: Tensor  # "b s k k"
    state: Tensor  # "b t k"                the state posterior within the block
    log_z: Tensor  # "b"


@overload
def expected_counts(p: ChainPotentials) -> ChainCounts: ...
@overload
def expected_counts(p: SegmentPotentials) -> SegmentCounts: ...
@overload
def expected_counts(p: TreePotentials) -> TreeCounts: ...
@overload
def expected_counts(p: BlockPotentials) -> BlockCounts: ...
def expected_counts(p: Potentials) -> ChainCounts | SegmentCounts | TreeCounts | BlockCounts:
    """The expected number of uses of each weight under the posterior: the E step of EM.

    Transitions and rules are counted through the operator's own factors, factor x d log Z / d factor: "z y" uses for
    a dense one, "z k" for a band, and for a low-rank one the uses of (source, rank) and of (target, rank). Nothing of
    size z y appears unless the operator is dense. Where the end may cut the last segment, its whole duration counts,
    in expectation. Differentiable where the potentials are. Cost: that of `posterior`.
    """
    return answer("expected_counts", _ANSWERS, p)(p)


def _of_chain(p: ChainPotentials) -> ChainCounts:
    c = chain.validate(p)
    if has_graph(c):
        log_z, (initial, state, _, *grads) = derivatives(c)
        return ChainCounts(initial.sum(0), count_uses(c.transition, grads, _smaller(c)), state, log_z)
    with torch.no_grad():
        solution = solve(c.detach(), "scaled", "float32")
        one = torch.ones_like(solution.log_z)
        initial, state, _, *grads = solution.gradients(one, of_factors=True)
        counts = count_uses(c.transition, grads, lambda weight: solution.gradients(one * weight, of_factors=True)[3:])
    dtype = c.log_obs.dtype
    return ChainCounts(initial.sum(0).to(dtype), counts, state.to(dtype), solution.log_z)


def _of_segments(p: SegmentPotentials) -> SegmentCounts:
    c = segments.validate(p)
    if has_graph(c):
        log_z, (initial, duration, state, _, *grads) = derivatives(c)
        counts = count_uses(c.transition, grads, _smaller(c))
    else:
        with torch.no_grad():
            solution = solve_long(c.detach(), "scaled")
            log_z, one = solution.log_z, torch.ones_like(solution.log_z)
            initial, duration, state, _, *grads = solution.gradients(one, of_factors=True)
            counts = count_uses(
                c.transition, grads, lambda weight: solution.gradients(one * weight, of_factors=True)[4:]
            )
    first = torch.zeros_like(c.log_duration[:, 0]) if c.is_carried else initial.sum(0)
    return SegmentCounts(first, counts, duration, state, log_z)


def _of_tree(p: TreePotentials) -> TreeCounts:
    f = tree.validate(p)
    log_z, (leaf, root, root_leaf, _, *grads) = derivatives(f)
    number = {id(factor): i for i, factor in enumerate(f.factors())}
    counts: list[Tensor] = []
    for rule in f.rules:
        own = [number[id(factor)] for factor in rule.factors()]
        smaller = _smaller(f)
        counts += count_uses(rule, [grads[i] for i in own], lambda weight: [smaller(weight)[i] for i in own])  # noqa: B023
    return TreeCounts(root.sum(0), root_leaf.sum(0), tuple(counts), leaf, log_z)


def _of_blocks(p: BlockPotentials) -> BlockCounts:
    log_z, (initial, state, transition) = derivatives(blocks.validate(p))
    return BlockCounts(initial, transition, state, log_z)


_ANSWERS: dict[ModuleType, Callable[..., ChainCounts | SegmentCounts | TreeCounts | BlockCounts]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}


def _smaller(c: Problem) -> Callable[[float], Sequence[Tensor]]:
    """The derivatives of weight times log Z in the factors, in float64."""
    return lambda weight: derivatives(c.double(), weight=weight)[1][len(c.fields) :]
