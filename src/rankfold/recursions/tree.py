"""Trees: log Z over all labelled binary trees of each sentence.

`log_z` is one autograd function: the forward pass keeps a chart of vectors, the backward pass goes through its widths
again. Read next: `recursions/tree_scaled.py`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError, may_look
from rankfold.numerics.log_space import log_sum
from rankfold.recursions import tree_log, tree_scaled
from rankfold.recursions.tree_potentials import Forest, TreePotentials, checked

__all__ = ["TreePotentials", "log_z"]

Arithmetic = Literal["scaled", "log"]


def log_z(p: TreePotentials, arithmetic: Arithmetic = "scaled", *, strict: bool = False) -> Tensor:  # "b"   float64
    """Log-probability of each sentence, summed over all binary trees and all labels.

        inside[i, j, a] = span[i, j] sum_k sum_{n, m} rules[a, n, m] inside[i, k, n] inside[k, j, m]
        log Z = log sum_a root[a] inside[0, T, a]

    Cost: a rule's `combine` for every split, T^3 / 6 of them, and its other steps for every span, T^2 / 2. Memory: the
    chart, O(b t^2 l) with l what a rule makes of a child (its rank, or all its symbols); nothing of the size of the
    splits, nor of the grammar for each sentence. Differentiable in every field, twice; d log Z / d log_span is the
    posterior of a bracket, d log Z / d log_leaf that of a word's symbol.

    Scaled arithmetic loses entries more than 87 nats (float32; 708 in float64) below the largest of their own span.
    Sentences that come out without any weight are repeated in float64, then in log arithmetic: -inf means impossible,
    with zero gradients, and `strict` raises instead. Source: Baker 1979; with CPDs Cohen, Satta, Collins 2013.
    """
    if arithmetic not in get_args(Arithmetic):
        raise UnsupportedError(f'arithmetic={arithmetic!r} is unknown; use "scaled" (fast) or "log" (any range).')
    f = checked(p)
    out: Tensor = tree_log.log_z(f.double()) if arithmetic == "log" else _LogZ.apply(f, *f.tensors())
    if strict and may_look(out):
        _raise_if_impossible(out)
    return out


class _LogZ(torch.autograd.Function):
    """log Z with inside-outside as its derivative."""

    @staticmethod
    def forward(ctx: Any, f: Forest, *tensors: Tensor) -> Tensor:
        ctx.solution = _Solution(f.with_tensors(*(x.detach() for x in tensors)))
        ctx.forest = f
        ctx.save_for_backward(*tensors)
        log_z: Tensor = ctx.solution.log_z
        return log_z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        wanted, tensors = ctx.needs_input_grad[1:], ctx.saved_tensors
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow.
            # Views, because inputs may be made of one another: only the last step to each is asked for.
            tensors = tuple(x.view_as(x) for x in tensors)
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            out = tree_log.log_z(ctx.forest.with_tensors(*tensors).double())
            found = iter(torch.autograd.grad(out, asked, weight, create_graph=True, materialize_grads=True))
            return (None, *(next(found) if want else None for want in wanted))
        solved = ctx.solution.gradients(weight)
        return (
            None,
            *(x.to(like.dtype) if want else None for x, like, want in zip(solved, tensors, wanted, strict=True)),
        )


class _Solution:
    """The chart in the caller's dtype; `wider` holds the sentences that need more."""

    def __init__(self, f: Forest) -> None:
        self.forest = f
        self.wider: tuple[Tensor, _Solution | _LogSolution] | None = None
        with torch.no_grad():
            self.chart = tree_scaled.inside(f)
            self.tops = tree_scaled.roots(f, self.chart)
            single = log_sum(torch.where((f.lengths == 1)[:, None], f.log_leaf[:, 0], 0.0) + f.log_root_leaf).double()
        self.log_z = torch.where(f.lengths == 1, single, self.tops.log_z)
        if may_look(self.log_z):
            doubtful = (~(self.log_z > float("-inf")) & (f.lengths > 1)).nonzero()[:, 0]
            if len(doubtful):
                part = f.take(doubtful).double()
                double = f.log_leaf.dtype == torch.float64
                self.wider = doubtful, (_LogSolution(part) if double else _Solution(part))
                self.log_z[doubtful] = self.wider[1].log_z

    def gradients(self, weight: Tensor) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors)."""
        f = self.forest
        here = torch.where(f.lengths > 1, weight, 0.0)
        if self.wider is not None:
            here[self.wider[0]] = 0.0
        leaf, root, span, *factors = tree_scaled.gradients(f, self.chart, self.tops, here)
        one = f.lengths == 1
        joint = torch.where(one[:, None], f.log_leaf[:, 0], 0.0) + f.log_root_leaf
        possible = (joint > float("-inf")).any(-1, keepdim=True)
        posterior = torch.softmax(torch.where(possible, joint, 0.0), -1) * weight.to(joint.dtype)[:, None]
        root_leaf = torch.where(one[:, None] & possible, posterior, 0.0)
        leaf[:, 0] += root_leaf
        grads = [leaf, root, root_leaf, span, *factors]
        if self.wider is not None:
            index, wider = self.wider
            parts = wider.gradients(weight[index])
            for grad, part in zip(grads[:4], parts[:4], strict=True):
                grad[index] = part.to(grad.dtype)
            for grad, part in zip(grads[4:], _scattered(parts[4:], grads[4:], index), strict=True):
                grad += part.to(grad.dtype)
        return grads


class _LogSolution:
    """The last resort: logarithms in float64, exact at any range."""

    def __init__(self, f: Forest) -> None:
        with torch.enable_grad():
            self.tensors = [x.detach().requires_grad_() for x in f.tensors()]
            self.out = tree_log.log_z(f.with_tensors(*self.tensors))
        self.log_z = self.out.detach()

    def gradients(self, weight: Tensor) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors)."""
        return list(torch.autograd.grad(self.out, self.tensors, weight, retain_graph=True, materialize_grads=True))


def _scattered(parts: list[Tensor], like: list[Tensor], index: Tensor) -> list[Tensor]:
    """Gradients of the rules of some sentences, in the place of those sentences where rules differ by sentence."""
    found = []
    for part, whole in zip(parts, like, strict=True):
        if part.shape == whole.shape:
            found.append(part)
        else:
            found.append(torch.zeros_like(whole, dtype=part.dtype).index_copy_(0, index, part))
    return found


def _raise_if_impossible(out: Tensor) -> None:
    impossible = (out.detach() == float("-inf")).nonzero()[:, 0]
    if len(impossible):
        raise DomainError(
            f"sentence {int(impossible[0])} is impossible: no tree has any weight"
            f"{f', and so are {len(impossible) - 1} more' if len(impossible) > 1 else ''}.\n"
            "  One word needs log_root_leaf; else look for words, rules or brackets of weight zero."
        )
