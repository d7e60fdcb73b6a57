"""One ladder of arithmetics under all recursions, and log Z as one autograd function.

Its rungs: scaled numbers in the caller's dtype, the same in float64, logarithms in float64. Each sequence stays on the
first rung that loses nothing of it, forward and backward; the rest of the batch stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, cast, get_args

import torch
from torch import Tensor

from rankfold.errors import DomainError, UnsupportedError, expect_plain, may_look
from rankfold.numerics.function import Function, refuse_undefined
from rankfold.numerics.precision import Precision, check_precision, matmul_precision
from rankfold.recursions.problem import P, Problem

Arithmetic = Literal["scaled", "log"]


def check_arithmetic(arithmetic: str) -> None:
    """Raise unless it is one of the two."""
    if arithmetic not in get_args(Arithmetic):
        raise UnsupportedError(f'arithmetic={arithmetic!r} is unknown; use "scaled" (fast) or "log" (any range).')


class Backward(NamedTuple):
    """A backward pass of a rung, before its gradients are put together."""

    trusted: Tensor | None  # "b"   False where underflow may have changed the result; None: there is no underflow
    # Which sequences are on wider rungs ("b", None: no sequence) -> gradients of the others, as `problem.tensors`.
    gradients: Callable[[Tensor | None], list[Tensor]]


class Rung(Protocol[P]):
    """A batch solved in one arithmetic."""

    problem: P
    log_z: Tensor  # "b"   float64
    in_logs: bool  # the last rung, where nothing is lost

    def sound(self) -> Tensor:  # "b"
        """Whether underflow in the forward pass is below round-off."""

    def repeat(self, part: P, *, in_logs: bool) -> Any:
        """The next rung, for some of the sequences, already converted to float64."""

    def forget(self, index: Tensor) -> None:  # "k"
        """Zero the messages of these sequences, NaN and infinity included: a wider rung has them now."""

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:  # "b"
        """The backward pass for d (weight . log_z); while a graph is captured, untrusted sequences are NaN."""

    def retrace(self, p: P, index: Tensor | None) -> Tensor:  # "k" -> "k"
        """log Z of some sequences (None: all) of a problem of the same values, as ordinary autograd operations."""


class LastRung:
    """Base of the rungs in logarithms, where nothing is lost or repeated: the ladder never calls these methods."""

    in_logs = True

    def sound(self) -> Tensor:
        raise AssertionError("nothing is lost here")

    def repeat(self, part: Any, *, in_logs: bool) -> Any:
        raise AssertionError("there is no wider arithmetic")

    def forget(self, index: Tensor) -> None:
        raise AssertionError("there is no wider arithmetic")


R = TypeVar("R", bound=Rung[Any])


class Ladder(Generic[P, R]):
    """A batch on one rung; `wider` holds the sequences that need a wider one: their indices, and a ladder of them."""

    def __init__(self, rung: R) -> None:
        self.rung: R = rung
        self.wider: list[tuple[Tensor, Self]] = []
        self.settled: bool = rung.in_logs  # whether forward and backward pass were both checked
        if rung.in_logs:
            return
        sound = rung.sound()
        if may_look(sound):
            if not bool(sound.all()):
                self._widen((~sound).nonzero()[:, 0])
        else:  # inside a captured graph nothing can be repeated
            rung.log_z = torch.where(sound, rung.log_z, float("nan"))

    @property
    def problem(self) -> P:
        """The validated potentials, of all sequences of the batch."""
        problem: P = self.rung.problem
        return problem

    @property
    def log_z(self) -> Tensor:  # "b"   float64
        """log Z of every sequence; -inf if it is impossible, NaN where a captured graph cannot vouch for it."""
        return self.rung.log_z

    def _widen(self, index: Tensor) -> None:  # "k"
        """Repeat some sequences on the next rung."""
        if not len(index):
            return
        part = self.problem.take(index)
        rung = self.rung.repeat(part.double(), in_logs=part.positions.dtype == torch.float64)
        wider = cast("Self", self.__class__(rung))
        self.wider.append((index, wider))
        self.rung.log_z[index] = wider.log_z
        self.rung.forget(index)

    def elsewhere(self) -> Tensor:  # "b"
        """Which sequences are on a wider rung."""
        there = torch.zeros_like(self.problem.lengths, dtype=torch.bool)
        for index, _ in self.wider:
            there[index] = True
        return there

    def backward(self, weight: Tensor, *, of_factors: bool) -> Backward:  # "b"
        """The backward pass of this rung; sequences that are not `trusted` go to the next rung."""
        back = self.rung.backward(weight, of_factors=of_factors)
        if not self.settled and back.trusted is not None:
            self.repeat_untrusted(back.trusted)
        return back

    def repeat_untrusted(self, trusted: Tensor) -> None:  # "b"
        """Repeat the sequences that are not trusted; not while a CUDA graph is captured."""
        if may_look(trusted) and not bool(trusted.all()):
            self._widen((~trusted & ~self.elsewhere()).nonzero()[:, 0])

    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]:  # "b"
        """d (weight . log_z) / d `problem.tensors()`, those of the operator's factors only if `of_factors`."""
        back = self.backward(weight, of_factors=of_factors)
        if sum(len(index) for index, _ in self.wider) < len(self.log_z):
            grads = back.gradients(self.elsewhere() if self.wider else None)
        else:  # all sequences are on wider rungs, and the numbers of this one may be NaN
            num = None if of_factors else len(self.problem.fields)
            grads = [torch.zeros_like(x) for x in self.problem.tensors()[:num]]
        for index, wider in self.wider:
            self._merge(grads, index, wider.gradients(weight[index], of_factors=of_factors))
        return grads

    def _merge(self, grads: list[Tensor], index: Tensor, parts: list[Tensor]) -> None:
        """Add the gradients of the sequences at `index`."""
        p, num = self.problem, len(self.problem.fields)
        for name, grad, part in zip(p.fields, grads, parts, strict=False):
            if name in p.shared:
                grad += part.to(grad.dtype)
            else:
                grad[index] = part.to(grad.dtype)
        # In the widest dtype of all rungs: the gradient of a weight near 0 may overflow the narrow one.
        for i, part in enumerate(parts[num:], num):
            if part.shape != grads[i].shape:  # every sequence has factors of its own: only some are in this part
                part = torch.zeros_like(grads[i], dtype=part.dtype).index_copy_(0, index, part)
            grads[i] = grads[i] + part

    def settle(self) -> None:
        """Run the backward pass once, so that every sequence is on the rung it needs in both directions."""
        if not self.settled:
            with torch.no_grad():
                self.backward(torch.ones_like(self.log_z), of_factors=False)
            self.settled = True

    def retrace(self, p: P) -> Tensor:  # "b"
        """log Z of a problem of the same values, each sequence on its own rung, as ordinary autograd operations."""
        return self.each(p, lambda rung, q, index: (rung.retrace(q, index),), axis=0)[0]

    def each(self, p: P, ask: Callable[[R, P, Tensor | None], Sequence[Tensor]], *, axis: int) -> tuple[Tensor, ...]:
        """`ask(rung, p, index)` of every rung, for its own sequences (None: all), joined along the sequences' axis."""
        self.settle()
        if not self.wider:
            return tuple(ask(self.rung, p, None))
        rest = (~self.elsewhere()).nonzero()[:, 0]
        parts = [ask(self.rung, p, rest)] if len(rest) else []
        parts += [wider.each(p.take(index).double(), ask, axis=axis) for index, wider in self.wider]
        order = torch.cat([rest, *(index for index, _ in self.wider)]).argsort()
        return tuple(
            torch.cat([x.to(same[0].dtype) for x in same], axis).index_select(axis, order)
            for same in zip(*parts, strict=True)
        )

    def confirm(self, found: Sequence[Tensor], weight: Tensor, wanted: Sequence[bool]) -> None:
        """Raise if the retraced gradients of the wanted tensors are wrong; overridden where they can be."""


