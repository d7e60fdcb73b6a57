"""The entropy of the hidden structure given the sequence.

H = log Z - E[log weight]. Of chains E splits into states and transitions, in blocks where a low-rank matrix has no
low-rank logarithm; of other structures E is the derivative of log Z in all log-weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankfold.decoding.dispatch import answer, derivatives, has_graph
from rankfold.errors import UnsupportedError
from rankfold.kernels.log_products import BLOCK, log_matmul
from rankfold.numerics.log_space import log_sum, log_weights
from rankfold.numerics.scaled import Scaled
from rankfold.operators import BinaryDense, Branch, Dense, LowRank, Operator
from rankfold.recursions import Potentials, blocks, chain, segments, tree
from rankfold.recursions.blocks.potentials import BlockPotentials
from rankfold.recursions.chain import plain
from rankfold.recursions.chain.potentials import Chain, ChainPotentials
from rankfold.recursions.problem import Problem
from rankfold.recursions.segments.potentials import SegmentPotentials
from rankfold.recursions.tree.potentials import TreePotentials

Of = Literal["states", "joint"]


def entropy(p: Potentials, *, of: Of = "states") -> Tensor:  # "b"   float64
    """The entropy, in nats, of the path, segmentation or tree given the sequence.

        H(z_1..z_T | x) = log Z - E[log weight],         E[log weight] = sum theta * d log Z / d theta

    over all log-weights theta, because d log Z / d theta is how often theta is used; 0 * -inf is 0. Where the end may
    cut the last segment, its whole duration counts, in expectation. 0 for impossible sequences, which have nothing to
    be unsure of. Computed in float64, at any range. Differentiable where the potentials are (a weight of exactly zero
    gets no gradient: the true one is infinite). Of segments, trees and blocks it is a difference of numbers as large as
    log Z: at log-weights of 1,000 nats it is right to about 1e-9.

    `of="states"`: of states, or of trees and labels. Chains: b t z y operations, for low rank plus z y r, in blocks,
    never stored. Segments and trees: one pass in each direction for each sequence by itself, with the transition and
    the rules written out, z y and a n m numbers.
    `of="joint"`: of states and ranks together, where transition or rules have ranks, at low-rank cost; at least as
    large as that of the states.
    """
    if of not in get_args(Of):
        raise UnsupportedError(f'of={of!r} is unknown; use "states" or "joint".')
    return answer("entropy", _ANSWERS, p)(p, of)


def _of_segments(p: SegmentPotentials, of: Of) -> Tensor:
    c = segments.validate(p).double()
    if of == "joint":
        _expect_ranks(c.transition)
    else:
        every = torch.arange(c.transition.shape[0], device=c.lengths.device)
        c = c.replace(transition=Dense.from_log(c.transition.log_rows(every)))
    return _one_by_one(c)


def _of_tree(p: TreePotentials, of: Of) -> Tensor:
    f = tree.validate(p).double()
    if of == "joint":
        for name, rule in zip(f.rules._fields, f.rules, strict=True):
            if rule.cpd is None:
                raise UnsupportedError(
                    f'of="joint" asks for the ranks of {name}, a {type(rule).__name__}, but only BinaryCPD has them.\n'
                    '  Use of="states".'
                )
        return _one_by_one(f)
    written = []
    for rule in f.rules:
        parents = torch.arange(rule.shape[0], device=f.lengths.device)
        num = rule.batch or 1
        sentence = torch.arange(num, device=f.lengths.device).repeat_interleave(len(parents))
        rows = rule.log_rows(sentence, parents.repeat(num))
        written.append(BinaryDense.from_log(rows.reshape(num, *rule.shape) if rule.batch else rows))
    return _one_by_one(f.replace(rules=Branch(*written)))


def _of_blocks(p: BlockPotentials, of: Of) -> Tensor:
    c = blocks.validate(p).double()
    if of == "joint":
        raise UnsupportedError('of="joint" asks for ranks, but a chain of blocks has none.\n  Use of="states".')
    return _less_expected(c)


def _one_by_one(c: Problem) -> Tensor:  # "b"
    """The entropies of sequences that share weights, whose uses are each sequence's own only where it is alone."""
    every = torch.arange(len(c.lengths), device=c.lengths.device)
    return torch.cat([_less_expected(c.take(one)) for one in every[:, None]])


