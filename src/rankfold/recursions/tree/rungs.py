"""The rungs of trees: charts of scaled vectors in the caller's dtype or in float64, and logarithms.

Scaled charts come in two kinds: over ranks, for rules that share their factors, and over symbols, for any rules.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rankfold.errors import may_look
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.precision import Precision, products_in, round_off
from rankfold.recursions.ladder import Arithmetic, Backward, Ladder, LastRung
from rankfold.recursions.tree import packed, pairs, plain, ranks, scaled, soundness
from rankfold.recursions.tree.charts import Labels
from rankfold.recursions.tree.potentials import Forest
from rankfold.recursions.tree.scaled import SeeLabels


class ScaledRung:
    """A chart of scaled vectors. `over_symbols`: of the kind that `plain` can retrace, whatever the rules share.

    Products are as exact as the dtype, whatever the mode around them: they are a small part of a step, and rounded
    operands would hide the losses that the checks of soundness look for.
    """

    in_logs = False

    def __init__(self, f: Forest, *, over_symbols: bool = False) -> None:
        self.problem, self.over_symbols = f, over_symbols or not ranks.share_factors(f.rules)
        self._kind: Any = scaled if self.over_symbols else ranks
        self._one = f.lengths == 1
        with torch.no_grad(), self._products():
            self.chart = self._kind.inside(f)
            self.tops = self._kind.roots(f, self.chart)
            self.log_z = self._with_one(self.tops.log_z)

    def _with_one(self, log_z: Tensor) -> Tensor:  # "b"
        """The same, with sentences of one word."""
        f = self.problem
        first = torch.where(self._one[:, None], f.log_leaf[:, 0], 0.0)
        single = log_sum(first.double() + f.log_root_leaf.double())
        return torch.where(self._one, single, log_z)

    def _products(self) -> AbstractContextManager[None]:
        return products_in("float32", self.problem.log_leaf.device)

    def sound(self) -> Tensor:  # "b"
        f, one = self.problem, self._one
        with torch.no_grad(), self._products():
            if self.over_symbols:
                kept = soundness.vectors_kept(f, self.chart)
            else:
                kept = soundness.ranks_kept(f, self.chart, self.tops)
            sound = one | (kept & soundness.clear(self.tops.total, f.log_leaf.dtype))
            if f.log_leaf.dtype == torch.float64:  # narrower, all zeros are losses
                unclear = sound & ~one & ~soundness.zeros_are_losses(f)
                if not may_look(sound):
                    return sound & ~(unclear & soundness.lost_among_zeros(f, self.chart.raw()))
                index = unclear.nonzero()[:, 0]
                if len(index):
                    raw = (x[index] for x in self.chart.raw())
                    sound[index] = ~soundness.lost_among_zeros(f.take(index), raw)
        return sound

    def repeat(self, part: Forest, *, in_logs: bool) -> ScaledRung | LogRung:
        return LogRung(part) if in_logs else ScaledRung(part, over_symbols=self.over_symbols)

    def forget(self, index: Tensor) -> None:
        self.tops.total[index] = 0.0
        self.chart.forget(index)
        self._fresh = False

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        """A tree of T words has T - 1 brackets and T leaves, so the posteriors of a trusted sentence add up to that."""
        f, self._fresh = self.problem, True
        here = torch.where(self.tops.total > 0, weight, 0.0)
        if not may_look(here):
            here = torch.where(self.log_z.isnan(), float("nan"), here)
        grads = self._outside(here, of_factors=of_factors)
        tolerance = self._tolerance()
        parts = (2 * f.lengths - 1) * here
        found = grads[0].double().sum((1, 2)) + grads[2].double().sum((1, 2))
        trusted = (found - parts).abs() <= tolerance * parts.abs()

        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            if not self._fresh:  # some sentences have been forgotten since
                return self._with_words(
                    self._outside(torch.where(self.tops.total > 0, weight, 0.0), of_factors=of_factors), weight
                )
            if not may_look(trusted):
                grads[:3] = [torch.where(trusted.view(-1, *[1] * (x.ndim - 1)), x, float("nan")) for x in grads[:3]]
            return self._with_words(grads, weight)

        return Backward(trusted, gradients)

    def _tolerance(self) -> float:
        """A few roundings per width, each of at most 2 eps, with a margin for sums over many symbols."""
        f = self.problem
        return 64 * torch.finfo(f.log_leaf.dtype).eps * (f.log_leaf.shape[1] + 8)

    def _outside(self, weight: Tensor, see: SeeLabels | None = None, *, of_factors: bool) -> list[Tensor]:
        """d (weight . log Z) / d (log_leaf, log_root, log_span, *factors), of sentences of two words and more."""
        with self._products():
            f, chart, tops = self.problem, self.chart, self.tops
            found: list[Tensor] = self._kind.gradients(f, chart, tops, weight, see, of_factors=of_factors)
            return found if of_factors else found[:3]

    def _with_words(self, grads: list[Tensor], weight: Tensor) -> list[Tensor]:
        """The gradients with those of sentences of one word, and of their root, in the order of `tensors`."""
        f, (leaf, root, span, *factors) = self.problem, grads
        one = self._one[:, None]
        joint = torch.where(one, f.log_leaf[:, 0], 0.0) + f.log_root_leaf
        possible = (joint > float("-inf")).any(-1, keepdim=True)
        posterior = torch.softmax(torch.where(possible, joint, 0.0), -1) * weight.to(joint.dtype)[:, None]
        root_leaf = torch.where(one & possible, posterior, 0.0)
        leaf[:, 0] += root_leaf
        return [leaf, root, root_leaf, span, *factors]

    def retrace(self, f: Forest, index: Tensor | None) -> Tensor:
        with self._products():
            out = plain.log_z_scaled(f, self.chart)
        return out if index is None else out[index]

    def labels(self) -> Labels:
        """The most probable label of every span."""
        found = Labels.none(self.problem)
        self._outside(torch.where(self.tops.total > 0, 1.0, 0.0).double(), found.see, of_factors=False)
        return found

    def log_spans(self) -> list[Tensor]:  # "b s n", by width from 2
        """The logarithms of the vectors of all spans, float64."""
        spans, scales = self.chart.vectors()
        return [x.double().log() + scale.unsqueeze(-1) for x, scale in zip(spans, scales, strict=True)]


class PackedRung(ScaledRung):
    """A packed chart on a GPU, over ranks or over pairs of children, whose products are as exact as the caller asks."""

    def __init__(self, f: Forest, precision: Precision, kind: Any) -> None:
        self.problem, self.over_symbols, self.precision, self._kind = f, False, precision, kind
        self._one = f.lengths == 1
        with torch.no_grad(), self._products():
            self.chart = self._kind.inside(f, precision)
            self.tops = self._kind.roots(f, self.chart)
            self.log_z = self._with_one(self.tops.log_z)

    def _products(self) -> AbstractContextManager[None]:
        return products_in(self.precision, self.problem.log_leaf.device)

    def sound(self) -> Tensor:  # "b"
        with torch.no_grad(), self._products():
            clear = soundness.clear(self.tops.total, self.problem.log_leaf.dtype)
            kept: Tensor = self._kind.kept(self.problem, self.chart, self.tops)
            return self._one | (kept & clear)

    def repeat(self, part: Forest, *, in_logs: bool) -> ScaledRung | LogRung:
        return ScaledRung(part)

    def _tolerance(self) -> float:
        f = self.problem
        if self.precision == "float32":
            return super()._tolerance()
        return round_off(f.log_leaf.dtype, self.precision) * (f.log_leaf.shape[1] + 8)  # operands round either way

    def _outside(self, weight: Tensor, see: SeeLabels | None = None, *, of_factors: bool) -> list[Tensor]:
        with torch.no_grad(), self._products():
            found: list[Tensor] = self._kind.gradients(
                self.problem, self.chart, self.tops, weight, of_factors=of_factors
            )
            return found if of_factors else found[:3]


class LogRung(LastRung):
    """Logarithms in float64, exact at any range. The gradient goes through them once more."""

    over_symbols = True

    def __init__(self, f: Forest) -> None:
        self.problem = f
        with torch.no_grad():
            self.log_z = plain.log_z_in_logs(f)

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            with torch.enable_grad():
                tensors = [x.detach().requires_grad_() for x in self.problem.tensors()]
                out = plain.log_z_in_logs(self.problem.with_tensors(*tensors))
            asked = tensors if of_factors else tensors[: len(self.problem.fields)]
            return list(torch.autograd.grad(out, asked, weight, materialize_grads=True))

        return Backward(None, gradients)

    def retrace(self, f: Forest, index: Tensor | None) -> Tensor:
        return plain.log_z_in_logs(f.double())

    def labels(self) -> Labels:
        """The most probable label of every span."""
        f, found = self.problem, Labels.none(self.problem)
        with torch.enable_grad():
            log_leaf = torch.where(f.inside().unsqueeze(-1), f.log_leaf, 0.0).detach().requires_grad_()
            spans = plain.inside_in_logs(f, log_leaf)
            out = plain.log_roots(f, spans)
            posteriors = torch.autograd.grad(out.sum(), spans, materialize_grads=True) if spans else ()
        for width, posterior in enumerate(posteriors, 2):
            found.see(width, posterior)
        return found

    def log_spans(self) -> list[Tensor]:  # "b s n", by width from 2
        """The logarithms of the vectors of all spans."""
        f = self.problem
        with torch.no_grad():
            return plain.inside_in_logs(f, torch.where(f.inside().unsqueeze(-1), f.log_leaf, float("-inf")))


class TreeSolution(Ladder[Forest, ScaledRung | LogRung]):
    """A batch of sentences, each on the rung it needs."""

    def retrace(self, f: Forest) -> Tensor:  # "b"
        """log Z of a forest of the same values as ordinary operations, in the scales of a chart over symbols."""
        if not self.rung.over_symbols:
            return TreeSolution(ScaledRung(self.problem, over_symbols=True)).retrace(f)
        return super().retrace(f)

    def labels(self) -> Labels:
        """The most probable label of every span."""
        self.settle()
        found = self.rung.labels()
        for index, wider in self.wider:
            found.put(index, wider.labels())
        return found

    def log_spans(self) -> tuple[list[Tensor], Tensor]:
        """The logarithms of the vectors of all spans, float64, by width from 2; which sentences needed logarithms."""
        found = self.rung.log_spans()
        in_logs = torch.full_like(self.problem.lengths, self.rung.in_logs, dtype=torch.bool)
        for index, wider in self.wider:
            parts, in_logs[index] = wider.log_spans()
            for whole, part in zip(found, parts, strict=True):
                whole[index] = part
        return found, in_logs


def solve(f: Forest, arithmetic: Arithmetic = "scaled", precision: Precision | None = None) -> TreeSolution:
    """Run the inside pass; it keeps a chart for the gradient. A precision: nothing but log Z and that will be asked."""
    if arithmetic == "scaled" and precision is not None:
        for kind in (packed, pairs):
            if kind.serves(f, precision):
                return TreeSolution(PackedRung(f, precision, kind))
    return TreeSolution(LogRung(f.double()) if arithmetic == "log" else ScaledRung(f))
