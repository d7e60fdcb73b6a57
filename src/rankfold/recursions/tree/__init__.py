"""Trees: log Z over all labelled binary trees of each sentence.

`log_z` is one autograd function: the forward pass keeps a chart of vectors, the backward pass goes through its widths
again. Read next: `recursions/tree/rungs.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfold.errors import DomainError, expect_plain, may_look
from rankfold.numerics.function import Function, refuse_undefined
from rankfold.numerics.precision import Precision, check_precision
from rankfold.recursions.ladder import Arithmetic, check_arithmetic
from rankfold.recursions.tree import plain
from rankfold.recursions.tree.potentials import Forest, TreePotentials, validate
from rankfold.recursions.tree.rungs import Solution

__all__ = ["TreePotentials", "chart", "log_z", "validate"]


def log_z(
    p: TreePotentials | Forest,
    arithmetic: Arithmetic = "scaled",
    precision: Precision = "float32",
    *,
    strict: bool = False,
) -> Tensor:  # "b"   float64
    """Log-probability of each sentence, summed over all binary trees and all labels.

        inside[i, j, a] = span[i, j] sum_k sum_{n, m} rules[a, n, m] inside[i, k, n] inside[k, j, m]
        log Z = log sum_a root[a] inside[0, T, a]

    Cost: a rule's `combine` for every split, T^3 / 6 of them, and its other steps for every span, T^2 / 2. Memory: the
    chart, O(b t^2 l) with l what a rule makes of a child (its rank, or all its symbols); nothing of the size of the
    splits, nor of the grammar for each sentence. Differentiable in every field, twice; d log Z / d log_span is the
    posterior of a bracket, d log Z / d log_leaf that of a word's symbol. Products are as exact as their dtype, whatever
    `precision` permits.

    Scaled arithmetic loses entries more than 87 nats (float32; 708 in float64) below the largest of their own span.
    A sentence in which float32 may have lost some that weigh, even after weights above 1 (an operator's `gain`), is
    repeated in float64, and then in log arithmetic, unless weights of exactly 0 explain the zeros: in float64 a second
    inside pass, over zeros and ones, says which labels a span can have at all. In a captured graph, where nothing can
    be repeated, such a sentence is NaN (in float64, zeros beside weights of 0 are taken for theirs). -inf means
    impossible, with zero gradients, and `strict` raises instead. In log arithmetic a linear weight of 0 has gradient 0.
    Source: Baker 1979; with CPDs Cohen, Satta, Collins 2013.
    """
    check_arithmetic(arithmetic)
    check_precision(precision)
    f = validate(p)
    out: Tensor = plain.log_z_in_logs(f.double()) if arithmetic == "log" else _LogZ.apply(f, *f.tensors())
    if strict and may_look(out):
        _raise_if_impossible(out)
    return out


def chart(p: TreePotentials) -> Tensor:  # "b t+1 t+1 n"   float64
    """The log-weight of all trees over words i..j-1 with each label at their top, in entry [i, j]; -inf elsewhere.

    `log_span` of the span itself is in it, the root's weight is not: log Z is the log-sum of entry [0, T] and
    `log_root`. Spans of two words and more; words have `log_leaf`. Solved in float64 or wider, without a graph: a
    gradient is that of `log_z`. Cost: an inside pass. Memory: t^2 n for each sentence.
    """
    with torch.no_grad():
        f = validate(p).detach().double()
        num, num_words = f.log_leaf.shape[:2]
        out = f.log_root.new_full((num, num_words + 1, num_words + 1, f.log_root.shape[1]), float("-inf"))
        for width, span in enumerate(Solution(f).log_spans()[0], 2):
            torch.diagonal(out, width, 1, 2).copy_(span.mT)
    return out


class _LogZ(Function):
    """log Z with inside-outside as its derivative."""

    @staticmethod
    def forward(ctx: Any, f: Forest, *tensors: Tensor) -> Tensor:
        ctx.solution = Solution(f.with_tensors(*(x.detach() for x in tensors)))
        ctx.forest = f
        ctx.save_for_backward(*tensors)
        log_z: Tensor = ctx.solution.log_z
        return log_z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        expect_plain(weight, name="the gradient of log_z")
        wanted, tensors = ctx.needs_input_grad[1:], ctx.saved_tensors
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow.
            # Views, because inputs may be made of one another: only the last step to each is asked for.
            tensors = tuple(x.view_as(x) for x in tensors)
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            refuse_undefined(asked, tensors[4:])
            out = ctx.solution.retrace(ctx.forest.with_tensors(*tensors))
            found = iter(torch.autograd.grad(out, asked, weight, create_graph=True, materialize_grads=True))
            return (None, *(next(found) if want else None for want in wanted))
        solved = ctx.solution.gradients(weight, of_factors=any(wanted[4:]))
        return (
            None,
            *(x.to(like.dtype) if want else None for x, like, want in zip(solved, tensors, wanted, strict=True)),
        )


def _raise_if_impossible(out: Tensor) -> None:
    impossible = (out.detach() == float("-inf")).nonzero()[:, 0]
    if len(impossible):
        raise DomainError(
            f"sentence {int(impossible[0])} is impossible: no tree has any weight"
            f"{f', and so are {len(impossible) - 1} more' if len(impossible) > 1 else ''}.\n"
            "  One word needs log_root_leaf; else look for words, rules or brackets of weight zero."
        )
