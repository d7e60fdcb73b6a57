"""The rungs of a chain: scaled vectors in the caller's dtype or in float64, and logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, may_look
from rankfold.numerics.precision import Precision, matmul_precision, summed_outer
from rankfold.numerics.scaled import Scaled
from rankfold.operators.dense import Dense
from rankfold.operators.sharded import REMEDY
from rankfold.recursions.chain import plain, scaled
from rankfold.recursions.chain.potentials import Chain
from rankfold.recursions.chain.soundness import far_from_underflow, lossless
from rankfold.recursions.factor_gradients import factor_gradients
from rankfold.recursions.ladder import Arithmetic, Backward, Ladder, LastRung

Message = Literal["filtered", "future"]


class ScaledRung:
    """Linear products on scaled vectors; `both`: the backward pass may run together with the forward pass."""

    in_logs = False

    def __init__(self, c: Chain, precision: Precision, *, both: bool = False) -> None:
        if precision == "bf16" and c.log_obs.is_cuda and not (both and scaled.passes_meet(c, precision)):
            precision = "tf32"  # casting operands at every step would cost more than it saves
        self.problem, self.precision = c, precision
        with self._products():
            self.run = scaled.forward(c, precision, both=both)
        self.log_z = self.run.log_z

    def _products(self) -> AbstractContextManager[None]:
        """Sets the precision of matrix products inside the block; float64 has but one."""
        if self.problem.log_obs.dtype == torch.float64:
            return nullcontext()
        return matmul_precision(self.precision, self.problem.log_obs.device)

    def sound(self) -> Tensor:  # "b"
        with self._products():
            return (lossless if may_look(self.log_z) else far_from_underflow)(self.problem, self.run)

    def repeat(self, part: Chain, *, in_logs: bool) -> ScaledRung | LogRung:
        return LogRung(part) if in_logs else ScaledRung(part, self.precision)

    def forget(self, index: Tensor) -> None:
        self.run.filtered[:, index] = 0.0
        if self.run.verdict is not None:  # the backward pass ran together with the forward pass
            self.run.verdict.trusted[index] = False
            for x in (self.run.verdict.by_state, self.run.verdict.by_step):
                x[:, index] = 0.0

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        with self._products():
            back = scaled.backward(self.problem, self.run._replace(log_z=self.log_z), weight, self.precision)
        return Backward(back.trusted, partial(self._gradients, back, of_factors))

    def _gradients(self, back: scaled.Backward, of_factors: bool, elsewhere: Tensor | None) -> list[Tensor]:
        c = self.problem
        grads = [back.posterior[0].clone(), back.posterior.transpose(0, 1), c.last(back.posterior)]
        with self._products():
            if of_factors:
                grads += factor_gradients(c, back.source, back.target, log=False, inner=back.inner)
        return grads

    def log_filtered(self) -> Tensor:  # "t b z"
        """log p(x_1..t, z_t), float64."""
        return Scaled(self.run.filtered, self.run.log_scale).log()

    def log_future(self) -> Tensor:  # "t b z"
        """log p(x_t+1..T | z_t), float64."""
        with self._products():
            return scaled.log_future(self.problem, self.run)

    def retrace(self, c: Chain, index: Tensor | None) -> Tensor:
        _expect_whole(c)
        with self._products():
            return plain.log_z(c if index is None else c.take(index))

    def message(self, c: Chain, index: Tensor | None, which: Message) -> Scaled:  # "t k z"
        """Messages of some sequences as ordinary autograd operations."""
        _expect_whole(c)
        c = c if index is None else c.take(index)
        with self._products():
            return plain.forward(c) if which == "filtered" else plain.future(c)


class LogRung(LastRung):
    """Logarithms in float64, exact at any range. `asked`: the caller chose them (`arithmetic="log"`), no fallback."""

    def __init__(self, c: Chain, *, asked: bool = False) -> None:
        self.problem, self.asked = c, asked
        self._filtered, self.log_z = plain.forward_in_logs(c)

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:
        def gradients(elsewhere: Tensor | None) -> list[Tensor]:
            c, filtered = self.problem, self._filtered
            return list(plain.gradients_in_logs(c, filtered, self.log_z, weight, of_transition=of_factors))

        return Backward(None, gradients)

    def log_filtered(self) -> Tensor:  # "t b z"
        """log p(x_1..t, z_t)."""
        return self._filtered

    def log_future(self) -> Tensor:  # "t b z"
        """log p(x_t+1..T | z_t)."""
        return plain.future_in_logs(self.problem)

    def retrace(self, c: Chain, index: Tensor | None) -> Tensor:
        if self.asked:  # try scaled arithmetic first: its derivatives exist at weights of zero too
            return ChainSolution(ScaledRung(self.problem, "float32")).retrace(c.double())
        self._expect_derivatives(c)
        return plain.forward_in_logs(c.double())[1]

    def message(self, c: Chain, index: Tensor | None, which: Message) -> Scaled:  # "t b z"
        """All messages as ordinary autograd operations."""
        if self.asked:
            return ChainSolution(ScaledRung(self.problem, "float32")).message(c.double(), which)
        self._expect_derivatives(c)
        c = c.double()
        return Scaled.from_log(plain.forward_in_logs(c)[0] if which == "filtered" else plain.future_in_logs(c))

    def _expect_derivatives(self, c: Chain) -> None:
        """Raise if a derivative would be taken at a linear weight of zero, where log has none."""
        _expect_whole(c)
        zeros = any(factor.requires_grad and bool((factor == 0).any()) for factor in c.linear_factors())
        if zeros and torch.is_grad_enabled() and bool((self.log_z > float("-inf")).any()):
            raise UnsupportedError(
                "a posterior or message of a sequence whose range exceeds float64 was to be differentiated in\n"
                "  transition weights some of which are exactly zero. Build the transition with from_log(...)."
            )


def _expect_whole(c: Chain) -> None:
    """Raise where several processes hold the states: operations that autograd follows would scale each on its own."""
    if c.shard is not None:
        raise UnsupportedError(
            f"second derivatives and messages are not computed over {c.shard.num} shards of states.\n  {REMEDY}"
        )


class ChainSolution(Ladder[Chain, ScaledRung | LogRung]):
    """A batch of chains, each sequence on the rung it needs."""

    def message(self, c: Chain, which: Message) -> Scaled:  # "t b z"
        """Messages of a chain of the same values, each sequence on its own rung, as ordinary autograd operations."""
        return Scaled(*self.each(c, lambda rung, part, index: rung.message(part, index, which), axis=1))

    def log_filtered(self) -> Tensor:  # "t b z"
        """The logarithms of the filtered messages, float64; -inf where an entry underflowed without effect on log Z."""
        return self._logs(lambda rung: rung.log_filtered())

    def log_future(self) -> Tensor:  # "t b z"
        """The logarithms of the future messages, float64; -inf where an entry underflowed without effect on log Z."""
        self.settle()
        return self._logs(lambda rung: rung.log_future())

    @torch.no_grad()
    def _logs(self, ask: Callable[[ScaledRung | LogRung], Tensor]) -> Tensor:  # "t b z"
        out = ask(self.rung)
        for index, wider in self.wider:
            out[:, index] = wider._logs(ask)
        return out


def solve(c: Chain, arithmetic: Arithmetic, precision: Precision = "float32", *, both: bool = False) -> ChainSolution:
    """Run the forward pass; it keeps O(b t z) for the gradient. `both`: a backward pass will follow."""
    if arithmetic == "log":
        return ChainSolution(LogRung(c.double(), asked=True))
    return ChainSolution(ScaledRung(c, precision, both=both))


class Uses(NamedTuple):
    """The expected uses of a dense chain."""

    posterior: Tensor  # "t b z"
    transition: Tensor  # "z y"   summed over sequences and positions
    log_z: Tensor  # "b"          float64


def uses(c: Chain, weight: Tensor, precision: Precision) -> Uses | None:  # weight "b"
    """Both passes of compiled loops and a product; None where they do not serve, or a sequence needs wider arithmetic.

    The same numbers as from the ladder, without its calls: at few states they would take as long as the loops.
    """
    if precision == "bf16" and c.log_obs.dtype == torch.float32:
        return None  # products in bfloat16 are torch's
    if type(c.transition) is not Dense or (matrix := scaled.looped(c)) is None:  # a subclass has factors of its own
        return None
    f = scaled.forward(c, precision)
    if f.sound is None or not lossless(c, f).all():
        return None
    back = scaled.backward(c, f, weight, precision)
    if not back.trusted.all():
        return None
    found = matrix * summed_outer(back.source, back.target, matrix)
    # A weight near 0 may have a derivative too large for the dtype: the ladder divides it beforehand.
    return Uses(back.posterior, found, f.log_z) if bool(found.isfinite().all()) else None


def uses_in_place(c: Chain, room: tuple[Any, Any]) -> Uses | None:
    """`uses` of a chain whose log_obs nobody reads again: "t b z" in memory, it becomes the posteriors.

    `room`: two arrays of that shape. None, too, where only the exact bound would show that nothing is lost.
    """
    if type(c.transition) is not Dense or (matrix := scaled.looped(c)) is None:  # a subclass has factors of its own
        return None
    from rankfold.kernels.chain_loops import expected_uses

    ones = torch.ones_like(c.lengths, dtype=torch.float64)
    ends = c.log_initial, c.log_obs.transpose(0, 1), c.log_final, c.lengths, ones
    losses = c.transition.push_loss(), c.transition.pull_loss()
    found = expected_uses(matrix, float(c.transition.log_scale), *ends, losses, scaled.tolerance(c, "float32"), room)
    return Uses(*found) if found is not None and math.isfinite(found[1].sum()) else None


def dead_end(c: Chain, sequence: int) -> int:
    """The first position of a sequence at which no state is left; its length, if only log_final forbids the end."""
    one = c.detach().take(c.lengths.new_tensor([sequence])).double()
    alive = one.any_state(plain.forward_in_logs(one)[0][:, 0] > float("-inf"))
    length = int(one.lengths[0])
    gone = (~alive[:length]).nonzero()
    return int(gone[0]) if len(gone) else length