def _less_expected(c: Problem) -> Tensor:  # "b"
    """log Z less the expected log-weight, of sequences with weights of their own; 0 for impossible ones."""
    follow = has_graph(c)
    total, grads = derivatives(c)
    linear = {id(x) for x in c.linear_factors()}
    with torch.set_grad_enabled(follow):
        possible = total > float("-inf")
        expected = torch.zeros_like(total)
        for x, grad in zip(c.tensors(), grads, strict=True):
            if id(x) in linear:
                use, log_x = torch.where(x == 0, 0.0, x * grad), log_weights(x)
            else:
                use, log_x = grad, x
            # Beyond a length a weight may be NaN: what is not used does not count.
            part = torch.where(use > 0, log_x, 0.0) * use
            own = part.ndim > 0 and len(total) > 1
            expected = expected + (part.flatten(1).sum(-1) if own else part.sum())
        return torch.where(possible, torch.where(possible, total, 0.0) - expected, 0.0)


def _expect_ranks(transition: Operator) -> None:
    if not isinstance(transition, LowRank):
        raise UnsupportedError(
            f'of="joint" asks for ranks, but a {type(transition).__name__} has none.\n  Use of="states".'
        )


def _of_chain(p: ChainPotentials, of: Of) -> Tensor:
    c = chain.validate(p).double()
    if of == "joint":
        _expect_ranks(c.transition)
    if not _has_digits(c.transition):
        return _in_logs(c, joint=of == "joint")
    out, sound = _on_mantissas(c, of)
    right, wrong = sound.nonzero()[:, 0], (~sound).nonzero()[:, 0]
    if not len(wrong):
        return out
    parts = [_in_logs(c.take(wrong), joint=of == "joint")]
    if len(right):  # again, so that no gradient passes through what was lost
        parts.append(_on_mantissas(c.take(right), of)[0])
    return torch.cat(parts).index_select(0, torch.cat([wrong, right]).argsort())


_ANSWERS: dict[ModuleType, Callable[..., Tensor]] = {
    chain: _of_chain,
    segments: _of_segments,
    tree: _of_tree,
    blocks: _of_blocks,
}


def _has_digits(transition: Operator) -> bool:
    """Whether every linear weight is 0 or so large that its product with its logarithm has all digits."""
    info = torch.finfo(torch.float64)
    return not any(
        bool(((factor > 0) & (factor < info.tiny / info.eps)).any())
        for factor, is_log in zip(transition.factors(), transition.log_factors, strict=True)
        if not is_log
    )


def _on_mantissas(c: Chain, of: Of) -> tuple[Tensor, Tensor]:  # "b", "b"
    """The entropies by linear products, and which of them may be trusted: those whose sums account for log Z."""
    total = chain.log_z(c)
    possible = total > float("-inf")
    try:
        past, future = chain.messages(c)
    except UnsupportedError:  # a graph at weights of 0, beyond the range of float64
        return total, torch.zeros_like(possible)
    inside = c.inside() & possible[:, None]
    joint = past.mantissa * future.mantissa
    mass = torch.where(inside, joint.sum(-1), 1.0)
    gap = mass.log() + past.log_scale + future.log_scale - total[:, None]
    sound = _agrees(gap, past, future, inside)
    posterior = joint / mass.unsqueeze(-1) * inside.unsqueeze(-1)
    at_end = torch.arange(c.log_obs.shape[1], device=total.device) == c.lengths[:, None] - 1
    log_end = torch.where(at_end.unsqueeze(-1), c.log_final[:, None], 0.0)
    expected = _weighted(posterior, c.log_obs) + _weighted(posterior, log_end)
    expected = expected + _weighted(posterior[:, :1], c.log_initial[:, None])
    finite = torch.ones_like(possible)
    if c.log_obs.shape[1] > 1:
        log_scale = past.log_scale[:, :-1] + future.log_scale[:, 1:] - total[:, None]
        of_transitions, gap, whole, finite = _transitions(c, past, future, posterior, log_scale, of)
        expected = expected + of_transitions
        sound &= _agrees(gap, past, future, inside[:, 1:]) & whole
    out = torch.where(possible, torch.where(possible, total, 0.0) - expected, 0.0)
    return out, (sound | ~possible) & finite


