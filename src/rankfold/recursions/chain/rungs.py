"""log Z and its gradient, in the narrowest arithmetic that loses nothing.

A ladder of three rungs: scaled vectors in the caller's dtype, scaled vectors in float64, logarithms in
float64. Each sequence stays on the first rung that proves sound for it, forward and backward, and does
not disturb its neighbours. Read next: `recursions/chain/scaled.py`, the first rung.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, may_look
from rankfold.numerics.precision import Precision, matmul_precision
from rankfold.numerics.scaled import Scaled
from rankfold.recursions.chain import plain, scaled
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.chain.soundness import far_from_underflow, lossless
from rankfold.recursions.factor_gradients import factor_gradients
from rankfold.recursions.ladder import Arithmetic

Trace = Literal["log_z", "filtered", "future"]


def solve(c: Chain, arithmetic: Arithmetic, precision: Precision, *, both: bool = False) -> Solution:
    """Run the forward pass; what is kept for the gradient is O(b t z). `both`: a backward pass will follow."""
    return LogSolution(c.double(), asked=True) if arithmetic == "log" else ScaledSolution(c, precision, both=both)


class LogSolution:
    """The last rung: logarithms in float64, exact at any range. `asked`: by the caller, not by need."""

    def __init__(self, c: Chain, *, asked: bool = False) -> None:
        self.chain, self.asked = c, asked
        self.filtered, self.log_z = plain.forward_in_logs(c)

    def gradients(self, weight: Tensor, *, of_transition: bool) -> list[Tensor]:
        """d (weight . log_z) / d (log_initial, log_obs, log_final, *factors)."""
        return list(plain.gradients_in_logs(self.chain, self.filtered, self.log_z, weight, of_transition=of_transition))

    def retrace(self, c: Chain, what: Trace) -> tuple[Tensor, ...]:
        """The same computation as ordinary autograd operations, for second derivatives and messages."""
        c = c.double()
        if self.asked:  # where the range allows it, on the rung whose derivatives exist at zeros too
            return ScaledSolution(self.chain, "float32").retrace(c, what)
        self._expect_derivatives(c)
        if what == "future":
            return Scaled.from_log(plain.future_in_logs(c))
        filtered, log_z = plain.forward_in_logs(c)
        return (log_z,) if what == "log_z" else Scaled.from_log(filtered)

    def _expect_derivatives(self, c: Chain) -> None:
        """Raise if a derivative would be taken at a linear weight of zero, which logarithms cannot do."""
        zeros = any(
            factor.requires_grad and not is_log and bool((factor == 0).any())
            for factor, is_log in zip(c.transition.factors(), c.transition.log_factors, strict=True)
        )
        if zeros and torch.is_grad_enabled() and bool((self.log_z > float("-inf")).any()):
            raise UnsupportedError(
                "a posterior or message of a sequence whose range exceeds float64 was to be differentiated in\n"
                "  transition weights some of which are exactly zero. Build the transition with from_log(...)."
            )

    def log_future(self) -> Tensor:  # "t b z"
        """The logarithm of the future messages, float64."""
        return plain.future_in_logs(self.chain)

    def dead_end(self, sequence: int) -> int:
        """The first position at which no state is left; the length, if only log_final forbids the end."""
        alive = (self.filtered[:, sequence] > float("-inf")).any(-1)
        length = int(self.chain.lengths[sequence])
        gone = (~alive[:length]).nonzero()
        return int(gone[0]) if len(gone) else length


class ScaledSolution:
    """The first rungs: linear products on scaled vectors; `wider` holds the sequences that need more."""

    def __init__(self, c: Chain, precision: Precision, *, both: bool = False) -> None:
        if precision == "bf16" and c.log_obs.is_cuda and not (both and scaled.passes_meet(c, precision)):
            precision = "tf32"  # casting operands at every step would cost more than it saves
        self.chain, self.precision = c, precision
        self.wider: list[tuple[Tensor, Solution]] = []
        self.settled = False
        with self._products():
            self.run = scaled.forward(c, precision, both=both)
            self.log_z = self.run.log_z
            if may_look(self.log_z):
                self._widen((~lossless(c, self.run)).nonzero()[:, 0])
            else:  # inside a captured graph nothing can be repeated
                self.log_z = torch.where(far_from_underflow(c, self.run), self.log_z, float("nan"))
                self.run = self.run._replace(log_z=self.log_z)

    def _products(self) -> AbstractContextManager[None]:
        return matmul_precision(self.precision, self.chain.log_obs.device)

    def _widen(self, index: Tensor) -> None:
        if not len(index):
            return
        part = self.chain.take(index)
        double = part.log_obs.dtype == torch.float64
        wider: Solution = LogSolution(part) if double else ScaledSolution(part.double(), self.precision)
        self.wider.append((index, wider))
        self.log_z[index] = wider.log_z
        self.run.filtered[:, index] = 0.0
        if self.run.verdict is not None:  # a backward pass that ran already does not count them either
            self.run.verdict.trusted[index] = False
            for x in (self.run.verdict.by_state, self.run.verdict.by_step):
                x[:, index] = 0.0

    def gradients(self, weight: Tensor, *, of_transition: bool) -> list[Tensor]:
        """d (weight . log_z) / d (log_initial, log_obs, log_final, *factors); empty factors if not asked."""
        c = self.chain
        with self._products():
            back = scaled.backward(c, self.run, weight, self.precision)
            grads = [back.posterior[0].clone(), back.posterior.transpose(0, 1), c.last(back.posterior)]
            if of_transition and self._is_used():
                grads += factor_gradients(c, back.source, back.target, log=False, inner=back.inner)
            elif of_transition:
                grads += [torch.zeros_like(factor) for factor in c.transition.factors()]
        if not self.settled and may_look(back.trusted):
            known = torch.zeros_like(back.trusted)
            for index, _ in self.wider:
                known[index] = True
            self._widen((~back.trusted & ~known).nonzero()[:, 0])
            self.settled = True
        for index, wider in self.wider:
            parts = wider.gradients(weight[index], of_transition=of_transition)
            for grad, part in zip(grads[:3], parts[:3], strict=True):
                grad[index] = part.to(grad.dtype)
            # As wide as the widest: where a weight is nearly 0 its gradient may be larger than the narrow dtype holds.
            grads[3:] = [grad + part for grad, part in zip(grads[3:], parts[3:], strict=of_transition)]
        return grads

    def _is_used(self) -> bool:
        """Whether a sequence is on this rung: if none is, its products may hold anything."""
        return sum(len(index) for index, _ in self.wider) < len(self.log_z)

    def retrace(self, c: Chain, what: Trace) -> tuple[Tensor, ...]:
        """The same computation, each sequence on its own rung, as ordinary autograd operations."""
        self._settle()
        here = torch.ones_like(c.lengths, dtype=torch.bool)
        for index, _ in self.wider:
            here[index] = False
        rest = here.nonzero()[:, 0]
        indices = [rest]
        parts = [self._plain(c.take(rest) if self.wider else c, what)] if len(rest) else []
        for index, wider in self.wider:
            indices.append(index)
            parts.append(wider.retrace(c.take(index).double(), what))
        order = torch.cat(indices).argsort()
        axis = 0 if what == "log_z" else 1
        kinds = [torch.float64 if what == "log_z" else c.log_obs.dtype, torch.float64]
        return tuple(
            torch.cat([x.to(kind) for x in same], axis).index_select(axis, order)
            for kind, same in zip(kinds, zip(*parts, strict=True), strict=False)
        )

    def _plain(self, c: Chain, what: Trace) -> tuple[Tensor, ...]:
        with self._products():
            if what == "log_z":
                return (plain.log_z(c),)
            return plain.forward(c) if what == "filtered" else plain.future(c)

    def log_future(self) -> Tensor:  # "t b z"
        """The logarithm of the future messages, float64; -inf where they are too small to matter."""
        with torch.no_grad():
            self._settle()
            out = Scaled(*self._plain(self.chain, "future")).log()
            for index, wider in self.wider:
                out[:, index] = wider.log_future()
        return out

    def _settle(self) -> None:
        """Run the backward pass once, so that every sequence is on the rung it needs in both directions."""
        if not self.settled:
            with torch.no_grad():
                self.gradients(torch.ones_like(self.log_z), of_transition=False)


Solution = LogSolution | ScaledSolution