class Solution(Protocol):
    """A solved batch, as the autograd function needs it: a ladder, or several (long sequences in stretches)."""

    @property
    def log_z(self) -> Tensor: ...  # "b"   float64
    def gradients(self, weight: Tensor, *, of_factors: bool) -> list[Tensor]: ...
    def retrace(self, p: Any) -> Tensor: ...
    def confirm(self, found: Sequence[Tensor], weight: Tensor, wanted: Sequence[bool]) -> None: ...


class LogZ(Function):
    """log Z, with the backward pass of its recursion as derivative."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, solve: Any, precision: Precision, *tensors: Tensor) -> Tensor:
        problem = problem.with_tensors(*(x.detach() for x in tensors))
        ctx.problem, ctx.solution = problem, solve(problem, any(ctx.needs_input_grad[3:]))
        ctx.solve, ctx.precision = solve, precision
        ctx.save_for_backward(*tensors)
        log_z: Tensor = ctx.solution.log_z
        return log_z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = grads
        expect_plain(weight, name="the gradient of log_z")
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        problem, solution = ctx.problem, ctx.solution
        if solution is None:  # a second pass through a graph that was retained
            problem = problem.with_tensors(*(x.detach() for x in tensors))
            solution = ctx.solve(problem, True)
        if torch.is_grad_enabled():
            # The gradient will be differentiated: give autograd ordinary operations to follow. Messages
            # stored in ctx would lose the second derivative without a word.
            # Views, because one input may be computed from another: only direct derivatives are asked for.
            tensors = tuple(x.view_as(x) for x in tensors)
            traced = problem.with_tensors(*tensors)
            out = solution.retrace(traced)
            asked = [x for x, want in zip(tensors, wanted, strict=True) if want]
            refuse_undefined(asked, traced.linear_factors())
            with matmul_precision(ctx.precision, weight.device):
                found = torch.autograd.grad(out, asked, weight, create_graph=True, materialize_grads=True)
            solution.confirm(found, weight.detach(), wanted)
        else:
            solved = solution.gradients(weight, of_factors=any(wanted[len(problem.fields) :]))
            triples = zip(solved, tensors, wanted, strict=False)  # `solved` may end before the factors
            found = tuple(x.to(like.dtype) for x, like, want in triples if want)
            if (hollow := problem.hollow()) is not problem:  # while ctx holds large tensors, autograd cannot free them
                ctx.problem, ctx.solution = hollow, None
        remaining = iter(found)
        return (None, None, None, *(next(remaining) if want else None for want in wanted))


class Impossible(NamedTuple):
    """The parts of the error message for a sequence without any weight."""

    one: str  # "sequence" or "sentence"
    why: str | Callable[[int], str]
    hint: str


def log_z(
    problem: P,
    solve: Callable[[P, bool], Solution],  # `solve(problem, both)`, both: a backward pass will follow
    arithmetic: Arithmetic,
    precision: Precision,
    impossible: Impossible | None,  # None: a sequence without weight is no error
) -> Tensor:  # "b"   float64
    """log Z of a problem, differentiable in all its tensors, twice."""
    check_arithmetic(arithmetic)
    check_precision(precision)
    out: Tensor = LogZ.apply(problem, solve, precision, *problem.tensors())
    if impossible is not None and may_look(out):
        _expect_possible(out.detach(), impossible)
    return out


def _expect_possible(log_z: Tensor, impossible: Impossible) -> None:  # "b"
    indices = (log_z == float("-inf")).nonzero()[:, 0]
    if len(indices):
        one, why, hint = impossible
        first, more = int(indices[0]), len(indices) - 1
        reason = why if isinstance(why, str) else why(first)
        others = f", and so are {more} more" if more else ""
        raise DomainError(f"{one} {first} is impossible: {reason}{others}.\n  {hint}")
