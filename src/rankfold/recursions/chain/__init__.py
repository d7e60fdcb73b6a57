"""Chains: log Z over all state paths, its messages, and the state carried to the next stretch.

`log_z` is one autograd function: the forward pass stores its messages, the backward pass runs theirs and
gets each factor's gradient from one product over all positions. Read next: `recursions/chain/rungs.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.errors import DomainError, expect_plain, may_look
from rankfold.numerics.function import Function, refuse_undefined
from rankfold.numerics.precision import Precision, check_precision, matmul_precision
from rankfold.numerics.scaled import Scaled
from rankfold.recursions.chain.filtering import Advanced, advance, carry
from rankfold.recursions.chain.potentials import Chain, ChainPotentials, validate
from rankfold.recursions.chain.rungs import LogSolution, Solution, solve
from rankfold.recursions.ladder import Arithmetic, check_arithmetic

__all__ = ["Advanced", "ChainPotentials", "Messages", "advance", "carry", "log_z", "messages", "validate"]


class Messages(NamedTuple):
    """What each position knows of its past and of its future."""

    filtered: Scaled  # "b t z"   p(x_1..t, z_t)
    future: Scaled  # "b t z"     p(x_t+1..T | z_t), log_final included


def log_z(
    p: ChainPotentials | Chain,
    arithmetic: Arithmetic = "scaled",
    precision: Precision = "float32",
    *,
    strict: bool = False,
) -> Tensor:  # "b"   float64
    """Log-probability of each observed sequence, summed over all state paths.

        log Z = log  sum_{z_1..z_T}  initial[z_1] obs_1[z_1]  prod_{t>1}  A[z_{t-1}, z_t] obs_t[z_t]  final[z_T]

    Cost: T calls of `transition.push`; O(b t z r) for a low-rank transition. Memory O(b t z).
    Differentiable in every field, twice; d log Z / d log_obs is the state posterior. Not the best path:
    see `viterbi`. Always float64, because it may be a large number of which small differences matter.

    Scaled arithmetic bounds what underflow could have taken; sequences that fail are repeated in float64,
    then in log arithmetic. An impossible sequence has -inf and zero gradients; `strict` raises instead.
    While a CUDA graph is captured nothing can be repeated: those sequences are NaN, never wrong.
    Source: Chiu, Deng, Rush 2021, Alg. 2; in rank space Yang, Liu, Tu 2022, sec. 4.3.
    """
    check_arithmetic(arithmetic)
    check_precision(precision)
    c = validate(p)
    out: Tensor = _LogZ.apply(c, arithmetic, precision, *c.tensors())
    if strict and may_look(out):
        _raise_if_impossible(c, out)
    return out


def messages(p: ChainPotentials, arithmetic: Arithmetic = "scaled") -> Messages:
    """The filtered and future messages at every position, 0 beyond a length; differentiable.

        filtered_t[z] = p(x_1..t, z_t = z)        future_t[z] = p(x_t+1..T | z_t = z) final
        log Z = log sum_z filtered_t[z] future_t[z]   at every t

    Sequences are computed in the arithmetic they need, as in `log_z`; the mantissas returned have the
    dtype of the potentials, so entries far below the largest of their vector are 0 (see `Scaled`).
    """
    check_arithmetic(arithmetic)
    c = validate(p)
    with torch.no_grad():
        solution = solve(c.detach(), arithmetic, "float32")
    return _messages(c, solution)


def _messages(c: Chain, solution: Solution) -> Messages:
    # Rebuilt from its tensors: an operator kept while an optimiser changed them still holds what it made of them.
    c = c.with_tensors(*c.tensors())
    traced = c.double() if isinstance(solution, LogSolution) else c
    inside = c.inside()
    both = []
    for what in ("filtered", "future"):
        mantissa, log_scale = solution.retrace(traced, what)
        mantissa = mantissa.to(c.log_obs.dtype).transpose(0, 1)
        both.append(
            Scaled(
                torch.where(inside.unsqueeze(-1), mantissa, 0.0),
                torch.where(inside, log_scale.transpose(0, 1), 0.0),
            )
        )
    return Messages(*both)


class _LogZ(Function):
    """log Z with forward-backward as its derivative."""

    @staticmethod
    def forward(ctx: Any, c: Chain, arithmetic: Arithmetic, precision: Precision, *tensors: Tensor) -> Tensor:
        ctx.chain = c = c.with_tensors(*(x.detach() for x in tensors))
        ctx.solution = solve(c, arithmetic, precision, both=any(ctx.needs_input_grad[3:]))
        ctx.precision = precision
        ctx.save_for_backward(*tensors)
        log_z: Tensor = ctx.solution.log_z
        return log_z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        expect_plain(weight, name="the gradient of log_z")
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow. Messages
            # stored in ctx would lose the second derivative without a word.
            # Views, because inputs may be made of one another: only the last step to each is asked for.
            tensors = tuple(x.view_as(x) for x in tensors)
            (out,) = ctx.solution.retrace(ctx.chain.with_tensors(*tensors), "log_z")
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            refuse_undefined(asked, tensors[3:])
            with matmul_precision(ctx.precision, weight.device):
                found = iter(torch.autograd.grad(out, asked, weight, create_graph=True, materialize_grads=True))
        else:
            solved = ctx.solution.gradients(weight, of_transition=any(wanted[3:]))
            every = (x.to(like.dtype) for x, like in zip(solved, tensors, strict=False))
            found = iter([x for x, want in zip(every, wanted, strict=False) if want])
        return (None, None, None, *(next(found) if want else None for want in wanted))


def _raise_if_impossible(c: Chain, out: Tensor) -> None:
    impossible = (out.detach() == float("-inf")).nonzero()[:, 0]
    if not len(impossible):
        return
    first = impossible[:1]
    position = LogSolution(c.detach().take(first).double()).dead_end(0)
    where = f"at position {position}" if position < int(c.lengths[first]) else "at its end (log_final)"
    raise DomainError(
        f"sequence {int(first)} is impossible: no state path has any weight {where}"
        f"{f', and so are {len(impossible) - 1} more' if len(impossible) > 1 else ''}.\n"
        "  Look for observations of weight zero in every state that can be reached there."
    )
