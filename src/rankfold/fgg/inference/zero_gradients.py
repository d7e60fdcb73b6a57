"""Gradients at weights of exactly zero where a sum was taken in logarithms, which have no derivative there.

    dZ/dw = sum over the uses of w, of the weight above the rule times the product of the rule's other factors

so the pass goes once from the start symbol downwards, in logarithms too: any range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.fgg.contraction import LOGS, REAL, contract, plan_contraction
from rankfold.fgg.inference.executor import Execution, Scaling, rows_in
from rankfold.fgg.inference.operands import PARENT, SENTENCE, Operand, node_axes
from rankfold.numerics.function import Function

NOTHING = float("-inf")


def add_zero_gradients(value: Tensor, run: Execution, *, is_log: bool) -> Tensor:  # "b"
    """The value of a pass in logarithms, log Z or Z, with its gradient at weights that are exactly 0.

    Where no such weight wants a gradient, the value as it is. Differentiable once in them.
    """
    if not (torch.is_grad_enabled() and any(x.requires_grad and bool((x == 0).any()) for x in run.weights.values())):
        return value
    found: Tensor = _AddZeroGradients.apply(value, run, is_log, *run.weights.values())
    return found


def mend_overflow(value: Tensor, run: Execution, *, is_log: bool) -> None:  # "b"
    """Have autograd take gradients of a scaled pass that overflow on their way by logarithms instead.

    Those of log Z only where sums are 0 can: elsewhere a gradient times what it is of is a probability. Those of Z are
    as large as Z.
    """
    if not (torch.is_grad_enabled() and value.requires_grad):
        return
    mender = _LogGradients(
        replace(
            run,
            arithmetic=LOGS,
            weights=_wide(run.weights),
            scaling=Scaling(),
            blocks={},
            begins={},
            _joined={},
            _lifted={},
        )
    )
    mender.value, mender.is_log = value.detach(), is_log
    value.register_hook(mender.begin)  # type: ignore[no-untyped-call]
    for label, x in run.weights.items():
        if x.requires_grad:
            x.register_hook(partial(mender.of, label))  # type: ignore[no-untyped-call]


def _wide(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {label: x.detach().double() for label, x in weights.items()}


class _LogGradients:
    """The gradients of one value, by factor, made where one is needed; none that are to be differentiated again."""

    value: Tensor
    is_log: bool

    def __init__(self, run: Execution) -> None:
        self.run, self.found = run, dict[str, Tensor]()
        self.is_twice = False

    def begin(self, grad: Tensor | None) -> None:
        """Another pass backward."""
        self.is_twice |= torch.is_grad_enabled()
        if grad is not None:
            self.grad, self.found = grad.detach(), {}

    def of(self, label: str, grad: Tensor | None) -> Tensor | None:
        """The gradient of a factor, where it is not finite by logarithms."""
        if grad is None or bool(torch.isfinite(grad).all()):
            return None
        if self.is_twice:
            if bool(grad.isnan().any()):
                raise _not_twice()
            return None
        if not self.found:
            with torch.no_grad():
                if not self.run.blocks:
                    self.run.run()
                self.found = _gradients(self.run, self.value, self.grad, is_log=self.is_log)
        return torch.where(torch.isfinite(grad), grad, self.found[label].to(grad.dtype))


class _AddZeroGradients(Function):
    """The value itself; backward, the gradients that logarithms do not give."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, run: Execution, is_log: bool, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(value, *weights)
        ctx.is_log = is_log
        blocks = {table: [x.detach() for x in own] for table, own in run.blocks.items()}
        ctx.run = replace(run, weights=_wide(run.weights), blocks=blocks, _joined={}, _lifted={})
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        value, *weights = ctx.saved_tensors
        with torch.no_grad():
            every = _gradients(ctx.run, value, grad, is_log=ctx.is_log).values()
            found = [torch.where(w == 0, x, 0.0) for w, x in zip(weights, every, strict=True)]
        if torch.is_grad_enabled():  # a gradient that is to be differentiated again
            zeros = [x for x in weights if bool((x == 0).any())]
            found = [_Once.apply(x, grad, *weights) for x in found]
            grad = _Once.apply(grad, *zeros)
        return grad, None, None, *found


