"""Expected counts: how often each weight is used under the posterior, which is weight x d log Z / d weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple, overload

import torch
from torch import Tensor

from rankfold.decoding.dispatch import answer, derivatives, has_graph
from rankfold.errors import expect, expect_weights
from rankfold.numerics.precision import Precision, check_precision
from rankfold.recursions import Potentials, blocks, chain, segments, tree, validate
from rankfold.recursions.blocks.potentials import BlockChain, BlockPotentials
from rankfold.recursions.chain.potentials import Chain, ChainPotentials
from rankfold.recursions.chain.rungs import solve, uses
from rankfold.recursions.factor_gradients import count_uses
from rankfold.recursions.problem import Problem
from rankfold.recursions.segments.potentials import SegmentPotentials, Segments
from rankfold.recursions.segments.stretches import solve_long
from rankfold.recursions.tree.potentials import Forest, TreePotentials


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
def expected_counts(p: ChainPotentials, precision: Precision = ..., *, weight: Tensor | None = ...) -> ChainCounts: ...
@overload
def expected_counts(
    p: SegmentPotentials, precision: Precision = ..., *, weight: Tensor | None = ...
) -> SegmentCounts: ...
@overload
def expected_counts(p: TreePotentials, precision: Precision = ..., *, weight: Tensor | None = ...) -> TreeCounts: ...
@overload
def expected_counts(p: BlockPotentials, precision: Precision = ..., *, weight: Tensor | None = ...) -> BlockCounts: ...
def expected_counts(
    p: Potentials, precision: Precision = "float32", *, weight: Tensor | None = None
) -> ChainCounts | SegmentCounts | TreeCounts | BlockCounts:  # weight "b"
    """The expected number of uses of each weight under the posterior: the E step of EM.

    Transitions and rules are counted through the operator's own factors, factor x d log Z / d factor: "z y" uses for
    a dense one, "z k" for a band, and for a low-rank one the uses of (source, rank) and of (target, rank). Nothing of
    size z y appears unless the operator is dense. Where the end may cut the last segment, its whole duration counts,
    in expectation. Differentiable where the potentials are. Cost: that of `posterior`.

    `precision` permits products of a chain's float32 tensors to be rounded ("tf32", "bf16" on a GPU), as in `log_z`;
    those of other structures never are. `weight` is how often each sequence counts, 1 by default: its uses and its
    posterior are multiplied by it, `log_z` is not. While a CUDA graph is captured nothing can be repeated: counts of
    sequences that need wider arithmetic are NaN, and uses too large for the dtype inf.
    """
    found = answer("expected_counts", _ANSWERS, p)
    check_precision(precision)
    c = validate(p)
    if weight is not None:
        expect(weight, "b", name="weight", b=len(c.lengths))
        expect_weights(weight, name="weight", remedy="A sequence of weight 0 counts nothing.")
    return found(c, precision, torch.ones_like(c.lengths, dtype=torch.float64) if weight is None else weight.double())


def _of_chain(c: Chain, precision: Precision, weight: Tensor) -> ChainCounts:
    if has_graph(c):
        log_z, (initial, state, _, *grads) = derivatives(c, weight=weight, precision=precision)
        return ChainCounts(initial.sum(0), count_uses(c.transition, grads, _smaller(c, weight)), state, log_z)
    with torch.no_grad():
        c = c.detach()
        if (found := uses(c, weight, precision)) is not None:
            posterior, transition, log_z = found
            return ChainCounts(posterior[0].sum(0), (transition,), posterior.transpose(0, 1), log_z)
        solution = solve(c, "scaled", precision, both=True)
        initial, state, _, *grads = solution.gradients(weight, of_factors=True)
        counts = count_uses(c.transition, grads, lambda by: solution.gradients(weight * by, of_factors=True)[3:])
    dtype = c.log_obs.dtype
    return ChainCounts(initial.sum(0).to(dtype), counts, state.to(dtype), solution.log_z)


def _of_segments(c: Segments, precision: Precision, weight: Tensor) -> SegmentCounts:
    if has_graph(c):
        log_z, (initial, duration, state, _, *grads) = derivatives(c, weight=weight)
        counts = count_uses(c.transition, grads, _smaller(c, weight))
    else:
        with torch.no_grad():
            solution = solve_long(c.detach(), "scaled")
            log_z = solution.log_z
            initial, duration, state, _, *grads = solution.gradients(weight, of_factors=True)
            counts = count_uses(c.transition, grads, lambda by: solution.gradients(weight * by, of_factors=True)[4:])
    first = torch.zeros_like(c.log_duration[:, 0]) if c.is_carried else initial.sum(0)
    return SegmentCounts(first, counts, duration, state, log_z)


def _of_tree(f: Forest, precision: Precision, weight: Tensor) -> TreeCounts:
    log_z, (leaf, root, root_leaf, _, *grads) = derivatives(f, weight=weight)
    number = {id(factor): i for i, factor in enumerate(f.factors())}
    counts: list[Tensor] = []
    for rule in f.rules:
        own = [number[id(factor)] for factor in rule.factors()]
        smaller = _smaller(f, weight)
        counts += count_uses(rule, [grads[i] for i in own], lambda by: [smaller(by)[i] for i in own])  # noqa: B023
    return TreeCounts(root.sum(0), root_leaf.sum(0), tuple(counts), leaf, log_z)


def _of_blocks(c: BlockChain, precision: Precision, weight: Tensor) -> BlockCounts:
    log_z, (initial, state, transition) = derivatives(c, weight=weight)
    return BlockCounts(initial, transition, state, log_z)


_ANSWERS: dict[ModuleType, Callable[..., ChainCounts | SegmentCounts | TreeCounts | BlockCounts]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}


def _smaller(c: Problem, weight: Tensor) -> Callable[[float], Sequence[Tensor]]:
    """The derivatives of weight times a number times log Z in the factors, in float64."""
    return lambda by: derivatives(c.double(), weight=weight * by)[1][len(c.fields) :]
