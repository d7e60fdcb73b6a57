"""log Z of trees and its gradient, in the narrowest arithmetic that loses nothing.

A ladder of three rungs, as for chains: scaled vectors in the caller's dtype, in float64, logarithms in float64. Each
sentence stays on the first that proves sound for it, inside and outside, and does not disturb its neighbours.
Read next: `recursions/tree/ranks.py` and `recursions/tree/scaled.py`, the first rung for two kinds of rules.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.precision import products_in
from rankfold.recursions.tree import plain, ranks, scaled, soundness
from rankfold.recursions.tree.charts import Labels, clear, zeros_are_losses
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.scaled import SeeLabels


class Solution:
    """The chart in the caller's dtype; `wider` holds the sentences that need more. `plain`: one for `tree_plain`.

    Products are as exact as the dtype, whatever the mode around them: they are a small part of a step, and rounded
    operands would hide what the checks of soundness look for.
    """

    def __init__(self, f: Forest, *, plain: bool = False) -> None:
        self.forest = f
        self.wider: list[tuple[Tensor, Solution | LogSolution]] = []
        self.settled = False
        with torch.no_grad(), self._products():
            self.chart: ranks.Chart | scaled.Chart
            if ranks.shared(f.rules) and not plain:
                self.chart = ranks.inside(f)
                self.tops = ranks.roots(f, self.chart)
            else:
                self.chart = scaled.inside(f)
                self.tops = scaled.roots(f, self.chart)
            one = f.lengths == 1
            first = torch.where(one[:, None], f.log_leaf[:, 0], 0.0)
            single = log_sum(first.double() + f.log_root_leaf.double())
            self.log_z = torch.where(one, single, self.tops.log_z)
            sound = one | (self.chart.sound & clear(self.tops.total, f.log_leaf.dtype))
            if may_look(sound):
                sound &= ~self._lost_beside_zeros(sound & ~one)
                self._widen((~sound).nonzero()[:, 0])
            else:  # inside a captured graph nothing can be repeated
                self.log_z = torch.where(sound, self.log_z, float("nan"))

    def _products(self) -> AbstractContextManager[None]:
        return products_in("float32", self.forest.log_leaf.device)

    def _lost_beside_zeros(self, asked: Tensor) -> Tensor:  # "b", "b" bool
        """Which of some sentences lost entries that the chart took for weights of 0: in float64, beside such ones."""
        f, out = self.forest, torch.zeros_like(asked)
        if f.log_leaf.dtype != torch.float64:  # there zeros are losses
            return out
        index = (asked & ~zeros_are_losses(f)).nonzero()[:, 0]
        if len(index):
            out[index] = soundness.lost(f.take(index), (x[index] for x in self.chart.raw()))
        return out

    def _widen(self, index: Tensor) -> None:
        """Repeat some sentences on the next rung: float64, then logarithms."""
        if len(index):
            part = self.forest.take(index).double()
            double = self.forest.log_leaf.dtype == torch.float64
            wider = LogSolution(part) if double else Solution(part)
            self.wider.append((index, wider))
            self.log_z[index] = wider.log_z
            self.tops.total[index] = 0.0
            self.chart.forget(index)

    def gradients(self, weight: Tensor, *, of_factors: bool = True) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors); factors 0 if not asked."""
        f = self.forest
        leaf, root, span, *factors = self._scaled_gradients(weight, of_factors=of_factors)
        one = f.lengths == 1
        joint = torch.where(one[:, None], f.log_leaf[:, 0], 0.0) + f.log_root_leaf
        possible = (joint > float("-inf")).any(-1, keepdim=True)
        posterior = torch.softmax(torch.where(possible, joint, 0.0), -1) * weight.to(joint.dtype)[:, None]
        root_leaf = torch.where(one[:, None] & possible, posterior, 0.0)
        leaf[:, 0] += root_leaf
        grads = [leaf, root, root_leaf, span, *factors]
        for index, wider in self.wider:
            parts = wider.gradients(weight[index], of_factors=of_factors)
            for grad, part in zip(grads[:4], parts[:4], strict=True):
                grad[index] = part.to(grad.dtype)
            for grad, part in zip(grads[4:], _scattered(parts[4:], grads[4:], index), strict=True):
                grad += part.to(grad.dtype)
        return grads

    def _scaled_gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]:
        """Those of the sentences on this rung, of (log_leaf, log_root, log_span, *factors).

        A tree of T words has T - 1 brackets and T leaves, so their posteriors must add up to that: a sentence for which
        they do not lost something on the way out and is repeated on the next rung as well.
        """
        f = self.forest
        here = torch.where(self.tops.total > 0, weight, 0.0)
        if not may_look(here):  # inside a captured graph: sentences that cannot be vouched for are NaN
            here = torch.where(self.log_z.isnan(), float("nan"), here)
        grads = self._outside(here, of_factors=of_factors)
        # A few roundings a width, each of at most 2 eps, with room for sums over many symbols.
        tolerance = 64 * torch.finfo(f.log_leaf.dtype).eps * (f.log_leaf.shape[1] + 8)
        parts = (2 * f.lengths - 1) * here
        found = grads[0].double().sum((1, 2)) + grads[2].double().sum((1, 2))
        trusted = (found - parts).abs() <= tolerance * parts.abs()
        if not may_look(trusted):
            grads[:3] = [torch.where(trusted.view(-1, *[1] * (x.ndim - 1)), x, float("nan")) for x in grads[:3]]
        elif not trusted.all():
            self._widen((~trusted).nonzero()[:, 0])
            grads = self._outside(torch.where(self.tops.total > 0, weight, 0.0), of_factors=of_factors)
        self.settled = True
        return grads

    def _outside(self, weight: Tensor, see: SeeLabels | None = None, *, of_factors: bool) -> list[Tensor]:
        with self._products():
            if isinstance(self.chart, ranks.Chart):
                return ranks.gradients(self.forest, self.chart, self.tops, weight, see, of_factors=of_factors)
            return scaled.gradients(self.forest, self.chart, self.tops, weight, see, of_factors=of_factors)

    def labels(self) -> Labels:
        """The most probable label of every span and word."""
        self._settle()
        here = torch.where(self.tops.total > 0, 1.0, 0.0).double()
        found = Labels.none(self.forest)
        self._outside(here, found.see, of_factors=False)
        for index, wider in self.wider:
            found.put(index, wider.labels())
        return found

    def log_spans(self) -> tuple[list[Tensor], Tensor]:
        """The logarithms of the vectors of all spans, float64, by width from 2, and which sentences were solved so."""
        spans, scales = self.chart.vectors()
        found = [x.double().log() + scale.unsqueeze(-1) for x, scale in zip(spans, scales, strict=True)]
        in_logs = torch.zeros_like(self.chart.sound)
        for index, wider in self.wider:
            parts, in_logs[index] = wider.log_spans()
            for whole, part in zip(found, parts, strict=True):
                whole[index] = part
        return found, in_logs

    def _settle(self) -> None:
        """Run the outside pass once, so that every sentence is on the rung it needs in both directions."""
        if not self.settled:
            with torch.no_grad():
                self._scaled_gradients(torch.ones_like(self.log_z), of_factors=False)

    def retrace(self, f: Forest) -> Tensor:  # "b"
        """log Z of a forest of the same values, each sentence on its own rung, as ordinary autograd operations."""
        if isinstance(self.chart, ranks.Chart):
            return Solution(self.forest, plain=True).retrace(f)
        self._settle()
        out = plain.log_z_scaled(f, self.chart)
        for index, wider in self.wider:
            out = out.index_copy(0, index, wider.retrace(f.take(index).double()))
        return out