def _gradients(run: Execution, value: Tensor, grad: Tensor, *, is_log: bool) -> dict[str, Tensor]:
    """By factor the gradient through the value, log Z or Z, given `grad`, the gradient of the value; float64."""
    total = {label: torch.zeros_like(x) for label, x in run.weights.items()}
    for sign in (1.0, -1.0):
        part = torch.relu(sign * grad.double())
        if bool((part != 0).any()):
            seed = part.log()
            if is_log:  # where nothing has weight gradients are 0
                seed = torch.where(value > NOTHING, seed - value, NOTHING)
            for label, x in log_gradients(run, seed).items():
                total[label] += sign * x.exp()
    return total


class _Once(Function):
    """A gradient whose derivatives are refused."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *_: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise _not_twice()


def _not_twice() -> UnsupportedError:
    return UnsupportedError(
        "The sum of a grammar beyond the range of float64 is not differentiable twice where weights are exactly 0.\n"
        "  Divide factors by their largest entries, or ask for first derivatives alone."
    )


def log_gradients(run: Execution, log_seed: Tensor) -> dict[str, Tensor]:  # "b"
    """By factor the logarithms of the gradient of sum_b exp(log_seed[b]) Z[b], given a pass in logarithms.

    Cost: for each rule a contraction for each of its edges.
    """
    numbers = _number_entries(run)
    above = {
        table: log_seed.new_full((sum(map(torch.numel, own)),), NOTHING, dtype=torch.float64)
        for table, own in run.blocks.items()
    }
    found = {label: log_seed.new_full((x.numel(),), NOTHING, dtype=torch.float64) for label, x in run.weights.items()}
    above[run.schedule.row_of[run.schedule.start][0]][numbers.start()[0]] = log_seed.double()
    for level in reversed(run.schedule.levels):
        for block in reversed(level):
            own_numbers = numbers.blocks[block.table][run.begins[block.table].index(block.begin)]
            out = above[block.table][own_numbers]
            for group in block.groups:
                axis_of = node_axes(group)
                axes = (PARENT, SENTENCE, *(axis_of[node] for node in group.externals))
                top = Operand(out.index_select(0, rows_in(group, block, out.device)), axes)
                values, places = run.operands(group)[0], numbers.operands(group)[0]
                targets = [above[table] for table, _, _ in group.children]
                targets += [found[label] for label, _ in group.factors]
                for k, target in enumerate(targets):
                    others = [top, *values[:k], *values[k + 1 :]]
                    _add_at(target, places[k].tensor, _product(others, values[k]))
    return {label: x.reshape(run.weights[label].shape) for label, x in found.items()}


def _number_entries(run: Execution) -> Execution:
    """A run that holds the number of each entry within its table or factor: its operands say where theirs came from."""
    blocks: dict[str, list[Tensor]] = {}
    for table, own in run.blocks.items():
        first = 0
        for x in own:
            blocks.setdefault(table, []).append(_numbers(x, first))
            first += x.numel()
    weights = {label: _numbers(x, 0) for label, x in run.weights.items()}
    return Execution(run.grammar, run.schedule, REAL, weights, run.batch, blocks=blocks, begins=run.begins)


def _numbers(x: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + x.numel(), device=x.device).reshape(x.shape)


def _product(operands: list[Operand], like: Operand) -> Tensor:
    """The log-sum of the product of operands that leaves the axes of another."""
    sizes = {axis: size for own in operands for axis, size in zip(own.axes, own.tensor.shape, strict=True)}
    output = tuple(axis for axis in like.axes if axis in sizes)
    plan = plan_contraction([own.axes for own in operands], output, sizes)
    found = contract(plan, [own.tensor for own in operands], LOGS)
    return found.reshape([sizes.get(axis, 1) for axis in like.axes]).expand(like.tensor.shape)


def _add_at(target: Tensor, places: Tensor, x: Tensor) -> None:
    """Add entries, all of them logarithms, to those at these places; several may go to one."""
    index, x = places.reshape(-1), x.reshape(-1)
    top = target.scatter_reduce(0, index, x, "amax")
    top = torch.where(top > NOTHING, top, 0.0)
    total = torch.exp(target - top).index_add(0, index, torch.exp(x - top[index]))
    target.copy_(total.log() + top)
