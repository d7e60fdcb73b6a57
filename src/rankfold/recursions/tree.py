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
from rankfold.recursions import tree_log, tree_plain, tree_scaled
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
    A sentence in which float32 may have lost some is repeated in float64, and then in log arithmetic, unless weights of
    exactly 0 explain the zeros. -inf means impossible, with zero gradients, and `strict` raises instead. In log
    arithmetic a linear weight of 0 has gradient 0. Source: Baker 1979; with CPDs Cohen, Satta, Collins 2013.
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
            out = ctx.solution.retrace(ctx.forest.with_tensors(*tensors))
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
        self.wider: list[tuple[Tensor, _Solution | _LogSolution]] = []
        self.settled = False
        with torch.no_grad():
            self.chart = tree_scaled.inside(f)
            self.tops = tree_scaled.roots(f, self.chart)
            first = torch.where((f.lengths == 1)[:, None], f.log_leaf[:, 0], 0.0)
            single = log_sum(first.double() + f.log_root_leaf.double())
            self.log_z = torch.where(f.lengths == 1, single, self.tops.log_z)
            sound = self.chart.sound & tree_scaled.clear(self.tops.total, f.log_leaf.dtype)
            if may_look(sound):
                self._widen((~sound & (f.lengths > 1)).nonzero()[:, 0])

    def _widen(self, index: Tensor) -> None:
        """Repeat some sentences on the next rung: float64, then logarithms."""
        if len(index):
            part = self.forest.take(index).double()
            double = self.forest.log_leaf.dtype == torch.float64
            wider = _LogSolution(part) if double else _Solution(part)
            self.wider.append((index, wider))
            self.log_z[index] = wider.log_z
            self.tops.total[index] = 0.0
            tree_scaled.forget(self.chart, index)

    def gradients(self, weight: Tensor) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors)."""
        f = self.forest
        leaf, root, span, *factors = self._scaled_gradients(weight)
        one = f.lengths == 1
        joint = torch.where(one[:, None], f.log_leaf[:, 0], 0.0) + f.log_root_leaf
        possible = (joint > float("-inf")).any(-1, keepdim=True)
        posterior = torch.softmax(torch.where(possible, joint, 0.0), -1) * weight.to(joint.dtype)[:, None]
        root_leaf = torch.where(one[:, None] & possible, posterior, 0.0)
        leaf[:, 0] += root_leaf
        grads = [leaf, root, root_leaf, span, *factors]
        for index, wider in self.wider:
            parts = wider.gradients(weight[index])
            for grad, part in zip(grads[:4], parts[:4], strict=True):
                grad[index] = part.to(grad.dtype)
            for grad, part in zip(grads[4:], _scattered(parts[4:], grads[4:], index), strict=True):
                grad += part.to(grad.dtype)
        return grads

    def _scaled_gradients(self, weight: Tensor) -> list[Tensor]:
        """Those of the sentences on this rung, of (log_leaf, log_root, log_span, *factors).

        A tree of T words has T - 1 brackets and T leaves, so their posteriors must add up to that: a sentence for which
        they do not lost something on the way out and is repeated on the next rung as well.
        """
        f = self.forest
        here = torch.where(self.tops.total > 0, weight, 0.0)
        grads = tree_scaled.gradients(f, self.chart, self.tops, here)
        # A few roundings a width, each of at most 2 eps, with room for sums over many symbols.
        tolerance = 64 * torch.finfo(f.log_leaf.dtype).eps * (f.log_leaf.shape[1] + 8)
        parts = (2 * f.lengths - 1) * here
        found = grads[0].double().sum((1, 2)) + grads[2].double().sum((1, 2))
        trusted = (found - parts).abs() <= tolerance * parts.abs()
        if may_look(trusted) and not trusted.all():
            self._widen((~trusted).nonzero()[:, 0])
            here = torch.where(self.tops.total > 0, weight, 0.0)
            grads = tree_scaled.gradients(f, self.chart, self.tops, here)
        self.settled = True
        return grads

    def retrace(self, f: Forest) -> Tensor:  # "b"
        """log Z of a forest of the same values, each sentence on its own rung, as ordinary autograd operations."""
        if not self.settled:
            with torch.no_grad():
                self._scaled_gradients(torch.ones_like(self.log_z))
        out = tree_plain.log_z(f, self.chart)
        for index, wider in self.wider:
            out = out.index_copy(0, index, wider.retrace(f.take(index).double()))
        return out


class _LogSolution:
    """The last resort: logarithms in float64, exact at any range. The gradient goes through them once more."""

    def __init__(self, f: Forest) -> None:
        self.forest = f
        with torch.no_grad():
            self.log_z = tree_log.log_z(f)

    def gradients(self, weight: Tensor) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors)."""
        with torch.enable_grad():
            tensors = [x.detach().requires_grad_() for x in self.forest.tensors()]
            out = tree_log.log_z(self.forest.with_tensors(*tensors))
        return list(torch.autograd.grad(out, tensors, weight, materialize_grads=True))

    def retrace(self, f: Forest) -> Tensor:  # "b"
        """The same as ordinary autograd operations."""
        return tree_log.log_z(f)


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