class LogSolution:
    """The last resort: logarithms in float64, exact at any range. The gradient goes through them once more."""

    def __init__(self, f: Forest) -> None:
        self.forest = f
        with torch.no_grad():
            self.log_z = plain.log_z_in_logs(f)

    def gradients(self, weight: Tensor, *, of_factors: bool = True) -> list[Tensor]:
        """d (weight . log_z) / d (log_leaf, log_root, log_root_leaf, log_span, *factors)."""
        with torch.enable_grad():
            tensors = [x.detach().requires_grad_() for x in self.forest.tensors()]
            out = plain.log_z_in_logs(self.forest.with_tensors(*tensors))
        return list(torch.autograd.grad(out, tensors, weight, materialize_grads=True))

    def retrace(self, f: Forest) -> Tensor:  # "b"
        """The same as ordinary autograd operations."""
        return plain.log_z_in_logs(f)

    def log_spans(self) -> tuple[list[Tensor], Tensor]:
        """The logarithms of the vectors of all spans, by width from 2, and that all were solved so."""
        f = self.forest
        log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf"))
        with torch.no_grad():
            return plain.inside_in_logs(f, log_leaf), torch.ones_like(f.lengths, dtype=torch.bool)

    def labels(self) -> Labels:
        """The most probable label of every span."""
        f, found = self.forest, Labels.none(self.forest)
        with torch.enable_grad():
            log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, 0.0).detach().requires_grad_()
            spans = plain.inside_in_logs(f, log_leaf)
            out = plain.log_roots(f, spans)
            posteriors = torch.autograd.grad(out.sum(), spans, materialize_grads=True) if spans else ()
        for width, posterior in enumerate(posteriors, 2):
            found.see(width, posterior)
        return found


def _scattered(parts: list[Tensor], like: list[Tensor], index: Tensor) -> list[Tensor]:
    """Gradients of the rules of some sentences, in the place of those sentences where rules differ by sentence."""
    found = []
    for part, whole in zip(parts, like, strict=True):
        if part.shape == whole.shape:
            found.append(part)
        else:
            found.append(torch.zeros_like(whole, dtype=part.dtype).index_copy_(0, index, part))
    return found