def _agrees(gap: Tensor, past: Scaled, future: Scaled, inside: Tensor) -> Tensor:  # "b t" -> "b"
    """Whether sums miss log Z by rounding alone, of products and of the scales, themselves sums of float64."""
    num_positions = past.log_scale.shape[1]
    size = past.log_scale.abs().amax(-1) + future.log_scale.abs().amax(-1) + 64
    near = gap.detach().abs() <= (2.0**-52 * (num_positions + 8) * size)[:, None]
    return torch.where(inside, near, True).all(-1)


def _transitions(
    c: Chain, past: Scaled, future: Scaled, posterior: Tensor, log_scale: Tensor, of: Of
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # "b", "b t-1", "b", "b"
    """E[log A] summed over positions (of (z, r, y) if `of` is joint), by how much its sums miss log Z, whether
    they have all digits, and whether they are finite.

    log_scale "b t-1" is what past and future together are short of the posterior's scale.
    """
    used = posterior[:, 1:].sum(-1) > 0
    source, log_source = _in_view(past.mantissa[:, :-1], posterior[:, :-1])
    emission, log_emission = _emission(c.log_obs[:, 1:], posterior[:, 1:])
    target, log_target = _in_view(future.mantissa[:, 1:] * emission, posterior[:, 1:])
    transition = c.transition
    pushed = transition.push(source)
    use = torch.where(used, (pushed * target).sum(-1), 1.0)
    gap = use.log() + log_source + log_emission + log_target + log_scale + transition.log_scale
    info = torch.finfo(torch.float64)
    small = torch.where(pushed < info.tiny / info.eps * len(pushed.mT), pushed * target, 0.0).detach().sum(-1)
    whole = torch.where(used, small <= info.eps * use.detach(), True).all(-1)
    weighted = (
        transition.push_joint_log_weighted(source)
        if of == "joint" and isinstance(transition, LowRank)
        else transition.push_log_weighted(source)
    )
    total = (weighted * target).sum(-1)
    # Beyond a length, too, and of the impossible: a weight too large for float64 would make gradients of 0 NaN.
    finite = (torch.isfinite(pushed) & torch.isfinite(weighted)).flatten(1).all(-1) & torch.isfinite(total).all(-1)
    log_a = total / use + transition.log_scale
    return torch.where(used, log_a, 0.0).sum(-1), torch.where(used, gap, 0.0), whole, finite


def _in_view(side: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:  # "b t z" twice -> "b t z", "b t"
    """One side of the transitions, scaled so that its largest entry with posterior mass is 1, and the log of the scale.

    Entries without mass may be hundreds of nats above; they are cut at e^280, for they lead nowhere.
    """
    top = torch.where(posterior > 0, side, 0.0).detach().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return (side / top).clamp(max=math.exp(280)), top[..., 0].log()


def _weighted(posterior: Tensor, log_weight: Tensor) -> Tensor:  # "b t z" twice -> "b"
    """E[log weight]; a weight of zero has no mass and does not count."""
    counted = torch.where(posterior > 0, log_weight, 0.0)
    return (posterior * counted).sum((-2, -1))


def _emission(log_obs: Tensor, posterior: Tensor) -> tuple[Tensor, Tensor]:  # "b t z" twice -> "b t z", "b t"
    """exp(log_obs) over its largest entry with posterior mass, cut at e^280 where there is none; that entry's log."""
    top = torch.where(posterior > 0, log_obs, float("-inf")).detach().amax(-1, keepdim=True)
    known = top > float("-inf")
    top = torch.where(known, top, 0.0)
    return torch.exp(torch.where(known, log_obs - top, 0.0).clamp(max=280.0)), top[..., 0]


def _in_logs(c: Chain, *, joint: bool) -> Tensor:  # "b"
    """H(z_1) + sum_t H(z_t+1 | z_t), of states and ranks `joint`ly or of states; 0 for impossible sequences.

    The last resort: any range, one exponential for every term.
    A difference of log Z and expected logarithms would lose the digits that both have in common.
    """
    filtered, total = plain.forward_in_logs(c)
    after = plain.future_in_logs(c)
    inside = (c.inside() & (total > float("-inf"))[:, None]).mT.unsqueeze(-1)
    log_joint = torch.where(inside, filtered + after, float("-inf"))  # "t b z"
    target = (c.observations() + after)[1:]
    first = _surprise(log_joint[0])
    here = torch.where(inside[1:], log_joint[:-1], float("-inf"))
    if joint and isinstance(c.transition, LowRank):
        log_left, log_right = c.transition.log_pair()
        ahead = log_matmul(filtered[:-1].flatten(0, 1), log_left).reshape(*target.shape[:2], log_left.shape[1])
        behind = log_matmul(target.flatten(0, 1), log_right).reshape(ahead.shape)
        ranks = torch.where(inside[1:], ahead + behind, float("-inf"))
        return first + _expected_entropy(here, log_left, behind) + _expected_entropy(ranks, log_right.mT, target)
    return first + _expected_entropy(here, c.transition.log_rows, target)


def _expected_entropy(log_state: Tensor, log_rows: Tensor | Callable[[Tensor], Tensor], log_target: Tensor) -> Tensor:
    """sum_t sum_z p(z) H(y | z), where p(y | z) is as weight[z, y] target[y]: "t b z", "z y", "t b y" -> "b"."""
    num_steps, num_sequences, num_states = log_state.shape
    state = _normalised(log_state).exp()
    height = max(1, BLOCK // (num_sequences * log_target.shape[-1]))
    total = log_state.new_zeros(num_sequences)
    for rows in torch.split(torch.arange(num_states, device=log_state.device), height):
        weight = log_rows[rows] if isinstance(log_rows, Tensor) else log_rows(rows)
        for t in range(num_steps):
            total = total + _recomputed(state[t][:, rows], weight, log_target[t])
    return total


def _recomputed(state: Tensor, log_weight: Tensor, log_target: Tensor) -> Tensor:  # "b z", "z y", "b y" -> "b"
    """A block's share; where autograd is watching it is computed again in the backward pass, not kept."""
    if not torch.is_grad_enabled():
        return _share(state, log_weight, log_target)
    found: Tensor = checkpoint(_share, state, log_weight, log_target, use_reentrant=False)
    return found


def _share(state: Tensor, log_weight: Tensor, log_target: Tensor) -> Tensor:
    return (state * _surprise(log_weight + log_target.unsqueeze(-2))).sum(-1)


def _surprise(log_x: Tensor) -> Tensor:  # "... z" -> "..."
    """The entropy of each distribution, given as unnormalised logarithms; 0 where nothing has weight."""
    log_p = _normalised(log_x)
    return -(log_p.exp() * torch.where(log_p > float("-inf"), log_p, 0.0)).sum(-1)


def _normalised(log_x: Tensor) -> Tensor:  # "... z" -> "... z"
    """log p = log x - log sum x; -inf throughout where nothing has weight."""
    total = log_sum(log_x)
    return log_x - torch.where(total > float("-inf"), total, 0.0).unsqueeze(-1)
